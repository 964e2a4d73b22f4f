"""How suites run the same scenario on several ranks: as threads, or on warm processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, List, Mapping, Optional, Protocol, cast

from unified_ipu.comms import Communicator
from unified_ipu.data import arrays
from unified_ipu.plan import Plan, runs_whole_calls
from unified_ipu.session import Program, Session
from unified_ipu.testing.float_types import DeviceSubject, float_type, in_float_type
from unified_ipu.testing.on_devices import on_device
from unified_ipu.testing.pool import WarmPool
from unified_ipu.testing.subject import Model, Subject
from unified_ipu.testing.threads import run_ranks
from unified_ipu.world import World

Scenario = Callable[..., Any]  # (rank: Rank, **kwargs) -> what can be pickled

TIMEOUT_SECONDS = 30.0


@dataclass(frozen=True)
class Rank:
    """One rank of a scenario.

    Args:
        subject: Of the adapter under test.
        world: Of this rank.
        communicator: Of ranks that are threads; None lets the session connect.
        target: Of the plans of its sessions.
    """

    subject: Subject
    world: World
    communicator: Optional[Communicator] = None
    target: str = "auto"

    @property
    def dtype(self) -> str:
        """Float type that models compute in where a scenario asks for none."""
        return float_type(self.subject, self.target)

    def floats(self, tree: Any) -> Any:
        """A tree whose float64 arrays are of the type that models compute in."""
        return in_float_type(tree, self.dtype)

    def arrays(self, *data: Any) -> Any:
        """``ui.data.arrays`` of arrays in that type."""
        return arrays(*self.floats(data))

    def compile(self, session: Session, model: Model, **options: Any) -> Program:
        """``session.compile`` with the subject's adapter, on devices as the subject says.

        Args:
            session: Of this rank.
            model: Of the subject.
            options: Of ``session.compile``.
        """
        native, options = model.native, {"adapter": self.subject.adapter, **options}
        on_device = getattr(self.subject, "on_device", None)
        if on_device is not None and runs_whole_calls(self.target):
            native, options = on_device(native, options)
        return session.compile(native, **options)

    def session(
        self, plan: Optional[Mapping[str, Any]] = None, *, rows: Optional[int] = None
    ) -> Session:
        """A session of a plan given as nested tables, in this rank's world.

        Args:
            plan: As for a host; on a device the batch is made static, see ``on_device``.
            rows: Of what ``step`` is given, if no batch is in ``plan``; said to devices only.
        """
        given = dict(plan or {})
        if runs_whole_calls(self.target):
            given = on_device(given, self.world.world_size, rows)
        settings = Plan.from_dict({"target": self.target, **given}).replace(
            {"comms.timeout_seconds": TIMEOUT_SECONDS}
        )
        found = Session(settings, world=self.world, communicator=self.communicator, argv=[])
        if isinstance(self.subject, DeviceSubject):
            self.subject.make_in(found)
        return found


def rank_of(
    subject: Subject, world: World, communicator: Optional[Communicator] = None, *, target: str
) -> Rank:
    """A rank whose subject makes models as the target wants them.

    Args:
        subject: Of the adapter under test.
        world: Of the rank.
        communicator: As of ``Rank``.
        target: Of its plans.
    """
    if runs_whole_calls(target):
        subject = cast("Subject", DeviceSubject(subject, float_type(subject, target)))
    return Rank(subject, world, communicator, target)


class Ranks(Protocol):
    """Runs scenarios; an author's fixture returns one of those below, or their own."""

    def run(self, scenario: Scenario, size: int = 1, **kwargs: Any) -> List[Any]:
        """Call ``scenario(rank, **kwargs)`` on ``size`` ranks at once; the results by rank."""
        ...


class ThreadRanks:
    """Ranks as threads: for adapters without global state; fast, and easy to debug.

    Args:
        subject: Of the adapter under test.
        target: Where its programs run.
    """

    def __init__(self, subject: Subject, target: str = "auto") -> None:
        self._subject = subject
        self.target = target
        self.dtype = float_type(subject, target)

    def run(self, scenario: Scenario, size: int = 1, **kwargs: Any) -> List[Any]:
        """Call ``scenario(rank, **kwargs)`` on ``size`` ranks at once; the results by rank."""

        def run_rank(world: World, communicator: Communicator) -> Any:
            rank = rank_of(self._subject, world, communicator, target=self.target)
            return scenario(rank, **kwargs)

        return run_ranks(size, run_rank, timeout_seconds=TIMEOUT_SECONDS)


class PoolRanks:
    """Ranks on the processes of a warm pool: for every framework.

    Args:
        subject: Of the adapter under test; travels pickled.
        pool: Its workers import the framework once.
        target: Where its programs run.
    """

    def __init__(self, subject: Subject, pool: WarmPool, target: str = "auto") -> None:
        self._subject = subject
        self._pool = pool
        self.target = target
        self.dtype = float_type(subject, target)

    def run(self, scenario: Scenario, size: int = 1, **kwargs: Any) -> List[Any]:
        """Call ``scenario(rank, **kwargs)`` on ``size`` ranks at once; the results by rank."""
        from unified_ipu.testing.pool_task import call_scenario  # it needs Rank

        return self._pool.run(
            call_scenario,
            size,
            subject=self._subject,
            target=self.target,
            scenario=scenario,
            arguments=kwargs,
        )


@dataclass(frozen=True)
class Raised:
    """An error as a value, so that ranks which must fail can report how they did.

    Args:
        kinds: Names of its class and that class's bases.
        message: Its text.
    """

    kinds: List[str]
    message: str


def outcome_of(function: Callable[[], Any]) -> Any:
    """Return what ``function`` returns, or a ``Raised`` of the exception it ends with."""
    try:
        return function()
    except Exception as error:  # noqa: BLE001  # any error is the result
        return Raised([kind.__name__ for kind in type(error).__mro__], str(error))
