"""How long one update of a torch model takes: ``Program.step`` against DDP and a bare loop.

With two replicas the peer is ``DistributedDataParallel`` on gloo, with one a loop of forward,
backward and ``optimizer.step`` that reads the loss. Both sides have the same batch, model and
optimizer (SGD with momentum, as torch makes it), run in the same processes on the same cores and
take turns. Numbers are medians over rounds, in microseconds an update: wall time of rank 0, and CPU
time summed over ranks. On shared cores trust the CPU rows. The rows "with ui.optim" let ours use
torch's fused optimizer, which the user of the peer would have to ask for. The rows "alone" are the
control: the bare loop on every rank at once, without any communication; what it costs more than its
CPU time is what other processes took, and no communication can be faster than it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Tuple

from rows import Measure, Row, paired, show, write

Measured = Dict[str, List[Tuple[float, float]]]


@dataclass(frozen=True)
class Case:
    """One model and batch: widths of its layers, rows a replica, updates a round, the bar."""

    name: str
    widths: Tuple[int, ...]
    rows: int
    updates: int
    replicas: int
    bar: float


CASES = (
    Case("MLP 256, micro 64", (784, 256, 256, 10), 64, 40, 1, 60.0),
    Case("MLP 1024, micro 256", (784, 1024, 1024, 1024, 10), 256, 2, 2, 1.1),
    Case("MLP 1024, micro 32", (784, 1024, 1024, 1024, 10), 32, 5, 2, 1.5),
    Case("MLP 256, micro 64", (784, 256, 256, 10), 64, 30, 2, 2.3),
)


def build_net(widths: Tuple[int, ...]) -> Any:
    import torch

    torch.manual_seed(0)
    layers: List[Any] = []
    for inputs, outputs in zip(widths, widths[1:]):
        layers += [torch.nn.Linear(inputs, outputs), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


def contenders(case: Case, session: Any) -> Dict[str, Callable[[], Any]]:
    """One update of each, on a model of its own."""
    import torch

    import unified_ipu as ui

    torch.manual_seed(session.rank)
    x, y = torch.randn(case.rows, case.widths[0]), torch.randint(0, 10, (case.rows,))
    loss = torch.nn.CrossEntropyLoss()
    peer_net = build_net(case.widths)
    peer_optimizer = torch.optim.SGD(peer_net.parameters(), lr=0.01, momentum=0.9)
    alone_net = build_net(case.widths)
    alone_optimizer = torch.optim.SGD(alone_net.parameters(), lr=0.01, momentum=0.9)
    if case.replicas > 1:
        peer_net = torch.nn.parallel.DistributedDataParallel(peer_net)

    def loop(model: Any, optimizer: Any) -> float:
        optimizer.zero_grad()
        value = loss(model(x), y)
        value.backward()
        optimizer.step()
        return float(value.item())

    net, other = build_net(case.widths), build_net(case.widths)
    program = session.compile(
        net, loss=loss, optimizer=torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    )
    fused = session.compile(other, loss=loss, optimizer=ui.optim.SGD(lr=0.01, momentum=0.9))
    return {
        "peer": lambda: loop(peer_net, peer_optimizer),
        "alone": lambda: loop(alone_net, alone_optimizer),
        "step": lambda: program.step((x, y)),
        "step with ui.optim": lambda: fused.step((x, y)),
    }


def alternate(case: Case, session: Any, rounds: int) -> Measured:
    """Wall and CPU microseconds of one update, by round, of each contender."""
    calls = contenders(case, session)
    measured: Measured = {name: [] for name in calls}
    for round_index in range(rounds + 1):
        for name, call in calls.items():
            call()
            session.communicator().barrier()
            wall, cpu = time.perf_counter(), time.process_time()
            for _ in range(case.updates):
                call()
            spent = time.perf_counter() - wall, time.process_time() - cpu
            if round_index:  # the first one warms up
                scale = 1e6 / case.updates
                measured[name].append((spent[0] * scale, spent[1] * scale))
    return measured


def run_rank(arguments: argparse.Namespace) -> None:
    import torch

    import unified_ipu as ui
    from unified_ipu.world import World

    case, rank = CASES[arguments.case], arguments.rank
    if arguments.pin:
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[rank % len(cores)]})
    torch.set_num_threads(1)
    world = World(
        rank=rank,
        local_rank=rank,
        world_size=case.replicas,
        local_world_size=case.replicas,
        job=arguments.job if case.replicas > 1 else "",
        launcher="benchmark",
    )
    plan = ui.Plan().replace(
        batch={"global_batch_size": case.rows * case.replicas, "micro_batch_size": case.rows},
        mesh={"data": case.replicas},
    )
    if case.replicas > 1:
        init_method = f"file://{arguments.store}"
        torch.distributed.init_process_group(
            "gloo", init_method=init_method, rank=rank, world_size=case.replicas
        )
    with ui.Session(plan, world=world, argv=["benchmark"]) as session:
        measured = alternate(case, session, arguments.rounds)
        gathered = session.communicator().all_gather_value(measured)
    if case.replicas > 1:
        torch.distributed.destroy_process_group()
    if rank == 0:
        sys.stdout.write(json.dumps(gathered))


def run_world(index: int, rounds: int, *, pin: bool) -> List[Measured]:
    """Start the ranks of a case and return what each measured.

    Raises:
        SystemExit: If one of them fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--case", str(index), "--rounds", str(rounds)]
        command += ["--store", str(Path(folder) / "store"), "--job", uuid.uuid4().hex]
        command += ["--pin"] * pin
        processes = [
            subprocess.Popen([*command, "--rank", str(rank)], stdout=subprocess.PIPE, text=True)
            for rank in range(CASES[index].replicas)
        ]
        outputs = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise SystemExit("a rank failed")
    world: List[Measured] = json.loads(outputs[0])
    return world


def rows_of(case: Case, world: List[Measured], placement: str) -> List[Row]:
    """Wall of rank 0 and CPU of all ranks, for each way of ours."""
    peer = "bare loop" if case.replicas == 1 else "DDP on gloo"
    rounds = range(len(world[0]["peer"]))

    def series(name: str, clock: str) -> List[float]:
        if clock == "wall":
            return [pair[0] for pair in world[0][name]]
        return [sum(rank[name][index][1] for rank in world) for index in rounds]

    rows = []
    for name in ("step", "step with ui.optim", "alone"):
        bar: Optional[float] = case.bar if name == "step" else None
        for clock in ("wall", "CPU"):
            ours, theirs = series(name, clock), series("peer", clock)
            words = f"{name}, {case.name}, {case.replicas} replica(s){placement}, {clock} us"
            words = f"{words} / {peer}"
            median = statistics.median(theirs)
            if case.replicas == 1:
                mine = median + paired(ours, theirs)
                rows.append(Row(words, mine, median, bar, Measure.DIFFERENCE))
            else:
                rows.append(Row(words, statistics.median(ours), median, bar))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--long", action="store_true", help="four times the rounds")
    parser.add_argument("--unpinned", action="store_true", help="also without rank r on core r")
    parser.add_argument("--only", type=int, nargs="*", default=range(len(CASES)), help="cases")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    for hidden in ("--rank", "--case"):
        parser.add_argument(hidden, type=int, help=argparse.SUPPRESS)
    for hidden in ("--store", "--job"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    parser.add_argument("--pin", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank is not None:
        run_rank(arguments)
        return
    rows: List[Row] = []
    for index in arguments.only:
        for pin in (True, False) if arguments.unpinned else (True,):
            world = run_world(index, arguments.rounds * (4 if arguments.long else 1), pin=pin)
            for row in rows_of(CASES[index], world, ", pinned" if pin else ""):
                show(row)
                rows.append(row)
    write(rows, arguments.json)


if __name__ == "__main__":
    main()
