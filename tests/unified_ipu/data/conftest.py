"""Ranks as threads of the test, and loaders for them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Callable, Dict, List

import pytest

from unified_ipu.comms import Communicator, local_group
from unified_ipu.data import Loader
from unified_ipu.events import Counters, PhaseClock
from unified_ipu.plan import BatchPlan

RunRanks = Callable[..., List[Any]]


@pytest.fixture(scope="session")
def run_ranks() -> RunRanks:
    """``run_ranks(size, function)``: ``function(communicator)`` on each rank, results by rank."""

    def run(size: int, function: Callable[[Communicator], Any]) -> List[Any]:
        group = local_group(size)
        try:
            with ThreadPoolExecutor(size) as pool:
                return [job.result(timeout=60) for job in [pool.submit(function, c) for c in group]]
        finally:
            for communicator in group:
                communicator.close()

    return run


@pytest.fixture(scope="session")
def make_loader() -> Callable[..., Loader]:
    """A loader of one rank, with what most tests do not care about filled in."""

    def make(communicator: Communicator, source: Any, batch: BatchPlan, **changes: Any) -> Loader:
        options: Dict[str, Any] = {
            "replica": communicator.rank,
            "seed": 0,
            "shuffle": True,
            "train": True,
            "clock": PhaseClock(),
            "counters": Counters(),
            "search_path": [str(Path(__file__).parent)],
        }
        options.update(changes)
        return Loader(source, batch=batch, communicator=communicator, **options)

    return make
