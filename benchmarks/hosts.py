"""How long ranks of several hosts take to add up gradients, by each algorithm.

The hosts are groups of processes on this machine: inside a group they share memory, between groups
they talk over loopback, which is a network without latency whose bandwidth is that of the cores. So
the CPU figures hold elsewhere, the wall figures do not. All algorithms alternate in the same
processes; numbers are medians over rounds of the mean of one round, wall time of rank 0 beside CPU
time summed over ranks. The peer is "direct", gloo's all-reduce over all ranks.
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any, Dict, List, Tuple

from rows import Row, show, write

KIB, MIB = 2**10, 2**20
SIZES = [64 * KIB, MIB, 25 * MIB]
BYTES_A_ROUND = 32 * MIB  # summed over ranks
MOST_ITERATIONS = 20
ALGORITHMS = ("direct", "ring", "hierarchical")
Measured = Dict[str, List[Tuple[float, float]]]


def label(nbytes: int) -> str:
    return f"{nbytes // MIB} MiB" if nbytes >= MIB else f"{nbytes // KIB} KiB"


def iterations(nbytes: int, ranks: int) -> int:
    return min(max(BYTES_A_ROUND // (nbytes * ranks), 1), MOST_ITERATIONS)


def connected(arguments: argparse.Namespace, algorithm: str) -> Any:
    """A communicator of all ranks that sums by one algorithm."""
    from unified_ipu.plan import Plan
    from unified_ipu.world import World
    from unified_ipu_torch.c10d import connect

    rank, on_host = arguments.rank, arguments.ranks_per_host
    world = World(
        rank,
        rank % on_host,
        arguments.hosts * on_host,
        on_host,
        node_rank=rank // on_host,
        job=f"{arguments.job}/{algorithm}",
        address=f"127.0.0.1:{arguments.ports[ALGORITHMS.index(algorithm)]}",
    )
    communicator: Any = connect(world=world, timeout_seconds=120)
    changes = {"comms.algorithm": algorithm, "comms.timeout_seconds": 120.0}
    comms = Plan().replace(changes).comms
    communicator.arrange(comms, node_rank=world.node_rank, deterministic=False)
    return communicator


def alternate(communicators: Dict[str, Any], nbytes: int, rounds: int) -> Measured:
    """Wall and CPU seconds of each round of each algorithm."""
    from unified_ipu.plan import TensorSpec, plan_buckets

    plan = plan_buckets([TensorSpec("gradient", (nbytes // 4,), "float32")], nbytes)
    reducers = {name: each.reducer(plan, 8) for name, each in communicators.items()}
    measured: Measured = {name: [] for name in reducers}
    first = communicators["direct"]
    repeats = range(iterations(nbytes, first.size))
    for round_index in range(rounds + 1):
        for name, reducer in reducers.items():
            reducer.gradients[0].fill(1.0)
            first.barrier()
            wall, cpu = time.perf_counter(), time.process_time()
            for _ in repeats:
                reducer.reduce(contributes=True, divide=lambda _: 1.0 / first.size)
            spent = time.perf_counter() - wall, time.process_time() - cpu
            if round_index:  # the first one warms up
                measured[name].append(spent)
    return measured


def run_rank(arguments: argparse.Namespace) -> None:
    import torch

    torch.set_num_threads(1)
    communicators = {name: connected(arguments, name) for name in ALGORITHMS}
    results = {
        str(nbytes): alternate(communicators, nbytes, arguments.rounds)
        for nbytes in arguments.sizes
    }
    gathered = communicators["direct"].all_gather_value(results)
    for communicator in communicators.values():
        communicator.close()
    if arguments.rank == 0:
        sys.stdout.write(json.dumps(gathered))


def run_world(arguments: argparse.Namespace) -> List[Dict[str, Measured]]:
    probes = [socket.socket() for _ in ALGORITHMS]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [str(probe.getsockname()[1]) for probe in probes]
    for probe in probes:
        probe.close()
    command = [sys.executable, __file__, "--rounds", str(arguments.rounds)]
    command += ["--hosts", str(arguments.hosts), "--ranks-per-host", str(arguments.ranks_per_host)]
    command += ["--sizes", *(str(nbytes) for nbytes in arguments.sizes)]
    command += ["--ports", *ports, "--job", uuid.uuid4().hex]
    processes = [
        subprocess.Popen([*command, "--rank", str(rank)], stdout=subprocess.PIPE, text=True)
        for rank in range(arguments.hosts * arguments.ranks_per_host)
    ]
    outputs = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise SystemExit("a rank failed")
    world: List[Dict[str, Measured]] = json.loads(outputs[0])
    return world


def summarise(world: List[Dict[str, Measured]], nbytes: int, name: str) -> Tuple[float, float]:
    """Milliseconds of one reduction: wall of rank 0, CPU of all ranks."""
    measured = [rank[str(nbytes)][name] for rank in world]
    calls = iterations(nbytes, len(world)) / 1e3
    walls = [wall for wall, _ in measured[0]]
    cpus = [sum(rank[index][1] for rank in measured) for index in range(len(walls))]
    return statistics.median(walls) / calls, statistics.median(cpus) / calls


def compare(arguments: argparse.Namespace) -> List[Row]:
    world = run_world(arguments)
    rows = []
    for nbytes in arguments.sizes:
        peer = summarise(world, nbytes, "direct")
        for name in ALGORITHMS[1:]:
            ours = summarise(world, nbytes, name)
            text = f"{name}, {arguments.hosts} x {arguments.ranks_per_host} ranks, {label(nbytes)}"
            for clock, mine, other in zip(("wall", "CPU of all ranks"), ours, peer):
                rows.append(Row(f"{text}, against direct, milliseconds, {clock}", mine, other))
    return rows


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--ranks-per-host", type=int, default=2)
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES, help="in bytes")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--ports", type=int, nargs="*", help=argparse.SUPPRESS)
    parser.add_argument("--job", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    if arguments.rank is not None:
        run_rank(arguments)
        return
    rows = compare(arguments)
    for row in rows:
        show(row)
    write(rows, arguments.json)


if __name__ == "__main__":
    main()
