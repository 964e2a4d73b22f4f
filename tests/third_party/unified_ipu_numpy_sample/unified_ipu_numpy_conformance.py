"""The sample numpy adapter's models for the conformance suites."""

from __future__ import annotations

from typing import Any, Callable, ClassVar, Dict, Mapping, Optional, Sequence, Tuple

import numpy as np

from unified_ipu.adapter import Loss
from unified_ipu.testing import Model
from unified_ipu_numpy import Differentiable, MeanSquaredError, Mlp, Pass, SoftmaxCrossEntropy

Backward = Callable[[Any], Dict[str, Any]]


class Linear:
    """``x @ weight (+ bias)``, kept as ``[in, out]``."""

    def __init__(self, weight: Any, bias: Optional[Any], dtype: str) -> None:
        self.parameters: Dict[str, Any] = {"w": np.array(weight, dtype)}
        if bias is not None:
            self.parameters["b"] = np.array(bias, dtype)

    def forward(self, x: Any, rng: Optional[Any] = None) -> Tuple[Any, Backward]:
        del rng
        p = self.parameters
        x = np.asarray(x).astype(p["w"].dtype, copy=False)
        outputs = x @ p["w"]

        def backward(d: Any) -> Dict[str, Any]:
            found = {"w": x.T @ d}
            if "b" in p:
                found["b"] = d.sum(axis=0)
            return found

        return (outputs + p["b"] if "b" in p else outputs), backward


class Branches:
    """Uses a or b, always ``frozen``, and never c."""

    def __init__(self, **values: float) -> None:
        self.parameters = {name: np.array([value]) for name, value in values.items()}

    def forward(self, x: Any, rng: Optional[Any] = None) -> Tuple[Any, Backward]:
        del rng
        values, chosen = x[:, :1], "b" if x[0, 1] else "a"

        def backward(d: Any) -> Dict[str, Any]:
            return {
                chosen: (d * values).sum(keepdims=True).reshape(1),
                "frozen": d.sum(keepdims=True).reshape(1),
            }

        p = self.parameters
        return values * p[chosen] + p["frozen"], backward


class DropoutProbe:
    """``dropout(x) @ weight``."""

    def __init__(self, size: int, rate: float) -> None:
        self.parameters = {"w": np.zeros((size, 1))}
        self._rate = rate

    def forward(self, x: Any, rng: Optional[Any] = None) -> Tuple[Any, Backward]:
        if rng is not None:
            x = x * (rng.random(x.shape) >= self._rate) / (1.0 - self._rate)
        return x @ self.parameters["w"], lambda d: {"w": x.T @ d}


class NumpySubject:
    """See ``unified_ipu.testing.Subject``."""

    adapter = "numpy"
    threads = True
    device_limits: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(
            (
                "test_l1_8_clipping_comes_once_after_the_reduction",
                "test_l1_8_a_loss_scale_does_not_show",
                "test_l4_8_every_rank_has_the_same_bits_after_every_update",
                "test_l5_3_clipping_warm_up_and_scaling_equal_the_oracle",
            ),
            "the device of the sample does not clip (update.clip_norm)",
        ),
        **dict.fromkeys(
            (
                "test_l1_3_token_losses_are_divided_by_all_tokens",
                "test_l1_11_a_penalty_weighs_the_same_however_the_update_is_split",
                "test_an_objective_must_return_a_loss",
            ),
            "the device of the sample runs losses, no objectives",
        ),
    }

    def linear(self, weight: Any, bias: Optional[Any] = None, *, dtype: str = "float64") -> Model:
        names = {"weight": "w"} if bias is None else {"weight": "w", "bias": "b"}
        return Model(Linear(weight, bias, dtype), names)

    def mlp(
        self, weights: Sequence[Any], biases: Sequence[Any], *, dtype: str = "float64"
    ) -> Model:
        sizes = [np.shape(weights[0])[0], *(np.shape(weight)[1] for weight in weights)]
        native = Mlp(sizes, dtype=dtype, activation="tanh")
        names = {f"weight.{k}": f"{2 * k}.weight" for k in range(len(weights))}
        transposed = frozenset(names)
        names.update({f"bias.{k}": f"{2 * k}.bias" for k in range(len(biases))})
        model = Model(native, names, transposed)
        values = {f"weight.{k}": weight for k, weight in enumerate(weights)}
        values.update({f"bias.{k}": bias for k, bias in enumerate(biases)})
        for name, value in model.to_native(values).items():
            native.parameters[name][...] = value
        return model

    def branches(self, a: float, b: float, c: float, frozen: float) -> Model:
        names = {name: name for name in ("a", "b", "c", "frozen")}
        return Model(Branches(a=a, b=b, c=c, frozen=frozen), names)

    def dropout_probe(self, size: int, rate: float) -> Model:
        return Model(DropoutProbe(size, rate), {"weight": "w"})

    def normalised(self) -> Model:
        raise NotImplementedError

    def tied(self, weight: float) -> Model:
        raise NotImplementedError

    def mean_squared_error(self, reduction: str = "mean") -> Any:
        return MeanSquaredError(reduction)

    def cross_entropy(
        self,
        class_weights: Optional[Sequence[float]] = None,
        ignore_index: int = -100,
        reduction: str = "mean",
    ) -> Any:
        return SoftmaxCrossEntropy(reduction, class_weights, ignore_index)

    def product_loss(self, reduction: str = "mean") -> Any:
        def loss(outputs: Any, targets: Any) -> Tuple[Any, Any]:
            rows = (outputs * targets).sum(axis=1)
            if reduction == "none":
                return rows, targets
            divisor = len(outputs) if reduction == "mean" else 1
            return rows.sum() / divisor, targets / divisor

        return loss

    def token_objective(self, penalty: float = 0.0) -> Any:
        def objective(model: Pass, batch: Mapping[str, Any]) -> Loss:
            x, mask = batch["x"], batch["mask"]
            outputs, backward = model.forward(x.reshape(-1, 1))
            w, weight = model.parameters["w"], mask.sum()
            total = (mask.reshape(-1, 1) * outputs).sum() + weight * penalty * (w**2).sum()
            gradients = backward(mask.reshape(-1, 1))
            gradients["w"] = gradients["w"] + 2 * weight * penalty * w
            return Loss(
                sum=Differentiable(total, gradients),
                weight=weight,
                metrics={"x": ((mask * x).sum(), weight)},
            )

        return objective

    def native_optimizer(self, model: Model, settings: Any, rates: Mapping[str, float]) -> Any:
        raise NotImplementedError

    def native_schedule(self, optimizer: Any, factor: float) -> Any:
        raise NotImplementedError

    def tensors(self, tree: Any) -> Any:
        return tree

    def read(self, model: Model) -> Dict[str, Any]:
        return {name: np.array(value) for name, value in model.native.parameters.items()}

    def random_state(self) -> Tuple[bytes, ...]:
        return ()
