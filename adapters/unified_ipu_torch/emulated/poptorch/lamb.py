"""LAMB, which torch lacks: its settings, and a step on the host to compare with.

Source: PopTorch 3.4, ``python/optim.py`` (arguments); You et al. 2020, algorithm 2, with the norm
of the weights clipped (the arithmetic).
"""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple

import torch

from unified_ipu_torch.emulated.poptorch.optimizer_setup import (
    ACCUM,
    FIRST,
    SECOND,
    given_of,
    set_extras,
)
from unified_ipu_torch.emulated.poptorch.variable_attributes import Optimizer

MOST_WEIGHT_NORM = 65500.0


class LAMB(Optimizer, torch.optim.Optimizer):
    """Layer-wise adaptive moments.

    Args:
        params: Parameters or groups of them, as for torch.
        lr: Learning rate, 1e-3 by default.
        betas: 0.9 and 0.999 by default.
        eps: 1e-8 by default.
        weight_decay: 1e-2 by default, decoupled.
        bias_correction: Divide the moments by what they miss at the start.
        loss_scaling: The loss is multiplied by it, the gradient divided.
        max_weight_norm: The norm of the weights counts as at most this, 65500 by default.
        accum_type: dtype of gradient sums, float32 or float16.
        first_order_momentum_accum_type: dtype of the first moment.
        second_order_momentum_accum_type: dtype of the second moment.
    """

    _child_vars: List[str] = ["loss_scaling"]  # noqa: RUF012  # as the SDK's
    _child_only: List[str] = [  # noqa: RUF012  # as the SDK's
        "loss_scaling",
        "bias_correction",
        ACCUM,
        FIRST,
        SECOND,
    ]
    _group_vars: List[str] = [  # noqa: RUF012  # as the SDK's
        "lr",
        "weight_decay",
        "betas",
        "eps",
        "max_weight_norm",
    ]

    def __init__(  # noqa: PLR0917  # the SDK's order
        self,
        params: Iterable[Any],
        lr: Optional[float] = None,
        betas: Optional[Tuple[float, float]] = None,
        eps: Optional[float] = None,
        weight_decay: Optional[float] = None,
        bias_correction: Optional[bool] = None,
        loss_scaling: Optional[float] = None,
        max_weight_norm: Optional[float] = None,
        accum_type: Optional[torch.dtype] = None,
        first_order_momentum_accum_type: Optional[torch.dtype] = None,
        second_order_momentum_accum_type: Optional[torch.dtype] = None,
    ) -> None:
        given = given_of(locals())
        defaults = {
            "lr": 1e-3,
            "betas": (0.9, 0.999),
            "eps": 1e-8,
            "weight_decay": 1e-2,
            "max_weight_norm": MOST_WEIGHT_NORM,
        }
        groups = {name: given.get(name, value) for name, value in defaults.items()}
        Optimizer.__init__(self)
        torch.optim.Optimizer.__init__(self, params, groups)
        self.max_weight_norm = groups["max_weight_norm"]
        set_extras(self, given)

    def step(self, closure: Optional[Callable[[], float]] = None) -> Optional[float]:  # type: ignore[override]  # as the SDK's
        """Make one update on the host.

        Args:
            closure: Computes the loss, if given.

        Returns:
            The loss, if there is a closure.
        """
        loss = None if closure is None else closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)
        return loss

    @torch.no_grad()
    def _update(self, parameter: torch.Tensor, group: Dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["step"] = 0
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        state["step"] += 1
        first, second = state["exp_avg"], state["exp_avg_sq"]
        beta1, beta2 = group["betas"]
        gradient = parameter.grad
        first.lerp_(gradient, 1 - beta1)
        second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        missing1, missing2 = 1.0, 1.0
        if self.bias_correction:  # type: ignore[attr-defined]  # set from the table of extras
            missing1, missing2 = 1 - beta1 ** state["step"], 1 - beta2 ** state["step"]
        denominator = second.sqrt().div_(math.sqrt(missing2)).add_(group["eps"])
        update = (first / missing1).div_(denominator).add_(parameter, alpha=group["weight_decay"])
        weight_norm = float(parameter.norm().clamp(max=group["max_weight_norm"]))
        update_norm = float(update.norm())
        trust = weight_norm / update_norm if weight_norm and update_norm else 1.0
        parameter.sub_(update, alpha=group["lr"] * trust)
