"""Models whose tensors exist only after a first batch: built on all ranks before the first update.

A rank without rows must build the same tensors, so the form of the first batch (structure, dtypes,
shapes without rows) is told to all ranks; the values never are.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import Any

from unified_ipu.adapter import Call, Executor, Record
from unified_ipu.comms import Communicator
from unified_ipu.data import Loader
from unified_ipu.engine import HostExecutor, empty_like, form_of
from unified_ipu.errors import ConfigError
from unified_ipu.session.agreement import agree_on_tensors
from unified_ipu.session.mixing import Mix


class LateExecutor(HostExecutor):
    """A ``HostExecutor`` over a replica whose ``is_built`` is False at first.

    Args:
        mix: The adapters of all ranks.
        communicator: Of all replicas.
        arguments: As ``HostExecutor``.
    """

    def __init__(
        self, replica: Any, communicator: Communicator, *, mix: Mix, **arguments: Any
    ) -> None:
        super().__init__(replica, communicator, **arguments)
        self._late_replica = replica
        self._mix = mix
        self._ranks = communicator

    @property
    def is_built(self) -> bool:
        """Whether the model has its tensors."""
        return bool(self._late_replica.is_built)

    def run(self, call: Call) -> Record:
        """As ``HostExecutor.run``, after the model is built if it is not yet.

        Raises:
            ConfigError: On all ranks, if no rank has a batch to build the model from.
        """
        return super().run(call if self.is_built else self.build_before(call))

    def build_before(self, call: Call) -> Call:
        """Build the model for a call; returns the call, whose batches are still all there.

        Raises:
            ConfigError: On all ranks, if no rank has a batch to build the model from.
        """
        update = call.updates[0]
        micro_batches = iter(update.micro_batches)
        first = next(micro_batches, None)
        mine = None if first is None else form_of(first.tree)
        with self._ranks.phase("compiling"):
            known = [f for f in self._ranks.all_gather_value(mine) if f is not None]
            if not known:
                raise ConfigError(
                    "the model has no weights before its first batch, and no rank has a row in "
                    "this update; build the model before compile, or begin with a batch"
                )
            self._late_replica.build_from(empty_like(known[0]))
            agree_on_tensors(self, self._ranks, self._mix)
        if first is None:
            return call
        again = replace(update, micro_batches=chain([first], micro_batches))
        return replace(call, updates=(again, *call.updates[1:]))


def build_from_loader(executor: Executor, loader: Loader) -> None:
    """Build a model that has no tensors yet from a loader's next batch, which is not used up.

    A checkpoint has names and shapes of tensors, but not what a model is called with.
    """
    if not isinstance(executor, LateExecutor) or executor.is_built:
        return
    epoch, position = loader.epoch, loader.position
    for call in loader:
        executor.build_before(call)
        break
    loader.seek(epoch, position)


def agree_on_build(executor: Executor, communicator: Communicator) -> bool:
    """Whether the tensors are there already, as they nearly always are; collective.

    Raises:
        ConfigError: On all ranks, if they are there on some ranks only.
    """
    everyone = communicator.all_gather_value(bool(getattr(executor, "is_built", True)))
    if any(everyone) and not all(everyone):
        raise ConfigError(
            f"the model has its weights on rank {everyone.index(True)}, but not on rank "
            f"{everyone.index(False)}; build it, or call it once, on every rank or on none"
        )
    return all(everyone)
