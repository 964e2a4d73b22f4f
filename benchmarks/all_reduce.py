"""How long ranks of one host take to add up gradients: ours against gloo of torch.distributed.

``reduce`` is ``Reducer.reduce`` on gradients in shared memory, with division, norm and the check
for inf and nan; ``clip`` the same with clipping; ``all_reduce`` the collective on any array, which
copies in and out. The peer is ``torch.distributed.all_reduce`` and the division. All alternate in
the same processes; numbers are medians over rounds of the mean of one round, in microseconds, wall
time of rank 0 beside CPU time summed over ranks. On shared cores trust the CPU ratio. The last row
is the CPU time of a rank that waits for one that is late.
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
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from rows import Measure, Row, show, write

KIB, MIB = 2**10, 2**20
SIZES = [KIB, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 25 * MIB, 100 * MIB]
BYTES_A_ROUND = 48 * MIB  # summed over ranks
MOST_ITERATIONS = 200
FREE_CORE = 0.9  # of a core that a rank had, on average: then the bars of an idle machine hold
BARS = {4 * KIB: (50.0, 20.0), 25 * MIB: (15.0, 7.0)}  # of 2 ranks: a core each, or shared
MANY_RANKS_BAR = 5.0
LATE_BAR = 50.0  # milliseconds of CPU time
OURS = ("reduce", "clip", "all_reduce")
Measured = Dict[str, List[Tuple[float, float]]]


class Figures(NamedTuple):
    """Microseconds of one call: wall of rank 0, CPU over all ranks."""

    wall: float
    cpu: float


def label(nbytes: int) -> str:
    return f"{nbytes // MIB} MiB" if nbytes >= MIB else f"{nbytes // KIB} KiB"


def iterations(nbytes: int, ranks: int) -> int:
    return min(max(BYTES_A_ROUND // (nbytes * ranks), 2), MOST_ITERATIONS)


def contenders(communicator: Any, nbytes: int) -> Dict[str, Callable[[], Any]]:
    """What is compared, each on gradients of its own."""
    import numpy as np
    import torch
    import torch.distributed as dist

    from unified_ipu.plan import TensorSpec, plan_buckets

    tensor = torch.ones(nbytes // 4)
    array = np.ones(nbytes // 4, np.float32)
    plan = plan_buckets([TensorSpec("gradient", array.shape, "float32")], nbytes)
    reducer = communicator.reducer(plan, 8)
    reducer.gradients[0].fill(1)
    factor = 1.0 / communicator.size

    def reduce(clip_norm: Any = None) -> None:
        reducer.reduce(contributes=True, divide=lambda _: factor, clip_norm=clip_norm)

    def gloo() -> None:
        dist.all_reduce(tensor)
        tensor.mul_(factor)  # or the sums overflow

    return {
        "gloo": gloo,
        "reduce": reduce,
        "clip": lambda: reduce(1.0),
        "all_reduce": lambda: communicator.all_reduce(array, op="mean", out=array),
    }


def alternate(communicator: Any, nbytes: int, rounds: int) -> Measured:
    """Wall and CPU seconds of each round of each contender."""
    calls = contenders(communicator, nbytes)
    measured: Measured = {name: [] for name in calls}
    repeats = range(iterations(nbytes, communicator.size))
    for round_index in range(rounds + 1):
        for name, call in calls.items():
            communicator.barrier()
            wall, cpu = time.perf_counter(), time.process_time()
            for _ in repeats:
                call()
            spent = time.perf_counter() - wall, time.process_time() - cpu
            if round_index:  # the first one warms up
                measured[name].append(spent)
    return measured


def wait_for_the_last(communicator: Any, seconds: float) -> float:
    """CPU seconds of this thread until the last rank comes, that much later; gloo has its own."""
    communicator.barrier()
    cpu = time.thread_time()
    if communicator.rank == communicator.size - 1:
        time.sleep(seconds)
    communicator.barrier()
    return time.thread_time() - cpu


def run_rank(arguments: argparse.Namespace) -> None:
    import torch
    import torch.distributed as dist

    from unified_ipu.comms import connect

    rank, size = arguments.rank, arguments.ranks
    if arguments.pin:
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[rank % len(cores)]})
    torch.set_num_threads(1)
    init_method = f"file://{arguments.store}"
    dist.init_process_group("gloo", init_method=init_method, rank=rank, world_size=size)
    communicator = connect(rank=rank, size=size, job=arguments.job, timeout_seconds=120)
    results: Dict[str, Any] = {
        str(nbytes): alternate(communicator, nbytes, arguments.rounds) for nbytes in arguments.sizes
    }
    results["late"] = wait_for_the_last(communicator, arguments.late)
    gathered = communicator.all_gather_value(results)
    communicator.close()
    dist.destroy_process_group()
    if rank == 0:
        sys.stdout.write(json.dumps(gathered))


def run_world(ranks: int, arguments: argparse.Namespace) -> List[Dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--ranks", str(ranks)]
        command += ["--rounds", str(arguments.rounds), "--late", str(arguments.late)]
        command += ["--sizes", *(str(nbytes) for nbytes in arguments.sizes)]
        command += ["--store", str(Path(folder) / "store"), "--job", uuid.uuid4().hex]
        command += ["--pin"] * arguments.pin
        processes = [
            subprocess.Popen([*command, "--rank", str(rank)], stdout=subprocess.PIPE, text=True)
            for rank in range(ranks)
        ]
        outputs = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise SystemExit("a rank failed")
    world: List[Dict[str, Any]] = json.loads(outputs[0])
    return world


def summarise(world: List[Dict[str, Any]], nbytes: int, name: str) -> Figures:
    measured = [rank[str(nbytes)][name] for rank in world]
    calls = iterations(nbytes, len(world)) / 1e6
    walls = [wall for wall, _ in measured[0]]
    cpus = [sum(rank[index][1] for rank in measured) for index in range(len(walls))]
    return Figures(statistics.median(walls) / calls, statistics.median(cpus) / calls)


def bar(ranks: int, nbytes: int, figures: Figures) -> Optional[float]:
    """What ``reduce`` has to reach."""
    if ranks > 2:
        return MANY_RANKS_BAR
    has_cores = figures.cpu >= FREE_CORE * ranks * figures.wall
    idle, shared = BARS.get(nbytes, (None, None))
    return idle if has_cores else shared


def compare(world: List[Dict[str, Any]], nbytes: int) -> List[Row]:
    ranks, peer = len(world), summarise(world, nbytes, "gloo")
    rows = []
    for name in OURS:
        ours = summarise(world, nbytes, name)
        limit = bar(ranks, nbytes, ours) if name == "reduce" else None
        text = f"{name}, {ranks} ranks, {label(nbytes)}, against gloo, microseconds"
        rows.append(Row(f"{text}, wall", ours.wall, peer.wall, limit))
        rows.append(Row(f"{text}, CPU of all ranks", ours.cpu, peer.cpu))
    return rows


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--world", type=int, nargs="*", default=[2, 4, 8], help="numbers of ranks")
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES, help="in bytes")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--late", type=float, default=10.0, help="seconds one rank comes late")
    parser.add_argument("--pin", action="store_true", help="rank r to core r")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    for hidden in ("--rank", "--ranks"):
        parser.add_argument(hidden, type=int, help=argparse.SUPPRESS)
    for hidden in ("--store", "--job"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    if arguments.rank is not None:
        run_rank(arguments)
        return
    rows: List[Row] = []
    for ranks in arguments.world:
        world = run_world(ranks, arguments)
        new = [row for nbytes in arguments.sizes for row in compare(world, nbytes)]
        waited = 1e3 * max(rank["late"] for rank in world[:-1])
        text = f"waiting, {ranks} ranks, one {arguments.late:g} s late, milliseconds of CPU a rank"
        new.append(Row(text, waited, 1e3 * arguments.late, LATE_BAR, Measure.MOST))
        for row in new:
            show(row)
        rows += new
    write(rows, arguments.json)


if __name__ == "__main__":
    main()
