"""What the order of an epoch costs: the keyed permutation against torch's ``DistributedSampler``.

Speed is in million indices a second, the whole epoch at once where the peer needs that; memory in
KiB that stay allocated. The peer lists all indices, so it is measured on fewer samples.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any, List, Tuple

from rows import Measure, Row, show, write

SIZE = 10**12
CHUNK = 2**20


def ours(chunks: int) -> Tuple[float, float]:
    """Million indices a second of wall and CPU time, at random places of 10**12 samples."""
    from unified_ipu.data import Order

    order = Order(SIZE, seed=1, epoch=2)
    wall, cpu = time.perf_counter(), time.process_time()
    for index in range(chunks):
        start = index * (SIZE // chunks)
        order.slice(start, start + CHUNK)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return chunks * CHUNK / wall / 1e6, chunks * CHUNK / cpu / 1e6


def state_kib() -> float:
    """What an order holds."""
    from unified_ipu.data import Order

    order = Order(SIZE, seed=1, epoch=2)
    held: List[Any] = [order, vars(order), *vars(order).values()]
    for value in vars(order).values():
        held += value if isinstance(value, tuple) else ()
    return sum(sys.getsizeof(value) for value in {id(v): v for v in held}.values()) / 1024


def peer(size: int) -> Tuple[float, float, float]:
    """The same of one of two ranks, and the KiB that its list of indices takes."""
    from torch.utils.data.distributed import DistributedSampler

    dataset: Any = range(size)
    sampler: Any = DistributedSampler(dataset, num_replicas=2, rank=0, seed=1)
    sampler.set_epoch(2)
    wall, cpu = time.perf_counter(), time.process_time()
    indices = iter(sampler)
    count = sum(1 for _ in indices)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    kib = size * (sys.getsizeof(size) + 8) / 1024  # a list of all, from which it takes its half
    return count / wall / 1e6, count / cpu / 1e6, kib


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--long", action="store_true", help="20 million samples for the peer")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    arguments = parser.parse_args()
    size = 20_000_000 if arguments.long else 2_000_000
    mine, others = [], []
    for _ in range(arguments.rounds):
        mine.append(ours(8))
        others.append(peer(size))
    rows = []
    for index, clock in enumerate(("wall", "CPU")):
        speeds = [statistics.median(run[index] for run in runs) for runs in (mine, others)]
        words = f"order of 10^12, million indices/s ({clock}) / DistributedSampler"
        rows.append(Row(words, speeds[0], speeds[1], 20.0, Measure.LEAST))
    words = f"order of 10^12, state in KiB / DistributedSampler of {size:,}"
    rows.append(Row(words, state_kib(), others[0][2], 1.0, Measure.MOST))
    for row in rows:
        show(row)
    write(rows, arguments.json)


if __name__ == "__main__":
    main()
