"""How far a stream is known: alike on all ranks, whatever they have heard of it."""

from __future__ import annotations

import pytest

from unified_ipu.comms import connect
from unified_ipu.data.frontier import Frontier
from unified_ipu.data.schedule import Schedule
from unified_ipu.errors import DataError
from unified_ipu.plan import BatchPlan


class Heard:
    """A feed of a stream of ``size`` samples that may be far ahead."""

    def __init__(self, size, ahead=0, is_spread=False):
        self.size = size
        self.ahead = ahead
        self.is_spread = is_spread
        self.begun = []

    def begin(self, epoch, start_update):
        self.begun.append((epoch, start_update))

    def extent(self, samples):
        return min(self.size, samples + self.ahead), samples + self.ahead > self.size


def frontier(feed, communicator=None, per_call=2):
    schedule = Schedule(BatchPlan(4, 2, 1, per_call), 0, seed=0, shuffle=False, train=True)
    communicator = communicator or connect(rank=0, size=1, job="")
    return Frontier(schedule, 0, feed=feed, communicator=communicator, name="words")


@pytest.mark.parametrize("ahead", [0, 3, 100])
def test_windows_end_where_they_end_however_much_more_is_known(ahead):
    known = frontier(Heard(21, ahead))
    cursor = known.begin(0, 4)
    reached, position = [], 4
    while True:
        samples = known.reach(cursor, position)
        if samples == position:
            break
        reached.append(samples)
        position = samples
    assert reached == [12, 20, 21]
    dealt = []
    portion = cursor.take()
    while portion is not None:
        dealt += portion.ids.tolist()
        portion = cursor.take()
    assert dealt == list(range(4, 21))


def test_a_position_inside_of_an_update_is_looked_for_from_its_start():
    feed = Heard(21)
    known = frontier(feed)
    cursor = known.begin(3, 21)
    assert feed.begun == [(3, 5)]
    assert known.reach(cursor, 21) == 21
    assert cursor.take() is None
    known.check_start(3, 21, 21)
    with pytest.raises(DataError, match=r"words: epoch 3 .* after 19 samples, now it has 21"):
        known.check_start(3, 19, 21)


def test_l4_hosts_with_different_streams_fail_on_all_ranks(run_ranks):
    def rank(communicator):
        known = frontier(Heard(21 + communicator.rank, is_spread=True), communicator, per_call=8)
        cursor = known.begin(0, 0)
        with pytest.raises(DataError, match=r"words: the stream has \[21, 22\] samples on ranks"):
            known.reach(cursor, 0)
        return True

    assert run_ranks(2, rank) == [True, True]
