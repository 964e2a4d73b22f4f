"""Making the tensors of all ranks equal: at compile, and buffers before they are used or saved."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Dict, Iterator, List, Sequence

import numpy as np

from unified_ipu.adapter import Executor, TensorSpec
from unified_ipu.comms import Communicator
from unified_ipu.errors import ConfigError, ContractError
from unified_ipu.session.mixing import Mix

_SHOWN = 12


def agree_on_tensors(executor: Executor, communicator: Communicator, mix: Mix) -> None:
    """Give every rank the first rank's weights and buffers.

    Models built with different random numbers on each rank would never meet again, so this does
    not rely on seeds. Buffers that each rank has for itself (``sync`` is ``"none"``) do not count.

    Raises:
        ContractError: On all ranks, if the ranks' models differ in a name, shape or dtype.
        ConfigError: Instead, if the ranks' adapters differ: with what only one of them has.
    """
    if communicator.size == 1:
        return
    specs = [spec for spec in executor.tensors() if spec.role != "slot" and spec.sync != "none"]
    if mix.is_mixed:  # a second name of a tensor is the matter of one framework
        specs = [spec for spec in specs if spec.tied_to is None]
    mine = [[spec.name, list(spec.shape), spec.dtype, spec.trainable] for spec in specs]
    everyone = communicator.all_gather_value(mine)
    for rank, theirs in enumerate(everyone):
        if theirs == everyone[0]:
            continue
        if mix.is_mixed:
            raise ConfigError(_mixed_difference(mix, rank, everyone[0], theirs))
        raise ContractError(mix.adapters[0], _difference(rank, everyone[0], theirs))
    own = [spec for spec in specs if spec.tied_to is None]
    values = executor.read([spec.name for spec in own])
    for name in values:
        communicator.broadcast(values[name], root=0, out=values[name])
    executor.write(values)


def _difference(rank: int, first: List[Any], theirs: List[Any]) -> str:
    only_first = [entry for entry in first if entry not in theirs]
    only_theirs = [entry for entry in theirs if entry not in first]
    return (
        f"rank {rank} built another model than rank 0; only on rank 0: {only_first[:5]}, only on "
        f"rank {rank}: {only_theirs[:5]} (name, shape, dtype, trained). Build the same model with "
        "the same optimizer on every rank"
    )


def _mixed_difference(mix: Mix, rank: int, first: List[Any], theirs: List[Any]) -> str:
    only_first = [entry for entry in first if entry not in theirs]
    only_theirs = [entry for entry in theirs if entry not in first]
    return (
        f"{mix.named(rank)} has other tensors than {mix.named(0)}.\n"
        f"Only {mix.named(0)} has:{_lines(only_first)}\n"
        f"Only {mix.named(rank)} has:{_lines(only_theirs)}\n"
        "Map names and axes to common ones with compile(names=), for instance "
        '{"fc/kernel": ["fc.weight", "IO->OI"]}, and train the same tensors on every rank'
    )


def _lines(entries: List[Any]) -> str:
    lines = [
        f"\n  {name} {shape} {dtype}{', trained' if trained else ', not trained'}"
        for name, shape, dtype, trained in entries[:_SHOWN]
    ]
    if len(entries) > _SHOWN:
        lines.append(f"\n  and {len(entries) - _SHOWN} more")
    return "".join(lines) or " nothing"


def synchronised_buffers(
    executor: Executor, communicator: Communicator, specs: Sequence[TensorSpec]
) -> Dict[str, Any]:
    """Return the buffers as all ranks shall see them, by each one's ``sync`` rule; collective.

    ``"first"`` is the first rank's value. ``"mean"`` is the mean over the ranks that have trained:
    a replica that never had rows still holds the statistics of a new model.
    """
    moved = [spec for spec in specs if spec.role == "buffer" and spec.sync != "none"]
    values = executor.read([spec.name for spec in moved])
    counts = communicator.all_gather_value(bool(getattr(executor, "has_trained", True)))
    share = 1.0 / max(sum(counts), 1)
    for spec in moved:
        value = values[spec.name]
        is_mean = spec.sync == "mean" and np.issubdtype(value.dtype, np.floating)
        if is_mean and len(set(counts)) == 1:
            values[spec.name] = communicator.all_reduce(value, op="mean", name=spec.name)
        elif is_mean:
            mine = value * value.dtype.type(share if counts[communicator.rank] else 0.0)
            values[spec.name] = communicator.all_reduce(mine, name=spec.name)
        else:
            values[spec.name] = communicator.broadcast(value, root=0)
    return values


@contextmanager
def shared_buffers(executor: Executor, communicator: Communicator) -> Iterator[None]:
    """Evaluate with the same buffers on every rank, and give each rank its own back after."""
    specs = [spec for spec in executor.tensors() if spec.role == "buffer" and spec.sync != "none"]
    if communicator.size == 1 or not specs:
        yield
        return
    own = executor.read([spec.name for spec in specs])
    executor.write(synchronised_buffers(executor, communicator, specs))
    try:
        yield
    finally:
        executor.write(own)
