"""The ring between the data process and a rank, both ends in this process."""

from __future__ import annotations

import gc
import os
import select
import socket
import threading

import numpy as np
import pytest

from unified_ipu.data.arena import Arena
from unified_ipu.data.layout import form_of, tree_of
from unified_ipu.data.messages import Channel, Kind, Message, shorten
from unified_ipu.data.producer import Chunk
from unified_ipu.data.ring_reader import RingReader
from unified_ipu.data.ring_writer import RingWriter, _num_slots
from unified_ipu.errors import DataError


class Ring:
    """Both ends, and a count of private copies."""

    def __init__(self):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.copies = 0
        self.writer = RingWriter(Channel(ours))
        self.reader = RingReader(
            Channel(theirs), on_copy=self.count, explain_end=lambda: "it ended"
        )
        self.sent = 0

    def count(self, num_bytes):
        self.copies += num_bytes > 0

    def write(self, value, shape=(2, 3), dtype="float32"):
        x, y = np.full(shape, value, dtype), np.arange(shape[0])
        tree = {"x": x, "y": [y]}
        chunk = Chunk.of(np.arange(shape[0]) + 100 * value, tree)
        slot, layout, targets = self.writer.reserve(chunk, shape[0])
        for target, array in zip(targets, chunk.arrays):
            np.copyto(target, array)
        self.writer.publish(slot, layout, 0, self.sent, shape[0])
        self.sent += 1

    def read(self):
        return self.reader.take(self.reader.next_batch())

    def hear_releases(self):
        """What the data process does between two batches; returns the number of slots."""
        self.reader.flush()
        count = 0
        while select.select([self.writer.channel.fileno()], [], [], 0)[0]:
            message, _ = self.writer.channel.receive()
            if message is None:
                break
            self.writer.release(message.ordinal, message.generation)
            count += bin(message.ordinal).count("1")
        return count


@pytest.fixture
def ring():
    made = Ring()
    yield made
    made.reader.close()
    made.writer.close()


def test_rows_ids_and_tree_arrive(ring):
    ring.write(7)
    delivery = ring.read()
    assert delivery.row_ids.tolist() == [700, 701]
    assert delivery.tree["x"].tolist() == [[7, 7, 7], [7, 7, 7]]
    assert delivery.tree["y"][0].tolist() == [0, 1]
    assert isinstance(delivery.tree["y"], list)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int16", "int64", "float16", "float64"])
def test_leaves_are_writable_contiguous_and_start_on_a_line(ring, dtype):
    ring.write(1, shape=(3, 5), dtype=dtype)
    leaf = ring.read().tree["x"]
    assert leaf.dtype == np.dtype(dtype)
    assert leaf.flags.c_contiguous
    assert leaf.flags.writeable
    assert leaf.ctypes.data % 64 == 0
    assert ring.copies == 0


def test_empty_and_scalar_rows_survive(ring):
    ring.write(1, shape=(2, 0))
    assert ring.read().tree["x"].shape == (2, 0)
    ring.write(2, shape=(4,))
    assert ring.read().tree["x"].tolist() == [2, 2, 2, 2]


@pytest.mark.case("O-I4")
def test_batches_that_are_kept_are_never_overwritten(ring):
    kept = []
    for value in range(40):
        ring.hear_releases()
        assert ring.writer.is_ready
        ring.write(value)
        kept.append(ring.read())
    assert [delivery.tree["x"][0, 0] for delivery in kept] == list(range(40))
    assert [delivery.row_ids[0] for delivery in kept] == [100 * value for value in range(40)]
    assert ring.copies == 40 - 31  # of 32 slots; with the last one copies begin


def test_batches_that_are_dropped_in_time_are_never_copied(ring):
    before = None
    for value in range(30):
        ring.hear_releases()
        ring.write(value)
        before = ring.read()
        assert before.tree["x"][0, 0] == value
    assert ring.copies == 0


def test_a_full_ring_is_not_ready_until_a_slot_comes_back(ring):
    for value in range(32):
        assert ring.writer.is_ready
        ring.write(value)
    assert not ring.writer.is_ready
    delivery = ring.read()
    assert ring.hear_releases() == 0
    del delivery
    assert ring.hear_releases() == 1
    assert ring.writer.is_ready


@pytest.mark.parametrize(
    "keep",
    [
        lambda x: x[1:],
        lambda x: x[1:].T,
        memoryview,
        lambda x: x.view(np.uint8),
        lambda x: np.asarray(memoryview(x)),
        list,
    ],
)
def test_any_view_holds_the_slot(ring, keep):
    ring.write(1)
    view = keep(ring.read().tree["x"])
    gc.collect()
    assert ring.hear_releases() == 0
    del view
    gc.collect()
    assert ring.hear_releases() == 1


def test_the_ids_do_not_hold_the_slot(ring):
    ring.write(1)
    ids = ring.read().row_ids
    gc.collect()
    assert ring.hear_releases() == 1
    assert ids.tolist() == [100, 101]


def test_a_slot_may_be_released_by_another_thread(ring):
    ring.write(1)
    box = [ring.read()]
    thread = threading.Thread(target=box.clear)
    thread.start()
    thread.join()
    assert ring.hear_releases() == 1


def test_a_larger_batch_makes_a_new_arena_and_old_slots_stay_valid(ring):
    ring.write(1)
    small = ring.read()
    ring.write(2, shape=(64, 64))
    large = ring.read()
    assert ring.reader._arena.generation == 1
    assert small.tree["x"].tolist() == [[1, 1, 1], [1, 1, 1]]
    assert (large.tree["x"] == 2).all()
    del small
    ring.hear_releases()
    assert len(ring.writer._free) == 31  # the slot of the old arena is not one of the new
    ring.write(3)
    assert ring.read().tree["x"][0, 0] == 3


@pytest.mark.parametrize(
    ("mebibytes", "slots"), [(0.01, 32), (0.5, 16), (1, 8), (8, 8), (16, 4), (40, 3), (900, 3)]
)
def test_slots_are_few_when_batches_are_large(mebibytes, slots):
    assert _num_slots(int(mebibytes * 2**20)) == slots


def test_slots_go_back_in_bundles_but_a_quarter_is_never_kept(ring):
    for value in range(16):
        ring.write(value)
    for _ in range(7):
        ring.read()
    waiting = select.select([ring.writer.channel.fileno()], [], [], 0)[0]
    assert not waiting
    ring.read()
    message, _ = ring.writer.channel.receive()
    assert message.kind == Kind.RELEASE
    assert bin(message.ordinal).count("1") == 8


def test_batches_outlive_a_closed_ring(ring):
    ring.write(5)
    delivery = ring.read()
    ring.reader.close()
    ring.writer.close()
    assert delivery.tree["x"].tolist() == [[5, 5, 5], [5, 5, 5]]
    del delivery
    gc.collect()


def test_the_end_of_the_other_side_is_an_error_that_stays(ring):
    ring.writer.close()
    for _ in range(2):
        with pytest.raises(DataError, match="it ended"):
            ring.reader.next_batch()


def test_an_end_with_something_unread_is_an_end_too(ring):
    ring.reader.send(Message(Kind.OPEN))
    ring.writer.close()
    with pytest.raises(DataError, match="it ended"):
        ring.reader.next_batch()


def test_an_error_comes_after_the_batches_before_it(ring):
    ring.write(1)
    ring.writer.tell(Message(Kind.ERROR, payload="bad row"))
    ring.read()
    with pytest.raises(DataError, match="bad row"):
        ring.read()


def test_a_long_wait_is_reported_and_goes_on(ring, monkeypatch, caplog):
    monkeypatch.setattr("unified_ipu.data.ring_reader._STALL_SECONDS", 60.0)
    ring.reader._channel.set_patience(0.05)
    writing = threading.Timer(0.3, ring.write, [4])
    writing.start()
    assert ring.read().tree["x"][0, 0] == 4
    writing.join()
    assert "loader: no batch for 60 s" in caplog.text


def test_a_layout_is_sent_once(ring):
    for value in range(5):
        ring.write(value)
        ring.read()
        ring.hear_releases()
    assert len(ring.writer._layouts) == 1


def test_memory_that_cannot_be_had_is_refused_before_it_is_asked_for(monkeypatch):
    monkeypatch.setattr("unified_ipu.data.arena.available_bytes", lambda: 1 << 20)
    with pytest.raises(DataError, match=r"2 MiB.*1 MiB.*lower batch\.micro_batch_size"):
        Arena(1 << 20, 2, 0)


def test_an_arena_cannot_shrink_under_its_reader():
    arena = Arena(4096, 2, 0)
    with pytest.raises(PermissionError):
        os.ftruncate(arena.descriptor, 10)
    arena.close()
    arena.close()


def test_messages_survive_the_wire():
    message = Message(Kind.BATCH, 1, 2, 3, 4, 2**40, 2**41, {"a": [1, "\u00e4"]})
    assert Message.from_bytes(bytearray(message.to_bytes())) == message
    plain = Message(Kind.RELEASE, slot=3)
    assert len(plain.to_bytes()) == 40
    assert Message.from_bytes(bytearray(plain.to_bytes())) == plain


def test_long_texts_keep_both_ends():
    text = shorten("a" * 20000 + "z" * 20000, limit=100)
    assert text == "a" * 50 + "\n[...]\n" + "z" * 50
    assert shorten("short") == "short"


def test_forms_rebuild_trees():
    tree = {"b": (1, [2, {"c": 3}]), "a": 4}
    form = form_of(tree)
    rebuilt = tree_of(form, [np.array(k) for k in (1, 2, 3, 4)])
    assert list(rebuilt) == ["b", "a"]
    assert rebuilt["b"][1][1]["c"] == 3
    assert isinstance(rebuilt["b"], tuple)
    with pytest.raises(DataError, match="keys of a batch must be strings"):
        form_of({1: 2})
