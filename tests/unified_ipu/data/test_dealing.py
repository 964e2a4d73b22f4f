"""Rows of a pipeline, dealt to the ranks of a host."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from unified_ipu.data.dealing import Stream
from unified_ipu.data.producer import Chunk, RowQueue, blocks_of
from unified_ipu.data.schedule import Schedule
from unified_ipu.errors import DataError
from unified_ipu.plan import BatchPlan

SCHEDULE = Schedule(BatchPlan(8, 2, 2), 21, seed=1, shuffle=True, train=True)


class Identity:
    """A producer whose rows are the ids."""

    def __init__(self, row_bytes=0):
        self._row_bytes = row_bytes
        self.asked = []

    def row_bytes(self):
        return self._row_bytes

    def open(self, blocks, *, rows):
        self.asked.append(rows)
        ids = np.concatenate([ids for ids, _ in blocks()])
        for start in range(0, len(ids), rows):
            yield ids[start : start + rows], ids[start : start + rows] * 10


class Writer:
    """Keeps what it is given; may be a rank that is gone."""

    def __init__(self, gone=False):
        self.gone = gone
        self.got = []
        self._targets: Any = None

    def reserve(self, chunk, rows):
        self._targets = [np.empty((rows, *a.shape[1:]), a.dtype) for a in chunk.arrays]
        return 0, 0, self._targets

    def publish(self, slot, layout, stream, ordinal, rows):
        if self.gone:
            raise BrokenPipeError
        self.got.append((ordinal, [target.tolist() for target in self._targets]))


def open_stream(producer, start_update=0):
    return Stream(0, 0, start_update, schedule=SCHEDULE, replicas=(0, 1), producer=producer)


def deal(stream, writers):
    while stream.portion is not None:
        writer = writers[stream.portion.replica]
        try:
            stream.write(writer)
        except BrokenPipeError:
            writers = {**writers, 1: None}


@pytest.mark.parametrize("row_bytes", [0, 16, 1 << 20])
def test_l2_rows_reach_the_replica_that_the_schedule_says(row_bytes):
    writers = {0: Writer(), 1: Writer()}
    deal(open_stream(Identity(row_bytes)), writers)
    for replica, writer in writers.items():
        expected = [
            (p.ordinal, [p.row_ids.tolist(), (p.row_ids * 10).tolist()])
            for p in SCHEDULE.portions(0, [replica])
        ]
        assert writer.got == expected


@pytest.mark.parametrize("gone", [None, Writer(gone=True)])
def test_rows_of_a_rank_that_is_gone_are_left_out_and_the_others_keep_theirs(gone):
    there, alone = Writer(), Writer()
    deal(open_stream(Identity()), {0: alone, 1: Writer()})
    deal(open_stream(Identity()), {0: there, 1: gone})
    assert there.got == alone.got


def test_small_rows_are_made_many_micro_batches_at_a_time():
    for row_bytes, rows in [(0, 4), (16, 32), (1 << 19, 8), (1 << 30, 4)]:
        producer = Identity(row_bytes)
        open_stream(producer).warm_up()
        assert producer.asked == [rows]


def test_a_pass_may_start_at_any_update():
    writers = {0: Writer(), 1: Writer()}
    deal(open_stream(Identity(), start_update=2), writers)
    last = SCHEDULE.order(0).slice(16, 21).tolist()
    assert [ids for _, (ids, _) in writers[0].got] == [last[:2], last[4:]]
    assert [ids for _, (ids, _) in writers[1].got] == [last[2:4]]


def test_blocks_hold_all_rows_in_order_and_their_seeds():
    schedule = Schedule(BatchPlan(64, 16), 10000, seed=1, shuffle=True, train=True)
    blocks = list(blocks_of(schedule.portions(0, [0]), seed=1, epoch=0))
    assert len(blocks) > 1
    ids = np.concatenate([ids for ids, _ in blocks])
    assert np.array_equal(ids, schedule.order(0).slice(0, 10000))
    assert all(seeds.shape == (len(ids), 2) for ids, seeds in blocks)


def test_a_pipeline_that_ends_early_is_an_error():
    queue = RowQueue(iter([(np.arange(3), np.arange(3))]))
    queue.take(2, None)
    with pytest.raises(DataError, match="ended before all samples were made"):
        queue.take(2, None)


def test_rows_of_two_shapes_cannot_share_a_micro_batch():
    results = [(np.arange(2), {"x": np.zeros((2, k))}) for k in (3, 4)]
    with pytest.raises(
        DataError, match=r"\['x'\] has rows of float64 \(3,\) and of float64 \(4,\)"
    ):
        RowQueue(iter(results)).take(3, None)
    RowQueue(iter(results)).take(2, None)


def test_trees_of_two_forms_cannot_share_a_micro_batch():
    results = [(np.arange(2), np.zeros(2)), (np.arange(2), (np.zeros(2),))]
    with pytest.raises(DataError, match="tree of a batch changed"):
        RowQueue(iter(results)).take(3, None)


def test_a_chunk_needs_one_row_a_sample():
    with pytest.raises(DataError, match=r"leaf \[1\] has shape \(\) for 3 samples"):
        Chunk.of(np.arange(3), (np.zeros(3), 5))
