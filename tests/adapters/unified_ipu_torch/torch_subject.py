"""The torch adapter's models for the conformance suites."""

from __future__ import annotations

from typing import Any, Dict, Mapping, Optional, Sequence, Tuple

import numpy as np
import torch

from unified_ipu.adapter import Loss, optim
from unified_ipu.testing import Model

DTYPES = {"float32": torch.float32, "float64": torch.float64}


def linear(weight: Any, bias: Optional[Any], dtype: str) -> torch.nn.Linear:
    weight = np.asarray(weight)
    inputs, outputs = weight.shape
    layer = torch.nn.Linear(inputs, outputs, bias=bias is not None, dtype=DTYPES[dtype])
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(weight.T.copy()))
        if bias is not None:
            layer.bias.copy_(torch.tensor(np.asarray(bias)))
    return layer


def parameter(value: float) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.tensor([value], dtype=torch.float64))


class Branches(torch.nn.Module):
    def __init__(self, a: float, b: float, c: float, frozen: float) -> None:
        super().__init__()
        self.a, self.b, self.c = parameter(a), parameter(b), parameter(c)
        self.frozen = parameter(frozen)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chosen = self.b if bool(x[0, 1]) else self.a
        return x[:, :1] * chosen + self.frozen


class Scale(torch.nn.Module):
    def __init__(self, weight: torch.nn.Parameter) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


class Tied(torch.nn.Module):
    def __init__(self, value: float) -> None:
        super().__init__()
        self.first = Scale(parameter(value))
        self.second = Scale(self.first.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scaled: torch.Tensor = self.second(self.first(x))
        return scaled


class TorchSubject:
    """See ``unified_ipu.testing.Subject``."""

    adapter = "torch"

    def linear(self, weight: Any, bias: Optional[Any] = None, *, dtype: str = "float64") -> Model:
        names = {"weight": "weight"} if bias is None else {"weight": "weight", "bias": "bias"}
        return Model(linear(weight, bias, dtype), names, frozenset({"weight"}))

    def mlp(
        self, weights: Sequence[Any], biases: Sequence[Any], *, dtype: str = "float64"
    ) -> Model:
        layers: list = []
        for weight, bias in zip(weights, biases):
            layers += [linear(weight, bias, dtype), torch.nn.Tanh()]
        names = {f"weight.{k}": f"{2 * k}.weight" for k in range(len(weights))}
        transposed = frozenset(names)
        names.update({f"bias.{k}": f"{2 * k}.bias" for k in range(len(biases))})
        return Model(torch.nn.Sequential(*layers[:-1]), names, transposed)

    def branches(self, a: float, b: float, c: float, frozen: float) -> Model:
        names = {name: name for name in ("a", "b", "c", "frozen")}
        return Model(Branches(a=a, b=b, c=c, frozen=frozen), names)

    def dropout_probe(self, size: int, rate: float) -> Model:
        last = linear(np.zeros((size, 1)), None, "float64")
        native = torch.nn.Sequential(torch.nn.Dropout(rate), last)
        return Model(native, {"weight": "1.weight"}, frozenset({"weight"}))

    def normalised(self) -> Model:
        norm = torch.nn.BatchNorm1d(1, affine=False, dtype=torch.float64)
        native = torch.nn.Sequential(norm, linear(np.ones((1, 1)), None, "float64"))
        names = {"weight": "1.weight", "mean": "0.running_mean", "variance": "0.running_var"}
        return Model(native, names, frozenset({"weight"}))

    def tied(self, weight: float) -> Model:
        return Model(Tied(weight), {"weight": "first.weight", "twin": "second.weight"})

    def mean_squared_error(self, reduction: str = "mean") -> Any:
        return torch.nn.MSELoss(reduction=reduction)

    def cross_entropy(
        self,
        class_weights: Optional[Sequence[float]] = None,
        ignore_index: int = -100,
        reduction: str = "mean",
    ) -> Any:
        weight = None
        if class_weights is not None:
            weight = torch.tensor(class_weights, dtype=torch.float64)
        return torch.nn.CrossEntropyLoss(weight, ignore_index=ignore_index, reduction=reduction)

    def product_loss(self, reduction: str = "mean") -> Any:
        def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            rows = (outputs * targets).sum(dim=1)
            if reduction == "none":
                return rows
            return rows.mean() if reduction == "mean" else rows.sum()

        return loss

    def token_objective(self, penalty: float = 0.0) -> Any:
        def objective(model: torch.nn.Linear, batch: Mapping[str, torch.Tensor]) -> Loss:
            x, mask = batch["x"], batch["mask"]
            outputs = model(x.reshape(-1, 1)).reshape(x.shape)
            weight = mask.sum()
            total = (mask * outputs).sum() + weight * penalty * (model.weight**2).sum()
            return Loss(sum=total, weight=weight, metrics={"x": ((mask * x).sum(), weight)})

        return objective

    def native_optimizer(self, model: Model, settings: Any, rates: Mapping[str, float]) -> Any:
        named = dict(model.native.named_parameters())
        groups = [{"params": [named[model.names[n]]], "lr": rate} for n, rate in rates.items()]
        if isinstance(settings, optim.SGD):
            return torch.optim.SGD(
                groups, momentum=settings.momentum, weight_decay=settings.weight_decay
            )
        kind = torch.optim.AdamW if isinstance(settings, optim.AdamW) else torch.optim.Adam
        return kind(
            groups, betas=settings.betas, eps=settings.eps, weight_decay=settings.weight_decay
        )

    def native_schedule(self, optimizer: Any, factor: float) -> Any:
        return torch.optim.lr_scheduler.ExponentialLR(optimizer, factor)

    def tensors(self, tree: Any) -> Any:
        if isinstance(tree, dict):
            return {key: self.tensors(child) for key, child in tree.items()}
        if isinstance(tree, (tuple, list)):
            return type(tree)(self.tensors(child) for child in tree)
        return torch.tensor(tree)

    def read(self, model: Model) -> Dict[str, Any]:
        return {name: p.detach().numpy().copy() for name, p in model.native.named_parameters()}

    def random_state(self) -> Tuple[bytes, ...]:
        return (torch.get_rng_state().numpy().tobytes(),)
