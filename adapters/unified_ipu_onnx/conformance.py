"""What the conformance kit tests this adapter with; onnx and torch are imported late."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from unified_ipu.adapter import losses
from unified_ipu.testing import Model
from unified_ipu_onnx.conformance_devices import LIMITS, Product
from unified_ipu_torch.conformance import TorchSubject

_TORCH = TorchSubject()

_Nodes = List[Tuple[str, List[str], List[str], Dict[str, Any]]]
"""Operator, inputs, outputs, attributes."""

_OPSET = 11  # the newest that PopART reads
_DROPOUT_OPSET = 17


class OnnxSubject:
    """See ``unified_ipu.testing.Subject``; what is torch's here is what torch's subject makes."""

    adapter = "onnx"
    preload = ("torch", "onnx", "onnxruntime")
    device_dtype = "float32"
    device_limits: Mapping[str, str] = LIMITS

    def linear(self, weight: Any, bias: Optional[Any] = None, *, dtype: str = "float64") -> Model:
        """One ``Gemm`` or ``MatMul``."""
        weight = np.asarray(weight, dtype)
        held = {"weight": weight}
        if bias is None:
            nodes: _Nodes = [("MatMul", ["x", "weight"], ["y"], {})]
        else:
            held["bias"] = np.asarray(bias, dtype)
            nodes = [("Gemm", ["x", "weight", "bias"], ["y"], {})]
        native = _model(nodes, held, dtype=dtype, shape=[weight.shape[0]])
        return Model(native, {name: name for name in held})

    def mlp(
        self, weights: Sequence[Any], biases: Sequence[Any], *, dtype: str = "float64"
    ) -> Model:
        """``Gemm`` with transposed weights, ``Tanh`` between; names with dots and slashes."""
        nodes: _Nodes = []
        held, names, value = {}, {}, "x"
        for index, (weight, bias) in enumerate(zip(weights, biases)):
            own = {"weight": f"layers.{index}/weight", "bias": f"layers.{index}/bias"}
            held[own["weight"]] = np.ascontiguousarray(np.asarray(weight, dtype).T)
            held[own["bias"]] = np.asarray(bias, dtype)
            names.update({f"{kind}.{index}": name for kind, name in own.items()})
            is_last = index == len(weights) - 1
            out = "y" if is_last else f"sum.{index}"
            nodes.append(("Gemm", [value, own["weight"], own["bias"]], [out], {"transB": 1}))
            if not is_last:
                value = f"tanh.{index}"
                nodes.append(("Tanh", [out], [value], {}))
        shape = [np.asarray(weights[0]).shape[0]]
        native = _model(nodes, held, dtype=dtype, shape=shape)
        return Model(native, names, frozenset(n for n in names if n.startswith("weight")))

    def branches(
        self, a: float, b: float, c: float, frozen: float, *, dtype: str = "float64"
    ) -> Model:
        """Two ``If`` in one another; the branch of ``c`` would need a 2 in the second column."""
        from onnx import TensorProto, helper

        def branch(name: str, *nodes: Any) -> Any:
            made = nodes or (helper.make_node("Mul", ["value", name], [f"times.{name}"]),)
            out = helper.make_tensor_value_info(made[-1].output[0], _kind(dtype), None)
            return helper.make_graph(list(made), name, [], [out])

        def choose(flag: str, out: str, then: Any, otherwise: Any) -> Any:
            return helper.make_node("If", [flag], [out], then_branch=then, else_branch=otherwise)

        held = {
            name: np.array([value], dtype)
            for name, value in (("a", a), ("b", b), ("c", c), ("frozen", frozen))
        }
        fixed = {"first": np.array([0]), "second": np.array([1]), "two": np.array(2.0, dtype)}
        inner = choose("is.b", "one", branch("b"), branch("a"))
        outer = {"then_branch": branch("c"), "else_branch": branch("other", inner)}
        nodes: _Nodes = [
            ("Gather", ["x", "first"], ["value"], {"axis": 1}),
            ("Gather", ["x", "second"], ["flags"], {"axis": 1}),
            ("Gather", ["flags", "first"], ["flag"], {"axis": 0}),
            ("Squeeze", ["flag"], ["scalar"], {}),
            ("Cast", ["scalar"], ["is.b"], {"to": TensorProto.BOOL}),
            ("Equal", ["scalar", "two"], ["is.c"], {}),
            ("If", ["is.c"], ["scaled"], outer),
            ("Add", ["scaled", "frozen"], ["y"], {}),
        ]
        native = _model(nodes, {**held, **fixed}, dtype=dtype, shape=[2])
        return Model(native, {name: name for name in held})

    def dropout_probe(self, size: int, rate: float, *, dtype: str = "float64") -> Model:
        """``Dropout`` in training mode, then a ``MatMul``."""
        held = {
            "weight": np.zeros((size, 1), dtype),
            "rate": np.array(rate, dtype),
            "train": np.array(True),
        }
        nodes: _Nodes = [
            ("Dropout", ["x", "rate", "train"], ["dropped"], {}),
            ("MatMul", ["dropped", "weight"], ["y"], {}),
        ]
        native = _model(nodes, held, dtype=dtype, shape=[size], opset=_DROPOUT_OPSET)
        return Model(native, {"weight": "weight"})

    def normalised(self, *, dtype: str = "float64") -> Model:
        """``BatchNormalization`` in the form of inference, times a weight."""
        held = {
            "mean": np.zeros(1, dtype),
            "variance": np.ones(1, dtype),
            "weight": np.ones((1, 1), dtype),
        }
        # Constants are not trained: the kit wants one weight.
        constants = {"scale": np.ones(1, dtype), "shift": np.zeros(1, dtype)}
        nodes: _Nodes = [
            ("Constant", [], [name], {"value": _tensor(value, name)})
            for name, value in constants.items()
        ]
        nodes += [
            ("BatchNormalization", ["x", "scale", "shift", "mean", "variance"], ["n"], {}),
            ("MatMul", ["n", "weight"], ["y"], {}),
        ]
        native = _model(nodes, held, dtype=dtype, shape=[1])
        return Model(native, {name: name for name in held})

    def tied(self, weight: float, *, dtype: str = "float64") -> Model:
        """One initializer that two nodes read: in a graph it has one name."""
        nodes: _Nodes = [
            ("Mul", ["x", "weight"], ["once"], {}),
            ("Mul", ["once", "weight"], ["y"], {}),
        ]
        held = {"weight": np.array([weight], dtype)}
        native = _model(nodes, held, dtype=dtype, shape=[1])
        return Model(native, {"weight": "weight", "twin": "weight"})

    def mean_squared_error(self, reduction: str = "mean") -> Any:
        """One of ``ui.losses``."""
        return losses.mean_squared_error(reduction=reduction)

    def cross_entropy(
        self,
        class_weights: Optional[Sequence[float]] = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        *,
        dtype: str = "float64",
    ) -> Any:
        """One of ``ui.losses``, whose class weights have no type."""
        del dtype
        return losses.softmax_cross_entropy(
            class_weights=class_weights, ignore_index=ignore_index, reduction=reduction
        )

    def product_loss(self, reduction: str = "mean") -> Any:
        """A callable of the user's."""
        return Product(reduction)

    def token_objective(self, penalty: float = 0.0) -> Any:
        """It calls the module of the graph, and reads its weight."""
        return _TORCH.token_objective(penalty)

    def on_device(self, native: Any, options: Mapping[str, Any]) -> Tuple[Any, Mapping[str, Any]]:
        """PopART runs no callable: users let the graph compute its loss."""
        loss = options.get("loss")
        if not isinstance(loss, Product):
            return native, options
        loss.add_to(native)
        return native, {**options, "loss": loss.output}

    def native_optimizer(
        self, model: Model, settings: Any, rates: Mapping[str, float]
    ) -> Callable[[Any], Any]:
        """A function of the module that is made of the graph."""

        def optimizer(module: Any) -> Any:
            own = {name: torch_name for torch_name, name in module.initializer_names.items()}
            native = Model(module, {name: own[model.names[name]] for name in rates})
            return _TORCH.native_optimizer(native, settings, rates)

        return optimizer

    def native_schedule(self, optimizer: Any, factor: float) -> Any:
        """Torch's: the kit asks only where the adapter declares native schedules."""
        return _TORCH.native_schedule(optimizer, factor)

    def tensors(self, tree: Any) -> Any:
        """Torch's tensors."""
        return _TORCH.tensors(tree)

    def read(self, model: Model) -> Dict[str, Any]:
        """Read the initializers of the user's model."""
        from onnx import numpy_helper

        return {t.name: np.array(numpy_helper.to_array(t)) for t in model.native.graph.initializer}

    def random_state(self) -> Tuple[bytes, ...]:
        """State of torch's default generator."""
        return _TORCH.random_state()


def _tensor(value: Any, name: str) -> Any:
    from onnx import numpy_helper

    return numpy_helper.from_array(np.asarray(value), name)


def _kind(dtype: str) -> int:
    from onnx import TensorProto

    return int({"float32": TensorProto.FLOAT, "float64": TensorProto.DOUBLE}[dtype])


def _model(
    nodes: _Nodes,
    held: Mapping[str, Any],
    *,
    shape: Sequence[int],
    dtype: str,
    opset: int = _OPSET,
) -> Any:
    """A model of ``x [rows, *shape] -> y``, whose initializers are ``held``."""
    from onnx import helper

    kind = _kind(dtype)
    graph = helper.make_graph(
        [helper.make_node(kind, ins, outs, **rest) for kind, ins, outs, rest in nodes],
        "conformance",
        [helper.make_tensor_value_info("x", kind, ["rows", *shape])],
        [helper.make_tensor_value_info("y", kind, None)],
        [_tensor(value, name) for name, value in held.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
