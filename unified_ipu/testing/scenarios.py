"""What one rank does in a test: build, train or evaluate, and return plain results."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from unified_ipu.adapter import Call, MicroBatch, Record, Update
from unified_ipu.session import Program, Session
from unified_ipu.testing.ranks import Rank, outcome_of
from unified_ipu.testing.subject import Model, Subject

Plan = Mapping[str, Any]


@dataclass(frozen=True)
class Make:
    """A method of the subject with its arguments, to be called on the rank.

    Args:
        method: Name of the method.
        arguments: By name.
    """

    method: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def on(self, subject: Subject) -> Any:
        """Call it."""
        return getattr(subject, self.method)(**self.arguments)


def make(method: str, **arguments: Any) -> Make:
    """Write ``Make`` like a call."""
    return Make(method, arguments)


@dataclass(frozen=True)
class Training:
    """A whole run.

    Args:
        model: Makes the ``Model``.
        optimizer: One of ``ui.optim``.
        loss: Makes the loss, or None.
        objective: Makes the objective, or None.
        data: Arrays as ``ui.data.arrays`` takes them, for a loader; None for ``steps``.
        steps: For each rank, what it passes to ``step`` one after the other; None for ``data``.
        epochs: Of the loader.
        plan: Nested tables, beside ``mesh``.
        options: Further arguments of ``compile``.
        as_tensors: Whether ``steps`` are handed over as native tensors instead of arrays.
        rows: Of the micro-batches of ``steps``, for targets with static shapes.
    """

    model: Make
    optimizer: Any = None
    loss: Optional[Make] = None
    objective: Optional[Make] = None
    data: Optional[Tuple[Any, ...]] = None
    steps: Optional[Sequence[Sequence[Any]]] = None
    epochs: int = 1
    plan: Plan = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    as_tensors: bool = False
    rows: Optional[int] = None


@dataclass(frozen=True)
class Trained:
    """What a run came to on one rank.

    Args:
        weights: By canonical name, ``[in, out]``.
        records: One a call.
        trace: Weights after each call.
        micro_batches: For each update of a loader, what this rank ran.
        calls: Updates in each call of a loader.
        certificates: One an epoch, as text.
        counts: Of the session.
        happened: Updates that changed the weights.
    """

    weights: Dict[str, Any]
    records: List[Record]
    trace: List[Dict[str, Any]]
    micro_batches: List[List[Dealt]]
    calls: List[int]
    certificates: List[str]
    counts: Dict[str, int]
    happened: int


@dataclass(frozen=True)
class Dealt:
    """One micro-batch as it was dealt.

    Args:
        index: ``m``.
        ids: Of its rows, -1 for padding.
    """

    index: int
    ids: Tuple[int, ...]


def train(
    rank: Rank,
    *,
    run: Training,
    options_of: Optional[Callable[[Model], Mapping[str, Any]]] = None,
) -> Trained:
    """Train, and return what it came to; ``options_of(model)`` instead of the run's options."""
    with rank.session(run.plan, rows=run.rows) as session:
        with session.scope():
            model: Model = run.model.on(rank.subject)
        options = None if options_of is None else options_of(model)
        program = compiled(rank, session, model, run, options)
        log = _Log(program, model)
        if run.steps is not None:
            for step in rank.floats(list(run.steps[rank.world.rank])):
                log.step(rank.subject.tensors(step) if run.as_tensors else step)
        if run.data is not None:
            loader = session.loader(rank.arrays(*run.data))
            for _ in range(run.epochs):
                for call in loader:
                    log.step(log.watched(call))
                log.certificates.append(str(loader.certificate()))
        return log.result(session)


def names_of(rank: Rank, *, model: Make) -> Dict[str, str]:
    """Names of a model's tensors: canonical ones to the framework's own.

    On a rank, since the test process shall import no framework.
    """
    built: Model = model.on(rank.subject)
    return dict(built.names)


def caught(rank: Rank, *, run: Training) -> Any:
    """Train, and return the error it ends with as ``Raised``."""
    return outcome_of(lambda: train(rank, run=run))


def compiled(
    rank: Rank,
    session: Session,
    model: Model,
    run: Training,
    options: Optional[Mapping[str, Any]] = None,
) -> Program:
    """Compile a model as a run says; ``options`` instead of the run's."""
    subject = rank.subject
    given: Dict[str, Any] = {**(run.options if options is None else options)}
    if run.loss is not None:
        given["loss"] = run.loss.on(subject)
    if run.objective is not None:
        given["objective"] = run.objective.on(subject)
    if run.optimizer is not None:
        given["optimizer"] = run.optimizer
    return rank.compile(session, model, **given)


class _Log:
    """Writes down what a program does."""

    def __init__(self, program: Program, model: Model) -> None:
        self._program, self._model = program, model
        self._records: List[Record] = []
        self._trace: List[Dict[str, Any]] = []
        self._micro_batches: List[List[Dealt]] = []
        self._calls: List[int] = []
        self.certificates: List[str] = []

    def step(self, call: Any) -> None:
        self._records.append(self._program.step(call))
        self._trace.append(self._model.canonical(self._program.weights()))

    def watched(self, call: Call) -> Call:
        self._calls.append(len(call.updates))
        return replace(call, updates=tuple(self._watch(update) for update in call.updates))

    def _watch(self, update: Update) -> Update:
        dealt: List[Dealt] = []
        self._micro_batches.append(dealt)

        def passing() -> Iterator[MicroBatch]:
            for micro in update.micro_batches:
                dealt.append(Dealt(micro.index, ids_of(micro)))
                yield micro

        return replace(update, micro_batches=passing())

    def result(self, session: Session) -> Trained:
        return Trained(
            weights=self._model.canonical(self._program.weights()),
            records=self._records,
            trace=self._trace,
            micro_batches=self._micro_batches,
            calls=self._calls,
            certificates=self.certificates,
            counts=session.counters.as_dict(),
            happened=self._program.updates_happened,
        )


def ids_of(micro: MicroBatch) -> Tuple[int, ...]:
    """Ids of a micro-batch's rows as plain numbers."""
    return () if micro.ids is None else tuple(np.asarray(micro.ids).tolist())


def dealt_by_update(ranks: Sequence[Trained]) -> List[List[Dealt]]:
    """Micro-batches of each update over all ranks, in the order of ``m``."""
    return [
        sorted((dealt for part in parts for dealt in part), key=lambda dealt: dealt.index)
        for parts in zip(*(trained.micro_batches for trained in ranks))
    ]


def batch_plan(global_batch_size: int, micro_batch_size: int, **tables: Any) -> Dict[str, Any]:
    """A plan as nested tables; ``batch`` in ``tables`` adds to the sizes, order is not shuffled."""
    batch = {"global_batch_size": global_batch_size, "micro_batch_size": micro_batch_size}
    return {
        "data": {"shuffle": False},
        **tables,
        "batch": {**batch, **tables.get("batch", {})},
    }


def halving(update: int) -> float:
    """A schedule that halves the learning rate at every update."""
    return float(0.5**update)
