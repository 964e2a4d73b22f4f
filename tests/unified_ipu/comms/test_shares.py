"""Work in common: every item is done once, by whoever is free, and who fails is named."""

from __future__ import annotations

import threading
from typing import List

import pytest

from unified_ipu.comms import build_signature
from unified_ipu.comms.shares import MOST_ITEMS
from unified_ipu.errors import CollectiveTimeoutError, PeerLostError
from unified_ipu.plan import TensorSpec, plan_buckets
from unified_ipu.testing.threads import run_ranks


def shared(communicator, num_items, *works):
    """The values of one collective with a round of each work."""
    communicator.enter(build_signature("work"))
    shares = communicator._group.lanes.shares
    shares.begin()
    values = [shares.share(num_items, work).tolist() for work in works]
    communicator.finish()
    return values


@pytest.mark.parametrize("num_items", [0, 1, 7, MOST_ITEMS])
def test_every_item_is_done_once_and_seen_by_all(num_items):
    done = [0] * num_items

    def run(_, communicator):
        def work(item):
            done[item] += 1
            return 0.5 * item

        return [shared(communicator, num_items, work, lambda item: -item) for _ in range(5)]

    first = [0.5 * item for item in range(num_items)]
    assert run_ranks(3, run) == [[[first, [-2 * value for value in first]]] * 5] * 3
    assert done == [5] * num_items


def test_who_is_free_does_the_work_of_who_is_not():
    others_are_done = threading.Event()
    done: List[List[int]] = [[], [], []]

    def run(_, communicator):
        mine = done[communicator.rank]

        def work(item):
            mine.append(item)
            if sum(map(len, done)) == 9:
                others_are_done.set()
            if item == 3:  # the first of the second rank's part
                assert others_are_done.wait(30)
            return 1.0

        return shared(communicator, 9, work)

    assert run_ranks(3, run) == [[[1.0] * 9]] * 3
    assert sorted(item for mine in done for item in mine) == list(range(9))
    assert [mine[-1] for mine in done if 3 in mine] == [3]


def test_l4_who_keeps_an_item_too_long_is_named():
    keeper = []
    others_gave_up = threading.Event()

    def run(_, communicator):
        def work(item):
            if item == 4:
                keeper.append(communicator.rank)
                assert others_gave_up.wait(30)
            return 0.0

        def share_and_meet():
            shared(communicator, 9, work)
            communicator.barrier()  # the keeper was done with its item in the end

        with pytest.raises(CollectiveTimeoutError) as caught:
            share_and_meet()
        others_gave_up.set()
        return str(caught.value)

    texts = run_ranks(3, run, timeout_seconds=0.3)
    assert texts == texts[:1] * 3
    assert f"rank {keeper[0]} did not come to work (collective 1) within 0.3 s" in texts[0]
    assert "it is inside collective 1, work" in texts[0]


def test_l4_who_gives_up_with_an_item_ends_the_others():
    def run(_, communicator):
        def work(item):
            if item:
                return 0.0
            communicator.abort("no memory")
            raise MemoryError

        with pytest.raises((MemoryError, PeerLostError)) as caught:
            shared(communicator, 9, work)
        return str(caught.value)

    texts = run_ranks(3, run)
    assert min(texts) == ""
    assert all("gave up: no memory" in text for text in sorted(texts)[1:])


def test_a_rank_whose_core_others_use_waits_for_no_more_than_its_piece():
    """A reduction ends though one rank never begins to sum: the others do its part."""
    plan = plan_buckets([TensorSpec("p", (100_000,), "float32")], 2**20)

    def run(_, communicator):
        reducer = communicator.reducer(plan, 1)
        reducer.gradients[0][:100_000] = communicator.rank + 1
        if communicator.rank == 1:
            shares = communicator._group.lanes.shares
            shares._order = lambda _: ()
        done = reducer.reduce(contributes=True, divide=lambda _: 0.5)
        return done.squared_norm, set(reducer.gradients[0][:100_000].tolist())

    assert run_ranks(2, run) == [(225_000.0, {1.5})] * 2


def test_pieces_that_are_more_than_items_are_put_together(monkeypatch):
    plan = plan_buckets([TensorSpec(f"p{index}", (5_000,), "float32") for index in range(7)], 64)

    def run(_, communicator):
        reducer = communicator.reducer(plan, 1)
        for index, buffer in enumerate(reducer.gradients):
            buffer.fill(0)
            buffer[:5_000] = index
        done = reducer.reduce(contributes=True, divide=lambda _: 1.0, clip_norm=None)
        return done.squared_norm, [float(buffer[4_999]) for buffer in reducer.gradients]

    apart = run_ranks(3, run)
    monkeypatch.setattr("unified_ipu.comms.reducer.MOST_ITEMS", 4)
    assert run_ranks(3, run) == apart == [(4_095_000.0, [3.0 * index for index in range(7)])] * 3
