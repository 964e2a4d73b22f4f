"""Choosing how gradients are summed: a short table of measured times, and the fastest by it."""

from __future__ import annotations

import math
from time import perf_counter
from typing import TYPE_CHECKING, Callable, Dict, List, Sequence

from unified_ipu.comms.communicator import Communicator
from unified_ipu.comms.kernels_numpy import stored_dtype
from unified_ipu.comms.reduction import GradientReducer
from unified_ipu.plan import TensorSpec, plan_buckets

if TYPE_CHECKING:
    from unified_ipu.plan import BucketPlan

Build = Callable[[str, "BucketPlan"], GradientReducer]
Table = Dict[str, List[float]]

PROBE_BYTES = (2**16, 2**20)
_LEAST_ROUNDS, _MOST_ROUNDS = 2, 5  # the first one is cold
_BUDGET_SECONDS = 0.2  # after which no further round begins
_CLEARLY = 0.8  # of the time of the first algorithm: what is not clearly faster may be noise
_MEBIBYTE = 2**20


def measure(communicator: Communicator, names: Sequence[str], build: Build) -> Table:
    """Time a short and a long reduction by each algorithm; collective.

    Args:
        communicator: Of all ranks.
        names: Of the algorithms.
        build: Makes a reducer.

    Returns:
        Seconds for each of ``PROBE_BYTES``, by algorithm: rank 0's, the same on all ranks.
    """
    plans = [plan_buckets([_probe(nbytes)], nbytes) for nbytes in PROBE_BYTES]
    reducers = {name: [build(name, plan) for plan in plans] for name in names}
    table: Table = {name: [math.inf] * len(plans) for name in names}
    started = perf_counter()
    for done in range(1, _MOST_ROUNDS + 1):
        for name, sized in reducers.items():
            for index, reducer in enumerate(sized):
                begun = perf_counter()
                reducer.reduce(contributes=True, divide=lambda _: 1.0)
                table[name][index] = min(table[name][index], perf_counter() - begun)
        # Rank 0 looks at its clock for all.
        spent = communicator.broadcast_value(perf_counter() - started)
        if done >= _LEAST_ROUNDS and spent > _BUDGET_SECONDS:
            break
    for sized in reducers.values():
        for reducer in sized:
            reducer.close()
    told: Table = communicator.broadcast_value(table)
    return told


def choose(table: Table, nbytes: int) -> str:
    """The algorithm for gradients of that length: the first unless another is clearly faster."""
    first = next(iter(table))
    best = min(table, key=lambda name: estimate(table[name], nbytes))
    if estimate(table[best], nbytes) < _CLEARLY * estimate(table[first], nbytes):
        return best
    return first


def estimate(seconds: Sequence[float], nbytes: int) -> float:
    """Seconds for a length, from those of the probes: a line, level below the short one."""
    short, long = PROBE_BYTES
    slope = max(seconds[1] - seconds[0], 0.0) / (long - short)
    return seconds[0] + slope * max(nbytes - short, 0)


def gradient_bytes(plan: BucketPlan) -> int:
    """Length of all buckets."""
    return sum(bucket.num_elements * stored_dtype(bucket.dtype).itemsize for bucket in plan.buckets)


def describe_choice(name: str, table: Table, nbytes: int, groups: Sequence[Sequence[int]]) -> str:
    """One line for the log."""
    ranks = sum(len(group) for group in groups)
    hosts = "1 host" if len(groups) == 1 else f"{len(groups)} hosts"
    text = f"gradients ({nbytes / _MEBIBYTE:.1f} MiB) of {ranks} ranks on {hosts}: {name}"
    times = [f"{each} {1e3 * estimate(table[each], nbytes):.2f} ms" for each in table]
    return f"{text}; expected from what was measured: {', '.join(times)}"


def _probe(nbytes: int) -> TensorSpec:
    return TensorSpec("probe", (nbytes // 4,), "float32")
