"""How long a rank waits for a batch of tf.data as torch tensors, and what it costs.

From the data process: our ring, against numpy arrays pickled through a ``multiprocessing`` queue by
a process of its own, and against one spawned worker of a torch ``DataLoader`` around the same
pipeline. All processes live during the whole run and take turns; numbers are medians over rounds,
in microseconds a batch: wall time of the rank, and CPU time of the rank and its processes.

In process: a tensor of 64 MB handed to torch by our guarded bridge, against ``from_numpy`` of
``.numpy()``, which copies.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

from feed_pipeline import SHAPES, Batches
from rows import Measure, Row, show, write

COUNTS = {"10 MB": 24, "50 KB": 1000}
BARS = {"10 MB": {"queue": 15.0, "DataLoader": 5.0}, "50 KB": {"queue": 1.2, "DataLoader": 4.0}}
Call = Callable[[], Any]
Measured = Dict[str, List[Tuple[float, float]]]


def family_cpu_seconds() -> float:
    """CPU time of this process and of all its descendants that still run."""
    ticks = os.sysconf("SC_CLK_TCK")
    waiting, total = [os.getpid()], 0.0
    while waiting:
        pid = waiting.pop()
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            for task in Path(f"/proc/{pid}/task").iterdir():
                waiting += map(int, (task / "children").read_text(encoding="utf-8").split())
        except OSError:
            continue
        total += (int(stat[11]) + int(stat[12])) / ticks
    return total


def fill_queue(label: str, count: int, orders: Any, queue: Any) -> None:
    """What the process behind the queue does: one pass for each order."""
    batches = Batches(label, count)
    while orders.get():
        for batch in batches:
            queue.put(batch)


class Queue:
    """Batches pickled through a queue by a process of its own."""

    def __init__(self, label: str, count: int) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._count = count
        self._orders, self._queue = spawn.Queue(), spawn.Queue(maxsize=2)
        arguments = (label, count, self._orders, self._queue)
        self._process = spawn.Process(target=fill_queue, args=arguments, daemon=True)
        self._process.start()

    def run(self) -> None:
        """Read one pass."""
        import torch

        self._orders.put(True)
        for _ in range(self._count):
            for array in self._queue.get():
                torch.from_numpy(array)

    def close(self) -> None:
        """End the process."""
        self._orders.put(False)
        self._process.join()


class Worker:
    """One worker of a ``DataLoader`` around the same pipeline."""

    def __init__(self, label: str, count: int) -> None:
        from torch.utils.data import DataLoader
        from torch_dataset import TorchBatches

        self._loader: Any = DataLoader(
            TorchBatches(label, count),
            batch_size=None,
            num_workers=1,
            persistent_workers=True,
            multiprocessing_context="spawn",
        )

    def run(self) -> None:
        """Read one pass."""
        for _ in self._loader:
            pass

    def close(self) -> None:
        """End the worker."""
        self._loader = None


class Ring:
    """Our data process."""

    def __init__(self, label: str, count: int) -> None:
        import unified_ipu as ui

        rows = SHAPES[label][0]
        plan = ui.Plan().replace(batch={"global_batch_size": rows, "micro_batch_size": rows})
        function = "feed_pipeline:large" if label == "10 MB" else "feed_pipeline:small"
        source = ui.data.tensorflow(function, size=count * rows, batched=True)
        self._session = ui.Session(plan, argv=[__file__]).__enter__()
        self._loader = self._session.loader(source, train=False)
        self.num_copied = 0

    def run(self) -> None:
        """Read one pass, and see whether torch has the memory of the ring."""
        import torch

        from unified_ipu_torch.batches import to_tensors

        for micro in self._loader:
            tensors = to_tensors(micro.tree, torch.device("cpu"))
            self.num_copied += tensors[0].data_ptr() != micro.tree[0].ctypes.data

    def close(self) -> None:
        """End the process."""
        self._session.close()
        print(f"batches copied on the torch side: {self.num_copied}", flush=True)


def measure_feeds(label: str, rounds: int) -> List[Row]:
    """Compare the three ways out of another process."""
    count = COUNTS[label]
    feeds: Dict[str, Any] = {
        "ring": Ring(label, count),
        "queue": Queue(label, count),
        "DataLoader": Worker(label, count),
    }
    measured = alternate({name: feed.run for name, feed in feeds.items()}, count, rounds)
    for feed in feeds.values():
        feed.close()
    found = []
    for peer in ("queue", "DataLoader"):
        for index, clock in enumerate(("wall", "CPU")):
            ours, theirs = (
                statistics.median(pair[index] for pair in measured[name]) for name in ("ring", peer)
            )
            words = f"batch of {label} from the data process, {clock} us / {peer}"
            found.append(Row(words, ours, theirs, BARS[label][peer]))
    return found


def alternate(calls: Dict[str, Call], count: int, rounds: int) -> Measured:
    """Wall and CPU microseconds of one batch, by round."""
    measured: Measured = {name: [] for name in calls}
    for round_index in range(rounds + 1):
        for name, call in calls.items():
            wall, cpu = time.perf_counter(), family_cpu_seconds()
            call()
            spent = time.perf_counter() - wall, family_cpu_seconds() - cpu
            if round_index:  # the first one starts everything up
                measured[name].append((spent[0] * 1e6 / count, spent[1] * 1e6 / count))
    return measured


def measure_bridge(rounds: int) -> List[Row]:
    """Compare the ways inside one process; run in a process of its own."""
    import tensorflow as tf
    import torch

    from unified_ipu.adapter import Copies
    from unified_ipu_torch.bridge import from_any

    copies = Copies()
    ours, peer = [], []
    batches = iter(tf.data.Dataset.from_tensors(tf.zeros(64 * 2**20 // 4)).repeat())
    for index in range(10 * rounds):
        batch = next(batches)
        wall = time.perf_counter()
        mine = from_any(batch, is_fresh=True, copies=copies)
        ours.append(1e6 * (time.perf_counter() - wall))
        del mine
        if index % 10 == 0:
            wall = time.perf_counter()
            other = torch.from_numpy(next(batches).numpy())
            peer.append(1e6 * (time.perf_counter() - wall))
            del other
    words = "tf.data batch of 64 MB to torch in process, wall us / from_numpy(x.numpy())"
    row = Row(words, statistics.median(ours), statistics.median(peer), 20.0, Measure.MOST)
    if copies.counters.as_dict():
        print(f"the bridge copied: {copies.counters.as_dict()}", file=sys.stderr, flush=True)
    return [row]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--long", action="store_true", help="four times the rounds")
    parser.add_argument("--only", nargs="*", default=list(SHAPES), help="sizes of the batch")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    parser.add_argument("--bridge", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    rounds = arguments.rounds * (4 if arguments.long else 1)
    if arguments.bridge:
        row = measure_bridge(rounds)[0]
        print(json.dumps([row.row, row.ours, row.peer]))
        return
    rows = []
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    for label in arguments.only:
        for row in measure_feeds(label, rounds):
            show(row)
            rows.append(row)
    done = subprocess.run(
        [sys.executable, __file__, "--bridge", "--rounds", str(rounds)],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    words, ours, peer = json.loads(done.stdout.splitlines()[-1])
    rows.append(Row(words, ours, peer, 20.0, Measure.MOST))
    show(rows[-1])
    write(rows, arguments.json)


if __name__ == "__main__":
    main()
