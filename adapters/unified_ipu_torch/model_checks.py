"""What a model must not be, and what its user should know about it before training."""

from __future__ import annotations

from typing import Any, List, Tuple

import torch
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.parameter import is_lazy

from unified_ipu.errors import ConfigError
from unified_ipu_torch.tensors import plain_name

_WRAPPERS = ("DistributedDataParallel", "DataParallel", "FullyShardedDataParallel")


def check_model(model: Any, num_replicas: int) -> None:
    """Refuse modules that reduce over ranks by themselves, or have no shapes yet.

    Args:
        model: The user's module.
        num_replicas: Over the world.

    Raises:
        ConfigError: Naming the wrapper, the layer or the tensor.
    """
    modules = dict(model.named_modules())
    for name, module in modules.items():
        kind = type(module).__name__
        if kind in _WRAPPERS:
            what = f"layer {name!r}" if name else "the model"
            raise ConfigError(
                f"{what} is wrapped in {kind}, which would reduce gradients a second time; pass "
                "the module inside it (model.module)"
            )
    _check_shapes(model)
    if num_replicas > 1:
        _check_norms(modules.items())


def _check_shapes(model: torch.nn.Module) -> None:
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if is_lazy(tensor):
            raise ConfigError(
                f"tensor {plain_name(name)!r} is lazy and has no shape yet; run one batch through "
                "the model before compile: with torch.no_grad(): model(x)"
            )


def _check_norms(modules: Any) -> None:
    holds_collectives = any(holds(module) for _, module in modules)
    for name, module in modules:
        if isinstance(module, torch.nn.SyncBatchNorm):
            raise ConfigError(
                f"layer {name!r} is a SyncBatchNorm, which needs process groups of torch that "
                "are not set up here; use unified_ipu_torch.convert_sync_batch_norm(model, "
                "session.communicator()), or BatchNorm, or run with mesh.data = 1"
            )
        if holds_collectives and isinstance(module, _BatchNorm) and not holds(module):
            raise ConfigError(
                f"layer {name!r} is a {type(module).__name__} beside layers that are synchronised "
                "over replicas, which also run on empty micro-batches, of which it has no "
                "statistics; convert it too: unified_ipu_torch.convert_sync_batch_norm"
            )


def holds(module: torch.nn.Module) -> bool:
    """Whether a module says that it runs collectives in forward."""
    return bool(getattr(module, "holds_collectives", False))


def layers_that_see_the_micro_batch(model: torch.nn.Module) -> Tuple[str, ...]:
    """Sentences about layers whose result depends on how rows are cut into micro-batches."""
    norms: List[str] = []
    synchronised: List[str] = []
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm) and module.training:
            (synchronised if holds(module) else norms).append(plain_name(name))
    drops = [
        plain_name(n) for n, m in model.named_modules() if isinstance(m, _DropoutNd) and m.p > 0
    ]
    notes = []
    if norms:
        notes.append(
            f"batch statistics are those of a micro-batch ({_listed(norms)}): results depend on "
            "batch.micro_batch_size"
        )
    if synchronised:
        notes.append(
            f"batch statistics are those of one micro-batch of each replica "
            f"({_listed(synchronised)}): results depend on batch.micro_batch_size times mesh.data"
        )
    if drops:
        notes.append(
            f"random layers are drawn for a micro-batch ({_listed(drops)}): masks depend on "
            "batch.micro_batch_size, not on the number of replicas"
        )
    return tuple(notes)


def _listed(names: Any) -> str:
    return f"{names[0]!r}" if len(names) == 1 else f"{names[0]!r} and {len(names) - 1} more"
