"""Which adapters the ranks compiled with, and what a world of several of them asks for.

Such a mixed world trains one model, written once in each framework: every update reduces the
gradients of all ranks. So the ranks must agree on names and axes of the tensors, and on arithmetic
that frameworks do differently each in its own optimizer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, List, Mapping, Optional, Tuple, Union

from unified_ipu.adapter import Device, Executor, Job, Replica, optim
from unified_ipu.comms import Communicator
from unified_ipu.engine import RenamedReplica
from unified_ipu.errors import ConfigError, PlanError


@dataclass(frozen=True)
class Mix:
    """The adapters of all ranks.

    Args:
        adapters: By rank.
        is_renamed: Whether a rank gave ``names=``.
    """

    adapters: Tuple[str, ...]
    is_renamed: bool = False

    @property
    def is_mixed(self) -> bool:
        """Whether there is more than one adapter."""
        return len(set(self.adapters)) > 1

    def named(self, rank: int) -> str:
        """How messages call a rank."""
        return f"rank {rank} ({self.adapters[rank]})"


def agree_on_mix(job: Job, *, adapter: str, communicator: Communicator) -> Mix:
    """Tell all ranks each one's adapter; collective.

    Raises:
        ConfigError: On all ranks, if optimizers differ between ranks (settings of ``ui.optim``,
            kinds of others), or if adapters differ and a rank has one of its framework.
    """
    optimizer = job.optimizer
    is_ours = isinstance(optimizer, (optim.SGD, optim.Adam))
    mine = [
        adapter,
        None if optimizer is None else (repr(optimizer) if is_ours else type(optimizer).__name__),
        is_ours or optimizer is None,
        None if job.schedule is None else type(job.schedule).__name__,
        job.names is not None,
    ]
    everyone: List[Any] = communicator.all_gather_value(mine)
    mix = Mix(
        tuple(str(theirs[0]) for theirs in everyone),
        is_renamed=any(bool(theirs[4]) for theirs in everyone),
    )
    if mix.is_mixed:
        _check_no_native(mix, everyone)
    _check_same_optimizer(mix, everyone)
    return mix


def _check_no_native(mix: Mix, everyone: List[Any]) -> None:
    for rank, (_, optimizer, is_ours, schedule, _) in enumerate(everyone):
        native = f"optimizer {optimizer}" if not is_ours else schedule and f"schedule {schedule}"
        if native:
            raise ConfigError(
                f"{mix.named(rank)} has the {native} of its framework, but the ranks use "
                f"{_adapters(mix)}, which do that arithmetic each in its own way; give every rank "
                "the same ui.optim.SGD, Adam or AdamW, and a callable as schedule"
            )


def _check_same_optimizer(mix: Mix, everyone: List[Any]) -> None:
    first = _trained_by(everyone[0])
    for rank, told in enumerate(everyone):
        theirs = _trained_by(told)
        if theirs != first:
            raise ConfigError(
                f"{mix.named(0)} has the optimizer {first}, {mix.named(rank)} {theirs}; give every "
                "rank the same with the same settings"
            )


def _trained_by(told: List[Any]) -> str:
    _, optimizer, is_ours, schedule, _ = told
    name = str(optimizer) if is_ours else f"{optimizer} of its framework"
    return f"{name} with the schedule {schedule}" if schedule else name


def under_canonical_names(
    replica: Replica, names: Optional[Mapping[str, Any]], mix: Mix, communicator: Communicator
) -> RenamedReplica:
    """Wrap a replica so that all ranks speak of the same tensors; collective.

    Args:
        replica: What this rank's adapter built.
        names: As ``compile`` was given them.
        mix: Of all ranks.
        communicator: Of all replicas.

    Raises:
        ConfigError: If the names do not fit, or if adapters differ and a model runs collectives
            of its own.
    """
    renamed = RenamedReplica(replica, {} if names is None else names)
    buffers = {spec.name: spec.sync for spec in renamed.tensors() if spec.role == "buffer"}
    everyone = communicator.all_gather_value(
        [renamed.axes, list(buffers), renamed.holds_collectives]
    )
    renamed.is_transposed = any(theirs[0] != everyone[0][0] for theirs in everyone)
    if mix.is_mixed:
        for rank, theirs in enumerate(everyone):
            if theirs[2]:
                raise ConfigError(
                    f"the model of {mix.named(rank)} runs collectives in forward, as synchronised "
                    f"batch norm does, but the ranks use {_adapters(mix)}; others cannot take "
                    "part: use layers without collectives"
                )
        # A counter of batches, say, or a constant that another framework does not keep. Running
        # statistics are no such thing: without them a rank evaluates another model.
        shared = set(buffers).intersection(*(theirs[1] for theirs in everyone))
        renamed.keep_private(
            [name for name, sync in buffers.items() if sync == "first" and name not in shared]
        )
    return renamed


def check_can_rename(built: Union[Executor, Device], mix: Mix) -> None:
    """Refuse ``names=`` and mixed worlds for what runs whole calls on a device.

    Raises:
        PlanError: If a rank gave names or the ranks' adapters differ.
    """
    if mix.is_mixed or mix.is_renamed:
        raise PlanError(
            f"a {type(built).__name__} runs whole calls on its device; names= and ranks with "
            f"several adapters ({_adapters(mix)}) are built for host targets only: set target = "
            '"cpu" or "cuda"'
        )


def refuse_mixed(mix: Mix, what: str, instead: str) -> None:
    """Refuse what is not built where adapters differ.

    Raises:
        ConfigError: If they do.
    """
    if mix.is_mixed:
        raise ConfigError(
            f"{what} is not built for ranks with several adapters ({_adapters(mix)}); {instead}"
        )


def _adapters(mix: Mix) -> str:
    return ", ".join(sorted(set(mix.adapters)))
