"""What a script did before it trained: values that stand for its program and its loaders."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Iterator, Optional, Sequence

from unified_ipu.adapter import Job
from unified_ipu.cli.traced_calls import CallTracer
from unified_ipu.errors import ConfigError
from unified_ipu.plan import BatchPlan, Plan

NOT_WRITTEN = ("validation", "metrics", "callbacks", "checkpoint", "resume")


@dataclass
class Recorded:
    """What a script did before it trained.

    Args:
        plan: Merged, with ``mesh.data`` as a number.
        batch: Its arithmetic.
        calls: Those that the script made, and what they returned.
        program: The one that was fitted.
        loader: What it was fitted with.
        epochs: Of ``fit``.
        left_out: Arguments of ``fit`` that say nothing to a device.
    """

    plan: Plan
    batch: BatchPlan
    calls: CallTracer
    program: RecordedProgram
    loader: RecordedLoader
    epochs: int
    left_out: Sequence[str]


class ScriptEnds(BaseException):
    """Ends a script at its first ``fit``; no ``except Exception`` of it stands in the way."""

    def __init__(self, recorded: Recorded) -> None:
        super().__init__(recorded)
        self.recorded = recorded


@dataclass
class RecordedLoader:
    """Stands for a loader.

    Args:
        source: As ``ui.data`` made it, or what it is made into.
        train: Whether updates are made of it.
        collate: As given.
        batch: Of the session.
        name: For messages.
    """

    source: Any
    train: bool
    collate: Any
    batch: BatchPlan
    name: str
    epoch: int = field(default=0, init=False)

    @property
    def size(self) -> Optional[int]:
        """Samples of an epoch; None of a stream."""
        size: Optional[int] = getattr(self.source, "size", None)
        return size

    @property
    def num_updates(self) -> Optional[int]:
        """Updates in an epoch; None of a stream."""
        return None if self.size is None else self.batch.num_updates(self.size)

    def __len__(self) -> int:
        if self.size is None:
            raise TypeError(f"{self.name}: a stream has no length before its epoch has ended")
        return self.batch.num_calls(self.size)

    def __iter__(self) -> Iterator[Any]:
        raise ConfigError(
            "a loop of the script's own over a loader is not written; train with program.fit"
        )


@dataclass
class RecordedProgram:
    """Stands for a program; the first ``fit`` ends the script."""

    plan: Plan
    batch: BatchPlan
    calls: CallTracer
    job: Job
    schedule: Any
    adapter: Optional[str]

    def fit(self, train: Any, *, epochs: int = 1, **others: Any) -> None:
        """Take down what would be trained.

        Raises:
            ConfigError: If it has an argument that would change what is trained.
            ScriptEnds: Otherwise, with all that was taken down.
        """
        if not isinstance(train, RecordedLoader):
            raise ConfigError(f"fit got a {type(train).__name__}; expected a loader of the session")
        every = others.pop("every", "epoch")
        unknown = {name: value for name, value in others.items() if name not in NOT_WRITTEN}
        if unknown.pop("max_updates", None) is not None:
            raise ConfigError("fit(max_updates=) is not written; give whole epochs")
        if unknown:
            raise ConfigError(f"fit has no argument {', '.join(unknown)}")
        given = [name for name in NOT_WRITTEN if others.get(name)]
        left_out = [*given, *(["every"] if every != "epoch" else [])]
        raise ScriptEnds(
            Recorded(self.plan, self.batch, self.calls, self, train, epochs, tuple(left_out))
        )

    def close(self) -> None:
        """There is nothing to close."""

    def __getattr__(self, name: str) -> Any:
        raise ConfigError(
            f"program.{name} before fit: while a script is lowered nothing is trained or "
            "evaluated; only its first fit is written"
        )
