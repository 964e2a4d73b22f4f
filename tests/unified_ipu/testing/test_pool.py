"""The warm pool: ranks that serve many tests."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

import numpy as np
import pytest

from unified_ipu.errors import LaunchError
from unified_ipu.testing import WarmPool

pytestmark = pytest.mark.timeout(120)


@dataclass(frozen=True)
class Answer:
    rank: int
    total: float


@pytest.fixture(scope="module")
def pool():
    with WarmPool(size=2, preload=()) as one:
        yield one


def place_in_world(world):
    return world.rank, world.world_size, world.job, os.getpid()


def scaled(world, *, array):
    return array * (world.rank + 1)


def typed(world):
    return Answer(world.rank, 0.5)


def failing_on_rank_1(world):
    if world.rank == 1:
        raise ValueError("bad sample 7")
    time.sleep(100)


def dying(world):
    print("last words", flush=True)
    if world.rank == 0:
        os._exit(3)


def hanging(world):
    time.sleep(100)


def exiting(world):
    raise SystemExit(4)


def test_every_rank_gets_its_place_and_every_run_its_own_job(pool):
    first, second = pool.run(place_in_world), pool.run(place_in_world)
    assert [(rank, size) for rank, size, _, _ in first] == [(0, 2), (1, 2)]
    assert first[0][2] == first[1][2] != second[0][2]


def test_processes_stay_the_same_between_runs(pool):
    first, second = pool.run(place_in_world), pool.run(place_in_world)
    assert [pid for *_, pid in first] == [pid for *_, pid in second]
    assert os.getpid() not in [pid for *_, pid in first]


def test_one_rank_needs_no_job(pool):
    assert [answer[:3] for answer in pool.run(place_in_world, size=1)] == [(0, 1, "")]


def test_arrays_pass_both_ways(pool):
    array = np.arange(200_000, dtype=np.float32)
    results = pool.run(scaled, array=array)
    np.testing.assert_array_equal(results[1], array * 2)


def test_classes_of_the_test_file_come_back(pool):
    assert pool.run(typed) == [Answer(0, 0.5), Answer(1, 0.5)]


def test_an_exception_comes_with_rank_and_traceback_and_the_hung_peer_is_replaced(
    pool, monkeypatch
):
    monkeypatch.setattr("unified_ipu.testing.pool.PEERS_SECONDS", 0.2)
    before = pool.run(place_in_world)
    with pytest.raises(LaunchError, match=r"(?s)rank 1 of 2.*failing_on_rank_1.*bad sample 7"):
        pool.run(failing_on_rank_1)
    assert {pid for *_, pid in before}.isdisjoint(pid for *_, pid in pool.run(place_in_world))


def test_a_dead_rank_is_named_with_its_last_words(pool):
    with pytest.raises(LaunchError, match=r"(?s)rank 0 of 2.*status 3.*last words"):
        pool.run(dying)


def test_a_hung_rank_is_named_with_its_stack(pool):
    with pytest.raises(LaunchError, match=r"(?s)rank 0 of 2.*no answer.*in hanging"):
        pool.run(hanging, timeout=0.5)


def test_an_exit_in_a_rank_is_a_failure(pool):
    with pytest.raises(LaunchError, match="SystemExit: 4"):
        pool.run(exiting, size=1)


def test_more_ranks_than_the_pool_has_are_refused(pool):
    with pytest.raises(LaunchError, match="size=3 is more than the pool's 2"):
        pool.run(typed, size=3)
