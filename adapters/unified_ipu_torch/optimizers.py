"""Optimizers and schedulers: ``ui.optim`` made native, native ones checked, rates for one call."""

from __future__ import annotations

import inspect
from contextlib import contextmanager
from typing import Any, Dict, Iterator, List, Mapping

import torch

from unified_ipu.adapter import choose_trainable, optim
from unified_ipu.errors import ConfigError

_HALF = (torch.float16, torch.bfloat16)


def build_optimizer(
    settings: Any, parameters: Mapping[str, torch.nn.Parameter], trainable: Any
) -> Any:
    """Return the torch optimizer for what ``compile`` was given.

    Args:
        settings: A torch optimizer, a value of ``ui.optim``, or None.
        parameters: Those of the model by name, tied ones once.
        trainable: As ``choose_trainable``.

    Returns:
        A torch optimizer, or None for evaluation only.

    Raises:
        ConfigError: If the optimizer cannot be driven, or does not fit the model.
    """
    if settings is None:
        return None
    if isinstance(settings, (optim.SGD, optim.Adam)):
        with_gradient = [name for name, p in parameters.items() if p.requires_grad]
        names = choose_trainable(trainable, with_gradient)
        if not names:
            raise ConfigError("the model has no parameter that requires a gradient")
        return _native(settings, [parameters[name] for name in names])
    if not isinstance(settings, torch.optim.Optimizer):
        raise ConfigError(
            f"optimizer is a {type(settings).__qualname__}; expected a torch.optim optimizer or "
            "one of unified_ipu.optim"
        )
    if trainable is not None:
        raise ConfigError(
            "trainable= goes with unified_ipu.optim; a torch optimizer trains the parameters it "
            "was given: leave trainable= out"
        )
    _check_native(settings, parameters)
    return settings


def _native(settings: Any, parameters: List[torch.nn.Parameter]) -> torch.optim.Optimizer:
    keywords: Dict[str, Any] = {"lr": settings.lr, "weight_decay": settings.weight_decay}
    if isinstance(settings, optim.SGD):
        kind: Any = torch.optim.SGD
        keywords.update(
            momentum=settings.momentum, dampening=settings.dampening, nesterov=settings.nesterov
        )
    else:
        kind = torch.optim.AdamW if isinstance(settings, optim.AdamW) else torch.optim.Adam
        keywords.update(betas=tuple(settings.betas), eps=settings.eps)
    try:
        fused: torch.optim.Optimizer = kind(parameters, fused=True, **keywords)
    except (RuntimeError, TypeError, ValueError):  # not in this torch, or not for this device
        plain: torch.optim.Optimizer = kind(parameters, foreach=True, **keywords)
        return plain
    return fused


def _check_native(
    optimizer: torch.optim.Optimizer, parameters: Mapping[str, torch.nn.Parameter]
) -> None:
    kind = type(optimizer).__name__
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise ConfigError(
            f"{kind} evaluates the loss several times a step, which an update over replicas "
            "cannot do; use SGD, Adam or AdamW"
        )
    if isinstance(optimizer, torch.optim.SparseAdam):
        raise ConfigError("SparseAdam needs sparse gradients, ours are dense; use Adam")
    known = {id(p) for p in parameters.values()}
    strangers = [
        list(p.shape)
        for group in optimizer.param_groups
        for p in group["params"]
        if id(p) not in known
    ]
    if strangers:
        raise ConfigError(
            f"the optimizer has {len(strangers)} parameter(s) that the model does not, of shapes "
            f"{', '.join(map(str, strangers[:5]))}; make it from parameters of the compiled model, "
            "after the model got its final parameters"
        )


def follow_parameters(optimizer: torch.optim.Optimizer) -> None:
    """Move state that lies where its parameter was before the model moved to its device.

    Counters and other tensors of another shape stay where torch put them.
    """
    for parameter, state in optimizer.state.items():
        for slot, value in state.items():
            if (
                isinstance(value, torch.Tensor)
                and value.shape == parameter.shape
                and value.ndim
                and value.device != parameter.device
            ):
                state[slot] = value.to(parameter.device)


def check_parameters(parameters: Mapping[str, torch.nn.Parameter]) -> None:
    """Refuse parameters that cannot be trained as they are.

    Args:
        parameters: The trained ones by name.

    Raises:
        ConfigError: If one is complex, has half precision or no memory.
    """
    for name, parameter in parameters.items():
        if parameter.device.type == "meta":
            raise ConfigError(f"parameter {name!r} is on the meta device; give it memory first")
        if not parameter.is_floating_point():
            raise ConfigError(
                f"parameter {name!r} has dtype {parameter.dtype}; gradients are reduced as real "
                "numbers: keep real and imaginary part in one real parameter, and use "
                "torch.view_as_complex in forward"
            )
        if parameter.dtype in _HALF:
            raise ConfigError(
                f"parameter {name!r} has dtype {parameter.dtype}; keep parameters in float32, they "
                "are the master weights (precision.compute sets the type of forward)"
            )


def check_schedule(schedule: Any, optimizer: Any, *, was_given: bool) -> None:
    """Refuse a scheduler that cannot be stepped by updates.

    Args:
        schedule: Of torch, or None.
        optimizer: The native optimizer, or None.
        was_given: Whether the user made the optimizer.

    Raises:
        ConfigError: If it is no scheduler of this optimizer.
    """
    if schedule is None:
        return
    schedulers = torch.optim.lr_scheduler
    if isinstance(schedule, schedulers.ReduceLROnPlateau):
        raise ConfigError(
            "ReduceLROnPlateau needs a metric at every step; pass schedule= a callable, or change "
            "the rate in a callback"
        )
    if not isinstance(schedule, schedulers.LRScheduler):
        raise ConfigError(
            f"schedule is a {type(schedule).__qualname__}; expected a scheduler of "
            "torch.optim.lr_scheduler or a callable(update) -> factor"
        )
    if not was_given or getattr(schedule, "optimizer", optimizer) is not optimizer:
        raise ConfigError(
            "the scheduler belongs to another optimizer than the one compiled; make it from the "
            "same torch optimizer (with unified_ipu.optim, pass a callable(update) -> factor)"
        )


@contextmanager
def scaled_rates(optimizer: torch.optim.Optimizer, factor: float) -> Iterator[None]:
    """Multiply every group's rate inside, put the same objects back afterwards.

    Without putting them back, schedulers that chain on the current rate would compound the factor.
    """
    if factor == 1.0:
        yield
        return
    rates = [group["lr"] for group in optimizer.param_groups]
    try:
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] * factor
        yield
    finally:
        for group, rate in zip(optimizer.param_groups, rates):
            group["lr"] = rate
