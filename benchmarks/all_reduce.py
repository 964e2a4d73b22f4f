"""How long ranks of one host take to add up gradients: ours against gloo of torch.distributed.

``reduce`` is ``Reducer.reduce`` on gradients in shared memory, with division, norm and the check
for inf and nan; ``clip`` the same with clipping; ``all_reduce`` the collective on any array, which
copies in and out. The peer is ``torch.distributed.all_reduce`` and the division. All alternate in
the same processes; numbers are medians over rounds of the mean of one round, in microseconds, wall
time of rank 0 beside CPU time summed over ranks. On shared cores trust the CPU ratio.
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
from typing import Any, Callable, Dict, List, Tuple

SIZES = {"4 KiB": 2**12, "256 KiB": 2**18, "4 MiB": 2**22, "25 MiB": 25 * 2**20}
ITERATIONS = {2**12: 200, 2**18: 60, 2**22: 8, 25 * 2**20: 2}
BARS = {(2, "4 KiB"): 20.0, (2, "25 MiB"): 7.0}
OTHER_BAR = {2: 1.0, 4: 5.0, 8: 5.0}
Measured = Dict[str, List[Tuple[float, float]]]


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
    for round_index in range(rounds + 1):
        for name, call in calls.items():
            communicator.barrier()
            wall, cpu = time.perf_counter(), time.process_time()
            for _ in range(ITERATIONS[nbytes]):
                call()
            spent = time.perf_counter() - wall, time.process_time() - cpu
            if round_index:  # the first one warms up
                measured[name].append(spent)
    return measured


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
    results = {
        label: alternate(communicator, nbytes, arguments.rounds) for label, nbytes in SIZES.items()
    }
    gathered = communicator.all_gather_value(results)
    communicator.close()
    dist.destroy_process_group()
    if rank == 0:
        sys.stdout.write(json.dumps(gathered))


def run_world(ranks: int, rounds: int, *, pin: bool) -> List[Dict[str, Measured]]:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--ranks", str(ranks), "--rounds", str(rounds)]
        command += ["--store", str(Path(folder) / "store"), "--job", uuid.uuid4().hex]
        command += ["--pin"] * pin
        processes = [
            subprocess.Popen([*command, "--rank", str(rank)], stdout=subprocess.PIPE, text=True)
            for rank in range(ranks)
        ]
        outputs = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise SystemExit("a rank failed")
    world: List[Dict[str, Measured]] = json.loads(outputs[0])
    return world


def summarise(world: List[Dict[str, Measured]], label: str, name: str) -> Tuple[float, float]:
    """Microseconds of one call: wall of rank 0, CPU over all ranks."""
    calls = ITERATIONS[SIZES[label]] / 1e6
    walls = [wall for wall, _ in world[0][label][name]]
    rounds = range(len(walls))
    cpus = [sum(rank[label][name][index][1] for rank in world) for index in rounds]
    return statistics.median(walls) / calls, statistics.median(cpus) / calls


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--world", type=int, nargs="*", default=[2, 4], help="numbers of ranks")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pin", action="store_true", help="rank r to core r")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    for hidden in ("--rank", "--ranks"):
        parser.add_argument(hidden, type=int, help=argparse.SUPPRESS)
    for hidden in ("--store", "--job"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    return parser.parse_args()


def report(world: List[Dict[str, Measured]], label: str, name: str) -> List[Dict[str, Any]]:
    """Print one line and return its rows."""
    ranks = len(world)
    ours, peer = summarise(world, label, name), summarise(world, label, "gloo")
    bar = BARS.get((ranks, label), OTHER_BAR.get(ranks, 1.0)) if name == "reduce" else 1.0
    print(
        f"{ranks} ranks  {label:>8}  {name:10}  ours {ours[0]:9.0f} us "
        f"(CPU {ours[1]:9.0f})   gloo {peer[0]:9.0f} us (CPU {peer[1]:9.0f})   "
        f"ratio {peer[0] / ours[0]:6.1f} (CPU {peer[1] / ours[1]:6.1f})   bar {bar:g}",
        flush=True,
    )
    return [
        {
            "row": f"{name}, {ranks} ranks, {label}, {clock} microseconds",
            "ours": mine,
            "peer": other,
            "ratio": other / mine,
            "bar": bar,
        }
        for clock, mine, other in zip(("wall", "CPU"), ours, peer)
    ]


def main() -> None:
    arguments = parse()
    if arguments.rank is not None:
        run_rank(arguments)
        return
    rows: List[Dict[str, Any]] = []
    for ranks in arguments.world:
        world = run_world(ranks, arguments.rounds, pin=arguments.pin)
        for label in SIZES:
            for name in ("reduce", "clip", "all_reduce"):
                rows += report(world, label, name)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
