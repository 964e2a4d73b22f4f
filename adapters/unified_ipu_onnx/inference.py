"""Evaluation by onnxruntime, with the weights where training keeps them.

What is deployed is not what trained: another engine computes it. So the first batch is computed by
both and compared, and where they differ, the first node that differs is named. Where onnxruntime is
not installed, or has no kernel for something, the module that trains evaluates as well.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np
import torch
from onnx import ModelProto

from unified_ipu.errors import ContractError
from unified_ipu_onnx.deployed import deployed, draws_in_inference, size_of
from unified_ipu_onnx.errors import NAME
from unified_ipu_onnx.module import GraphModule
from unified_ipu_onnx.values import put_values
from unified_ipu_onnx.writing import LIMIT

RELATIVE = 1e-4
"""Of the largest output: float32 sums in another order differ by some 1e-6."""

logger = logging.getLogger("unified_ipu.onnx")


class Inference:
    """Called as the module is, and answers as it does; onnxruntime computes.

    Attributes of the module are its attributes, so that objectives may read weights.

    Args:
        module: What trains.
        proto: The model it was made from.
        base_dir: Folder of the model's data.
        is_first: Whether this rank says when torch evaluates instead.
    """

    def __init__(
        self,
        module: GraphModule,
        proto: ModelProto,
        base_dir: Optional[Path],
        *,
        is_first: bool = True,
    ) -> None:
        self._module = module
        self._proto = proto
        self._base_dir = base_dir
        self._is_first = is_first
        self._session: Any = None
        self._is_ready = False
        self._is_compared = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def __call__(self, *args: torch.Tensor, **kwargs: torch.Tensor) -> Any:
        """Outputs as ``GraphModule.forward`` returns them.

        Raises:
            ContractError: If onnxruntime and the module differ on the first batch.
        """
        if not self._is_ready:
            self._session = self._start()
            self._is_ready = True
        feeds = dict(zip(self._module.input_names, args))
        feeds.update(kwargs)
        if self._session is None or set(feeds) != set(self._module.input_names):
            return self._module(*args, **kwargs)  # which says what is missing
        try:
            values = self._run(self._session, feeds, self._module.output_names)
        except Exception as error:  # noqa: BLE001  its own classes, different from version to version
            result = self._module(*args, **kwargs)  # or it is the batch that is wrong
            self._without(f"onnxruntime cannot run this batch ({error})")
            self._session = None
            return result
        if not self._is_compared:
            self._compare(feeds, values)
            self._is_compared = True
        if len(values) == 1:
            return values[0]
        return dict(zip(self._module.output_names, values))

    def _start(self) -> Any:
        weights = self._weights()
        try:
            import onnxruntime
        except ImportError:
            return self._without(
                "onnxruntime is not installed (pip install 'unified-ipu[onnx]' brings it)"
            )
        if any(tensor.device.type != "cpu" for tensor in weights.values()):
            return None  # copying weights to the host each time would cost more than it gives
        if draws_in_inference(self._proto):
            return self._without("the graph draws random numbers, which only torch can key")
        proto = deployed(self._proto, list(weights), base_dir=self._base_dir)
        if size_of(proto) > LIMIT:
            return self._without("the constants of the graph are too large for onnxruntime")
        try:
            return _session_of(onnxruntime, proto)
        except Exception as error:  # noqa: BLE001  its own classes, different from version to version
            return self._without(f"onnxruntime cannot run this graph ({error})")

    def _without(self, why: str) -> None:
        if self._is_first:
            logger.warning("%s: evaluation runs the graph with torch, as training does", why)

    def _weights(self) -> Dict[str, torch.Tensor]:
        tensors = {**dict(self._module.named_parameters()), **dict(self._module.named_buffers())}
        names = self._module.initializer_names
        return {names[own]: tensor for own, tensor in tensors.items() if own in names}

    def _run(
        self, session: Any, feeds: Mapping[str, torch.Tensor], outputs: Sequence[str]
    ) -> List[torch.Tensor]:
        types = {value.name: value.type for value in session.get_inputs()}
        given = {**self._weights(), **feeds}
        arrays = {name: _array(given[name], kind) for name, kind in types.items()}
        return [torch.from_numpy(value) for value in session.run(list(outputs), arrays)]

    def _compare(self, feeds: Mapping[str, torch.Tensor], values: Sequence[torch.Tensor]) -> None:
        names = self._module.output_names
        own = self._module.run(feeds, names)
        for name, value in zip(names, values):
            difference = largest_difference(own[name], value)
            if difference > RELATIVE:
                where = self._first_difference(feeds) or f"in output {name!r}"
                raise ContractError(
                    NAME,
                    f"onnxruntime and the training forward differ {where}; the largest difference "
                    f"of output {name!r} is {difference:.2g} of its largest value, expected at "
                    f"most {RELATIVE:g}. Report the node: one of the two computes it wrongly",
                )

    def _first_difference(self, feeds: Mapping[str, torch.Tensor]) -> Optional[str]:
        """Say where, by running a copy of the graph that gives out every value."""
        import onnxruntime

        own = self._module.run(feeds, self._module.computed_names())
        nodes: List[Tuple[Any, List[str]]] = [
            (node, [name for name in node.output if isinstance(own.get(name), torch.Tensor)])
            for node in self._proto.graph.node
        ]
        outputs = set(self._module.output_names)
        asked = [name for _, names in nodes for name in names if name not in outputs]
        proto = deployed(self._proto, list(self._weights()), base_dir=self._base_dir, exposed=asked)
        session = _session_of(onnxruntime, proto)
        names = [value.name for value in session.get_outputs()]
        theirs = dict(zip(names, self._run(session, feeds, names)))
        for node, found in nodes:
            for name in found:
                if name in theirs and largest_difference(own[name], theirs[name]) > RELATIVE:
                    return f"first at node {node.name or name!r} ({node.op_type}), value {name!r}"
        return None


def run_deployed(
    proto: ModelProto, values: Mapping[str, torch.Tensor], feeds: Mapping[str, torch.Tensor]
) -> List[torch.Tensor]:
    """Outputs of a model once, from onnxruntime, or from our module where it cannot.

    Args:
        proto: The model.
        values: Of initializers, instead of the model's own.
        feeds: Inputs by name.
    """
    names = [value.name for value in proto.graph.output]
    try:
        import onnxruntime

        session = _session_of(onnxruntime, deployed(proto, list(values)))
        arrays = {name: tensor.cpu().numpy() for name, tensor in {**values, **feeds}.items()}
        wanted = {value.name for value in session.get_inputs()}
        found = session.run(names, {n: array for n, array in arrays.items() if n in wanted})
        return [torch.from_numpy(array) for array in found]
    except Exception:  # noqa: BLE001  not installed, or no kernel, by classes of its own
        copied = ModelProto()
        copied.CopyFrom(proto)
        put_values(copied, values)
        module = GraphModule.from_model(copied).eval()
        with torch.no_grad():
            by_name = module.run(feeds, names)
        return [by_name[name] for name in names]


def _array(tensor: torch.Tensor, kind: str) -> Any:
    """Memory of a tensor for an input of that type; indices may be narrower than the graph says."""
    array = tensor.detach().numpy()
    return array.astype(np.int64) if array.dtype == np.int32 and kind == "tensor(int64)" else array


def _session_of(onnxruntime: Any, proto: ModelProto) -> Any:
    options = onnxruntime.SessionOptions()
    # This rank's share of the host's cores, which torch was told; waiting threads must not spin.
    options.intra_op_num_threads = torch.get_num_threads()
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def largest_difference(own: torch.Tensor, theirs: torch.Tensor) -> float:
    """Largest difference as a share of the largest value; infinite if shapes differ."""
    if own.shape != theirs.shape:
        return float("inf")
    if not own.is_floating_point() or not own.numel():
        return 0.0  # whole numbers follow from compared ones, or are ties
    expected, found = own.detach().double(), theirs.double()
    if not torch.equal(torch.isfinite(expected), torch.isfinite(found)):
        return float("inf")
    finite = torch.isfinite(expected)
    largest = float(expected[finite].abs().max()) if finite.any() else 0.0
    gap = float((expected - found)[finite].abs().max()) if finite.any() else 0.0
    return gap / largest if largest > 0.0 else gap
