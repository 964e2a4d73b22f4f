"""What the conformance kit tests this adapter with; imports torch only when a model is made."""

from __future__ import annotations

from typing import Any, ClassVar, Dict, Mapping, Optional, Sequence, Tuple

import numpy as np

from unified_ipu.adapter import Loss, optim
from unified_ipu.testing import Model

_HALF = "IPUs have no bfloat16, and float16 is not written for devices"


class TorchSubject:
    """See ``unified_ipu.testing.Subject``."""

    adapter = "torch"
    preload = ("torch",)
    device_dtype = "float32"
    device_limits: ClassVar[Mapping[str, str]] = {
        "test_l1_10_what_one_rank_uses_is_used_on_all": (
            "a compiled graph is static: Python cannot choose a branch by a value of the batch"
        ),
        "test_l5_*dampen*": "PopART damps the first gradient too, torch does not",
        "test_l5_3_fifty_updates_with_each_option_equal_the_oracle*momentum-decay*": (
            "its momentum is dampened: PopART damps the first gradient too"
        ),
        "test_l5_6_forward_rounds_and_weights_do_not": _HALF,
        "test_l5_1_weights_are_counted_exactly_in_half_precision": _HALF,
    }

    def linear(self, weight: Any, bias: Optional[Any] = None, *, dtype: str = "float64") -> Model:
        """``x @ weight + bias``."""
        from unified_ipu_torch.conformance_models import linear

        names = {"weight": "weight"} if bias is None else {"weight": "weight", "bias": "bias"}
        return Model(linear(weight, bias, dtype), names, frozenset({"weight"}))

    def mlp(
        self, weights: Sequence[Any], biases: Sequence[Any], *, dtype: str = "float64"
    ) -> Model:
        """Linear layers with tanh between."""
        from unified_ipu_torch.conformance_models import mlp

        names = {f"weight.{k}": f"{2 * k}.weight" for k in range(len(weights))}
        transposed = frozenset(names)
        names.update({f"bias.{k}": f"{2 * k}.bias" for k in range(len(biases))})
        return Model(mlp(weights, biases, dtype), names, transposed)

    def branches(
        self, a: float, b: float, c: float, frozen: float, *, dtype: str = "float64"
    ) -> Model:
        """Four parameters, of which a micro-batch uses two."""
        from unified_ipu_torch.conformance_models import Branches

        values = {"a": a, "b": b, "c": c, "frozen": frozen}
        return Model(Branches(values, dtype), {name: name for name in values})

    def dropout_probe(self, size: int, rate: float, *, dtype: str = "float64") -> Model:
        """``dropout(x) @ weight``."""
        import torch

        from unified_ipu_torch.conformance_models import linear

        last = linear(np.zeros((size, 1)), None, dtype)
        native = torch.nn.Sequential(torch.nn.Dropout(rate), last)
        return Model(native, {"weight": "1.weight"}, frozenset({"weight"}))

    def normalised(self, *, dtype: str = "float64") -> Model:
        """Batch normalisation of one feature, times ``weight``."""
        import torch

        from unified_ipu_torch.conformance_models import DTYPES, linear

        norm = torch.nn.BatchNorm1d(1, affine=False, dtype=DTYPES[dtype])
        native = torch.nn.Sequential(norm, linear(np.ones((1, 1)), None, dtype))
        names = {"weight": "1.weight", "mean": "0.running_mean", "variance": "0.running_var"}
        return Model(native, names, frozenset({"weight"}))

    def tied(self, weight: float, *, dtype: str = "float64") -> Model:
        """``x * weight * weight``."""
        from unified_ipu_torch.conformance_models import Tied

        return Model(Tied(weight, dtype), {"weight": "first.weight", "twin": "second.weight"})

    def mean_squared_error(self, reduction: str = "mean") -> Any:
        """``torch.nn.MSELoss``."""
        import torch

        return torch.nn.MSELoss(reduction=reduction)

    def cross_entropy(
        self,
        class_weights: Optional[Sequence[float]] = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        *,
        dtype: str = "float64",
    ) -> Any:
        """``torch.nn.CrossEntropyLoss``."""
        import torch

        from unified_ipu_torch.conformance_models import DTYPES

        weight = None
        if class_weights is not None:
            weight = torch.tensor(class_weights, dtype=DTYPES[dtype])
        return torch.nn.CrossEntropyLoss(weight, ignore_index=ignore_index, reduction=reduction)

    def product_loss(self, reduction: str = "mean") -> Any:
        """``outputs * targets`` summed over axis 1."""

        def loss(outputs: Any, targets: Any) -> Any:
            rows = (outputs * targets).sum(dim=1)
            if reduction == "none":
                return rows
            return rows.mean() if reduction == "mean" else rows.sum()

        return loss

    def token_objective(self, penalty: float = 0.0) -> Any:
        """The masked sum of ``x * weight``, and a penalty."""

        def objective(model: Any, batch: Mapping[str, Any]) -> Loss:
            x, mask = batch["x"], batch["mask"]
            outputs = model(x.reshape(-1, 1)).reshape(x.shape)
            weight = mask.sum()
            total = (mask * outputs).sum() + weight * penalty * (model.weight**2).sum()
            return Loss(sum=total, weight=weight, metrics={"x": ((mask * x).sum(), weight)})

        return objective

    def native_optimizer(self, model: Model, settings: Any, rates: Mapping[str, float]) -> Any:
        """A ``torch.optim`` optimizer with one group a rate."""
        import torch

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
        """``ExponentialLR``."""
        import torch

        return torch.optim.lr_scheduler.ExponentialLR(optimizer, factor)

    def tensors(self, tree: Any) -> Any:
        """Torch tensors of the arrays in a tree."""
        import torch

        if isinstance(tree, dict):
            return {key: self.tensors(child) for key, child in tree.items()}
        if isinstance(tree, (tuple, list)):
            return type(tree)(self.tensors(child) for child in tree)
        return torch.tensor(tree)

    def read(self, model: Model) -> Dict[str, Any]:
        """Parameters of the user's own model."""
        named = model.native.named_parameters()
        return {name: p.detach().cpu().numpy().copy() for name, p in named}

    def random_state(self) -> Tuple[bytes, ...]:
        """State of the global generator."""
        import torch

        return (torch.get_rng_state().numpy().tobytes(),)
