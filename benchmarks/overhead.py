"""What ``Program.step`` costs on one replica beside a bare torch loop, by the way batches come.

``a batch``: one prepared batch again and again, as tensors of torch or arrays of numpy. ``an
epoch``: our loader over arrays in memory, shuffled and certified, against a ``DataLoader`` over the
same tensors without workers. Same model (MLP 784-256-256-10), rows (64) and optimizer on both
sides; both take turns on one core. Numbers are microseconds an update: the median of the peer, and
to it the median of the differences of runs side by side.

``timers``: the step of one batch with the clock that says where the time went, against the same
program whose clock does nothing; they take turns step by step, on CPU time.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import statistics
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Callable, ContextManager, Dict, List, Sequence, Tuple

from rows import Measure, Row, paired, show, write
from torch_step import build_net

from unified_ipu.events import PhaseClock
from unified_ipu.events.clock import Phase

WIDTHS = (784, 256, 256, 10)
ROWS = 64
UPDATES = 40
PAIRS = (("torch batch", "loop"), ("numpy batch", "loop"), ("an epoch", "an epoch of a loop"))
BAR = 60.0
TIMERS_BAR = 10.0  # one per cent of a step of a millisecond
TIMERS_STEPS = 60  # of each kind, a round
TIMERS_WARM_UP = 40  # the interpreter adapts its code to the kind


class NoClock(PhaseClock):
    """Does nothing; a session's clock is made one and back again."""

    _nothing = nullcontext()

    def phase(self, name: str) -> ContextManager[None]:
        """Nothing is booked."""
        del name
        return self._nothing

    def move(self, source: str, target: str, seconds: float) -> None:
        """Nothing is booked."""
        del source, target, seconds

    def mark(self) -> List[float]:
        """Nothing was booked."""
        return []

    def since(self, mark: Sequence[float]) -> Dict[str, float]:
        """Nothing was booked."""
        del mark
        return {}


class NoPhase(Phase):
    """Does nothing; those that executors keep are made ones and back again."""

    __slots__ = ()

    def __enter__(self) -> None:
        """Nothing is booked."""

    def __exit__(self, *_: object) -> None:
        """Nothing is booked."""


def contenders(session: Any) -> Dict[str, Callable[[], Any]]:
    """``UPDATES`` updates of each."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    import unified_ipu as ui

    x, y = torch.randn(ROWS, WIDTHS[0]), torch.randint(0, 10, (ROWS,))
    many_x, many_y = x.repeat(UPDATES, 1), y.repeat(UPDATES)
    loss = torch.nn.CrossEntropyLoss()
    nets = [build_net(WIDTHS) for _ in range(2)]
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9) for net in nets]
    program = session.compile(nets[0], loss=loss, optimizer=optimizers[0])
    loader = session.loader(ui.data.arrays(many_x.numpy(), many_y.numpy()))
    torch_loader = DataLoader(TensorDataset(many_x, many_y), batch_size=ROWS, shuffle=True)

    def update(inputs: Any, targets: Any) -> float:
        optimizers[1].zero_grad()
        value = loss(nets[1](inputs), targets)
        value.backward()
        optimizers[1].step()
        return float(value.item())

    def repeat(call: Callable[[], Any]) -> Callable[[], Any]:
        return lambda: [call() for _ in range(UPDATES)]

    return {
        "loop": repeat(lambda: update(x, y)),
        "torch batch": repeat(lambda: program.step((x, y))),
        "numpy batch": repeat(lambda: program.step((x.numpy(), y.numpy()))),
        "one torch batch": lambda: program.step((x, y)),
        "an epoch of a loop": lambda: [update(*batch) for batch in torch_loader],
        "an epoch": lambda: [program.step(call) for call in loader],
    }


def alternate(
    calls: Dict[str, Callable[[], Any]], rounds: int
) -> Dict[str, List[Tuple[float, float]]]:
    """Wall and CPU microseconds of one update, by round."""
    measured: Dict[str, List[Tuple[float, float]]] = {name: [] for name in calls}
    for round_index in range(rounds + 1):
        for name, call in calls.items():
            wall, cpu = time.perf_counter(), time.process_time()
            call()
            spent = time.perf_counter() - wall, time.process_time() - cpu
            if round_index:  # the first one warms up
                measured[name].append((spent[0] * 1e6 / UPDATES, spent[1] * 1e6 / UPDATES))
    return measured


def timers_row(clock: PhaseClock, step: Callable[[], Any], rounds: int) -> Row:
    """What the clock costs a step: CPU microseconds with it, and with one that does nothing.

    Both go first equally often, since a few microseconds are looked for in a step of many.
    """
    step()
    phases = list(vars(clock)["_phases"].values())
    kinds = [PhaseClock, NoClock]
    spent: Dict[type, List[float]] = {kind: [] for kind in kinds}
    for _ in range(rounds):
        for kind in kinds:
            clock.__class__ = kind
            for phase in phases:
                phase.__class__ = Phase if kind is PhaseClock else NoPhase
            for _ in range(TIMERS_WARM_UP):
                step()
            for _ in range(TIMERS_STEPS):
                began = time.thread_time_ns()
                step()
                spent[kind].append((time.thread_time_ns() - began) / 1e3)
        kinds.reverse()
    clock.__class__ = PhaseClock
    for phase in phases:
        phase.__class__ = Phase
    none = statistics.median(spent[NoClock])
    with_clock = none + paired(spent[PhaseClock], spent[NoClock])
    return Row("timers, us a step, CPU / none", with_clock, none, TIMERS_BAR, Measure.DIFFERENCE)


def rows_of(measured: Dict[str, List[Tuple[float, float]]]) -> List[Row]:
    """Wall and CPU of each way."""
    rows = []
    for name, peer in PAIRS:
        for index, clock in enumerate(("wall", "CPU")):
            ours, theirs = ([pair[index] for pair in measured[key]] for key in (name, peer))
            median = statistics.median(theirs)
            words = f"step of {name}, 1 replica, {clock} us / {peer}"
            bar = BAR if name != "an epoch" else None
            rows.append(Row(words, median + paired(ours, theirs), median, bar, Measure.DIFFERENCE))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--long", action="store_true", help="five times the rounds")
    parser.add_argument("--profile", action="store_true", help="also where the time goes")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    arguments = parser.parse_args()
    import torch

    import unified_ipu as ui

    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    plan = ui.Plan().replace(batch={"global_batch_size": ROWS, "micro_batch_size": ROWS})
    with ui.Session(plan, argv=["benchmark"]) as session:
        calls = contenders(session)
        step = calls.pop("one torch batch")
        rounds = arguments.rounds * (5 if arguments.long else 1)
        rows = rows_of(alternate(calls, rounds))
        rows.append(timers_row(session.clock, step, rounds))
        for row in rows:
            show(row)
        if arguments.profile:
            profile = cProfile.Profile()
            profile.runcall(calls["torch batch"])
            pstats.Stats(profile).sort_stats("tottime").print_stats(25)
    write(rows, arguments.json)


if __name__ == "__main__":
    main()
