"""``poptorch.optim``: torch's optimizers with the settings that the device needs besides.

Settings only: an executor computes the updates from ``optimizer_attributes``.

Source: PopTorch 3.4, ``python/optim.py``; the order of arguments is that of torch 2.0 with the
extra ones behind.
"""

from __future__ import annotations

from typing import Any, Iterable, List, Optional, Tuple

import torch

from unified_ipu_torch.emulated.poptorch.lamb import LAMB as LAMB
from unified_ipu_torch.emulated.poptorch.log import logger
from unified_ipu_torch.emulated.poptorch.optimizer_setup import (
    ACCUM,
    FIRST,
    SECOND,
    given_of,
    of_parent,
    set_extras,
)
from unified_ipu_torch.emulated.poptorch.variable_attributes import (
    Optimizer as Optimizer,
    VariableAttributes as VariableAttributes,
)


class SGD(Optimizer, torch.optim.SGD):
    """Stochastic gradient descent.

    Args:
        params: Parameters or groups of them, as for torch.
        lr: Learning rate; has to be given.
        momentum: As torch's.
        dampening: As torch's.
        weight_decay: As torch's.
        nesterov: As torch's.
        maximize: Kept; the device does not know it.
        foreach: Kept; the device does not know it.
        differentiable: Kept; the device does not know it.
        loss_scaling: The loss is multiplied by it, the gradient divided.
        velocity_scaling: With combined accumulators only.
        use_combined_accum: Gradients are accumulated into the velocity.
        accum_type: dtype of gradient sums, float32 or float16.
        velocity_accum_type: dtype of the velocity.
        max_grad_norm: Clip the global norm of all gradients to it.
    """

    _child_vars: List[str] = ["loss_scaling"]  # noqa: RUF012  # as the SDK's
    _child_only: List[str] = [  # noqa: RUF012  # as the SDK's
        "loss_scaling",
        "velocity_scaling",
        "use_combined_accum",
        ACCUM,
        "velocity_accum_type",
        "max_grad_norm",
    ]
    _group_vars: List[str] = [  # noqa: RUF012  # as the SDK's
        "lr",
        "momentum",
        "dampening",
        "weight_decay",
        "nesterov",
        "velocity_scaling",
    ]

    def __init__(  # noqa: PLR0917  # the SDK's order
        self,
        params: Iterable[Any],
        lr: float,
        momentum: Optional[float] = None,
        dampening: Optional[float] = None,
        weight_decay: Optional[float] = None,
        nesterov: Optional[bool] = None,
        maximize: Optional[bool] = None,
        foreach: Optional[bool] = None,
        differentiable: Optional[bool] = None,
        loss_scaling: Optional[float] = None,
        velocity_scaling: Optional[float] = None,
        use_combined_accum: Optional[bool] = None,
        accum_type: Optional[torch.dtype] = None,
        velocity_accum_type: Optional[torch.dtype] = None,
        max_grad_norm: Optional[float] = None,
    ) -> None:
        given = given_of(locals())
        Optimizer.__init__(self)
        torch.optim.SGD.__init__(self, params, **of_parent(self, given))
        if use_combined_accum:
            scaling = given.get("velocity_scaling", 1.0)
            self.defaults["velocity_scaling"] = scaling
            for group in self.param_groups:
                group.setdefault("velocity_scaling", scaling)
        elif velocity_scaling is not None:
            logger.warning(
                "velocity_scaling value ignored when using the separate variant "
                "(use_combined_accum=False)"
            )
        set_extras(self, given)


class Adam(Optimizer, torch.optim.Adam):
    """Adam; weight decay is added to the gradient.

    Args:
        params: Parameters or groups of them, as for torch.
        lr: Learning rate.
        betas: As torch's.
        eps: As torch's.
        weight_decay: As torch's.
        amsgrad: Refused when compiled.
        foreach: Kept; the device does not know it.
        maximize: Kept; the device does not know it.
        capturable: Kept; the device does not know it.
        differentiable: Kept; the device does not know it.
        fused: Kept; the device does not know it.
        loss_scaling: The loss is multiplied by it, the gradient divided.
        accum_type: dtype of gradient sums, float32 or float16.
        first_order_momentum_accum_type: dtype of the first moment.
        second_order_momentum_accum_type: dtype of the second moment.
        max_grad_norm: Clip the global norm of all gradients to it.
    """

    _child_vars: List[str] = ["loss_scaling"]  # noqa: RUF012  # as the SDK's
    _child_only: List[str] = [  # noqa: RUF012  # as the SDK's
        "loss_scaling",
        ACCUM,
        FIRST,
        SECOND,
        "max_grad_norm",
    ]
    _group_vars: List[str] = [  # noqa: RUF012  # as the SDK's
        "lr",
        "betas",
        "eps",
        "weight_decay",
        "amsgrad",
    ]

    def __init__(  # noqa: PLR0917  # the SDK's order
        self,
        params: Iterable[Any],
        lr: Optional[float] = None,
        betas: Optional[Tuple[float, float]] = None,
        eps: Optional[float] = None,
        weight_decay: Optional[float] = None,
        amsgrad: Optional[bool] = None,
        foreach: Optional[bool] = None,
        maximize: Optional[bool] = None,
        capturable: Optional[bool] = None,
        differentiable: Optional[bool] = None,
        fused: Optional[bool] = None,
        loss_scaling: Optional[float] = None,
        accum_type: Optional[torch.dtype] = None,
        first_order_momentum_accum_type: Optional[torch.dtype] = None,
        second_order_momentum_accum_type: Optional[torch.dtype] = None,
        max_grad_norm: Optional[float] = None,
    ) -> None:
        given = given_of(locals())
        Optimizer.__init__(self)
        torch.optim.Adam.__init__(self, params, **of_parent(self, given))
        set_extras(self, given)


class AdamW(Optimizer, torch.optim.AdamW):
    """Adam with decoupled weight decay.

    Args:
        params: Parameters or groups of them, as for torch.
        lr: Learning rate.
        betas: As torch's.
        eps: As torch's.
        weight_decay: As torch's.
        amsgrad: Refused when compiled.
        maximize: Kept; the device does not know it.
        foreach: Kept; the device does not know it.
        capturable: Kept; the device does not know it.
        differentiable: Kept; the device does not know it.
        fused: Kept; the device does not know it.
        loss_scaling: The loss is multiplied by it, the gradient divided.
        bias_correction: Divide the moments by what they miss at the start.
        accum_type: dtype of gradient sums, float32 or float16.
        first_order_momentum_accum_type: dtype of the first moment.
        second_order_momentum_accum_type: dtype of the second moment.
        max_grad_norm: Clip the global norm of all gradients to it.
    """

    _child_vars: List[str] = ["loss_scaling"]  # noqa: RUF012  # as the SDK's
    _child_only: List[str] = [  # noqa: RUF012  # as the SDK's
        "loss_scaling",
        "bias_correction",
        ACCUM,
        FIRST,
        SECOND,
        "max_grad_norm",
    ]
    _group_vars: List[str] = [  # noqa: RUF012  # as the SDK's
        "lr",
        "betas",
        "weight_decay",
        "eps",
        "amsgrad",
    ]

    def __init__(  # noqa: PLR0917  # the SDK's order
        self,
        params: Iterable[Any],
        lr: Optional[float] = None,
        betas: Optional[Tuple[float, float]] = None,
        eps: Optional[float] = None,
        weight_decay: Optional[float] = None,
        amsgrad: Optional[bool] = None,
        maximize: Optional[bool] = None,
        foreach: Optional[bool] = None,
        capturable: Optional[bool] = None,
        differentiable: Optional[bool] = None,
        fused: Optional[bool] = None,
        loss_scaling: Optional[float] = None,
        bias_correction: Optional[bool] = None,
        accum_type: Optional[torch.dtype] = None,
        first_order_momentum_accum_type: Optional[torch.dtype] = None,
        second_order_momentum_accum_type: Optional[torch.dtype] = None,
        max_grad_norm: Optional[float] = None,
    ) -> None:
        given = given_of(locals())
        Optimizer.__init__(self)
        torch.optim.AdamW.__init__(self, params, **of_parent(self, given))
        set_extras(self, given)


class RMSprop(Optimizer, torch.optim.RMSprop):
    """RMSprop; weight decay is added to the gradient.

    Args:
        params: Parameters or groups of them, as for torch.
        lr: Learning rate.
        alpha: As torch's.
        eps: As torch's.
        weight_decay: As torch's.
        momentum: As torch's.
        centered: As torch's; the same in all groups.
        foreach: Kept; the device does not know it.
        maximize: Kept; the device does not know it.
        differentiable: Kept; the device does not know it.
        loss_scaling: The loss is multiplied by it, the gradient divided.
        accum_type: dtype of gradient sums, float32 or float16.
        first_order_momentum_accum_type: dtype of the velocity.
        second_order_momentum_accum_type: dtype of the squared average.
        use_tf_variant: Compute as TensorFlow does.
    """

    _child_vars: List[str] = ["loss_scaling"]  # noqa: RUF012  # as the SDK's
    _child_only: List[str] = [  # noqa: RUF012  # as the SDK's
        "loss_scaling",
        ACCUM,
        FIRST,
        SECOND,
        "use_tf_variant",
    ]
    _group_vars: List[str] = [  # noqa: RUF012  # as the SDK's
        "lr",
        "momentum",
        "weight_decay",
        "alpha",
        "eps",
        "centered",
    ]

    def __init__(  # noqa: PLR0917  # the SDK's order
        self,
        params: Iterable[Any],
        lr: Optional[float] = None,
        alpha: Optional[float] = None,
        eps: Optional[float] = None,
        weight_decay: Optional[float] = None,
        momentum: Optional[float] = None,
        centered: Optional[bool] = None,
        foreach: Optional[bool] = None,
        maximize: Optional[bool] = None,
        differentiable: Optional[bool] = None,
        loss_scaling: Optional[float] = None,
        accum_type: Optional[torch.dtype] = None,
        first_order_momentum_accum_type: Optional[torch.dtype] = None,
        second_order_momentum_accum_type: Optional[torch.dtype] = None,
        use_tf_variant: Optional[bool] = None,
    ) -> None:
        given = given_of(locals())
        Optimizer.__init__(self)
        torch.optim.RMSprop.__init__(self, params, **of_parent(self, given))
        set_extras(self, given)
