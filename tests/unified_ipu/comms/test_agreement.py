"""The agreement law: ranks that disagree, refuse, leave, give up or do not come."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any, List

import numpy as np
import pytest

from unified_ipu.comms import local_group
from unified_ipu.comms.signature import build_signature
from unified_ipu.errors import CollectiveError, CollectiveTimeoutError, PeerLostError
from unified_ipu.testing.threads import run_ranks

pytestmark = pytest.mark.usefixtures("every_transport")

SLEEPS = {
    "shm": "unified_ipu.comms.watch.futex_wait",
    "c10d": "unified_ipu_torch.c10d_watch._is_done",
}


def errors_of(size, function, kind=CollectiveError):
    """What ``function(communicator)`` raises on each rank; afterwards all are still in step."""

    def run(_, communicator):
        with pytest.raises(kind) as caught:
            function(communicator)
        assert communicator.all_reduce(np.arange(3)).tolist() == [0, size, 2 * size]
        big = communicator.all_reduce(np.full(300_000, communicator.rank))
        assert set(big.tolist()) == {sum(range(size))}
        return str(caught.value)

    return run_ranks(size, run)


def run_apart(communicators, *functions):
    """One function a rank; its result, or the error it raised."""
    results: List[Any] = [None] * len(functions)

    def run(rank):
        try:
            results[rank] = functions[rank](communicators[rank])
        except CollectiveError as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(functions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


@pytest.mark.case("O-C5")
@pytest.mark.parametrize(
    ("first", "second", "named"),
    [
        (np.zeros(2, np.float32), np.zeros(2, np.float64), ("float32 (2,)", "float64 (2,)")),
        (np.zeros(4, np.float32), np.zeros(6, np.float32), ("float32 (4,)", "float32 (6,)")),
        (np.arange(6).reshape(2, 3), np.arange(6).reshape(3, 2), ("(2, 3)", "(3, 2)")),
        (np.zeros(4, np.float32), np.zeros(400_000, np.float32), ("(4,)", "(400000,)")),
    ],
    ids=["dtype", "count", "shape", "pieces"],
)
def test_l4_c5_different_arrays_are_an_error_on_both_ranks(first, second, named):
    arrays = [first, second]
    texts = errors_of(2, lambda c: c.all_reduce(arrays[c.rank], name="grads"))
    assert texts[0] == texts[1]
    for part in ("rank 0: ", "rank 1: ", "'grads'", *named):
        assert part in texts[0]


@pytest.mark.parametrize(
    "calls",
    [
        (lambda c: c.barrier(), lambda c: c.all_reduce(np.zeros(3))),
        (lambda c: c.all_gather(np.zeros(3)), lambda c: c.broadcast(np.zeros(3))),
        (lambda c: c.broadcast_value(1), lambda c: c.all_gather_value(1)),
        (lambda c: c.broadcast(np.zeros(3), root=0), lambda c: c.broadcast(np.zeros(3), root=1)),
        (lambda c: c.all_reduce(np.zeros(3)), lambda c: c.all_reduce(np.zeros(3), op="max")),
        (lambda c: c.barrier("save"), lambda c: c.barrier("load")),
        (lambda c: c.split(0), lambda c: c.allocate_shared(64, "x")),
        (lambda c: c.all_gather(np.zeros((2, 3))), lambda c: c.all_gather(np.zeros((2, 4)))),
    ],
)
def test_l4_different_collectives_are_an_error_on_both_ranks(calls):
    texts = errors_of(2, lambda c: calls[c.rank](c))
    assert texts[0] == texts[1]
    assert "the ranks disagree about collective 1: rank 0: " in texts[0]


def test_l4_equal_ranks_are_named_together():
    texts = errors_of(4, lambda c: c.barrier("late" if c.rank == 2 else "early"))
    assert texts[3] == (
        "the ranks disagree about collective 1: ranks 0, 1, 3: barrier 'early'; "
        "rank 2: barrier 'late'. Call the same collective with the same dtype, shape and name on "
        "every rank"
    )


@pytest.mark.case("O-C2")
@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda c: c.all_reduce(np.array([1, 2]), op="mean"), "the mean of int64 is not defined"),
        (lambda c: c.all_reduce(np.array([True])), "a sum of bool would not count"),
        (lambda c: c.all_reduce(np.zeros(2, complex), op="max"), "complex numbers have no max"),
        (lambda c: c.all_reduce(np.zeros(2), op="product"), "op 'product' is not one of"),
        (lambda c: c.all_reduce(np.array([object()])), "dtype object cannot be sent"),
        (lambda c: c.all_reduce(np.array(["a"])), "dtype <U1 cannot be sent"),
        (lambda c: c.broadcast(np.zeros(2), root=5), "root 5 is not in 0..1"),
        (lambda c: c.reduce(np.zeros(2), root=-1), "root -1 is not in 0..1"),
        (lambda c: c.all_gather(np.float32(1)), "a scalar has no axis 0"),
        (lambda c: c.reduce_scatter(np.float32(1)), "a scalar has no axis 0"),
        (lambda c: c.all_reduce(np.zeros(2), out=np.zeros(3)), "out is a float64 (3,)"),
        (lambda c: c.all_reduce(np.zeros(2), out=np.zeros(2, int)), "out is a int64 (2,)"),
        (lambda c: c.all_gather_value({1, 2}), "set is no JSON value"),
        (lambda c: c.split(object()), "no JSON value"),
    ],
)
def test_l4_what_cannot_be_done_is_an_error_on_all_ranks(call, reason):
    assert all(reason in text for text in errors_of(2, call))


def test_l4_what_one_rank_cannot_do_is_an_error_on_all_ranks():
    arrays = [np.zeros(3), np.array([object()] * 3)]
    texts = errors_of(2, lambda c: c.all_reduce(arrays[c.rank], name="odd"))
    assert texts[0] == texts[1]
    assert "rank 1: all_reduce sum object (0,) 'odd' (refused: dtype object" in texts[0]


def test_l4_a_value_that_is_no_json_on_the_root_is_an_error_on_all_ranks():
    texts = errors_of(3, lambda c: c.broadcast_value({1} if c.rank == 1 else 2, root=1))
    assert all("set is no JSON value" in text for text in texts)


def test_l4_a_read_only_output_is_refused():
    out = np.zeros(2)
    out.flags.writeable = False
    assert "out is a read-only" in errors_of(2, lambda c: c.all_reduce(np.zeros(2), out=out))[0]


def test_l4_an_array_that_raises_is_an_error_on_all_ranks():
    class Broken:
        def __array__(self, *_, **__):
            raise RuntimeError("it lives on a device")

    texts = errors_of(2, lambda c: c.all_reduce(Broken() if c.rank else np.zeros(2)))
    assert all("Broken is no array on the host: it lives on a device" in text for text in texts)


def test_l4_the_first_to_give_up_is_named_by_all():
    communicators = local_group(3)

    def give_up(communicator):
        communicator.abort("ValueError: bad input")
        communicator.abort("a later cause")
        communicator.barrier()

    results = run_apart(communicators, lambda c: c.barrier(), give_up, lambda c: c.barrier())
    assert all(isinstance(error, PeerLostError) for error in results)
    assert {str(error) for error in results} == {"rank 1 gave up: ValueError: bad input"}
    with pytest.raises(PeerLostError, match="bad input"):  # it is sticky
        communicators[2].barrier()


@pytest.mark.timeout(60)
def test_l4_many_who_give_up_at_once_are_one_cause():
    for _ in range(20):
        communicators = local_group(4)

        def give_up(communicator):
            communicator.abort(f"cause of {communicator.rank}")
            communicator.barrier()

        assert len({str(error) for error in run_apart(communicators, *[give_up] * 4)}) == 1


def test_l4_giving_up_reaches_groups_and_pipes():
    communicators = local_group(4)

    def in_group(communicator):
        communicator.split(communicator.rank % 2).barrier()

    def give_up(communicator):
        communicator.split(1)
        communicator.abort("no reason")
        raise PeerLostError("itself")

    def receive(communicator):
        communicator.split(None)
        communicator.recv(source=1)

    results = run_apart(communicators, in_group, give_up, receive, in_group)
    assert isinstance(results[2], PeerLostError)
    assert str(results[3]) == str(results[2]) == "rank 1 gave up: no reason"


def test_l4_a_rank_that_has_left_is_named():
    communicators = local_group(3)

    def leave(communicator):
        communicator.barrier("last")
        communicator.close()

    def stay(communicator):
        communicator.barrier("last")
        communicator.note("saving")
        communicator.barrier("one more")

    results = run_apart(communicators, stay, leave, stay)
    assert isinstance(results[0], PeerLostError)
    assert str(results[0]) == str(results[2])
    for part in ("rank 1 is lost", "has left", "barrier 'one more' (collective 2)", "'last'"):
        assert part in str(results[0])


def test_a_closed_communicator_is_refused():
    for size in (1, 2):
        communicator = local_group(size)[0]
        communicator.close()
        communicator.close()
        with pytest.raises(CollectiveError, match="is closed"):
            communicator.barrier()


def test_l4_a_late_rank_ends_the_job_on_all_ranks(every_transport):
    communicators = local_group(3, timeout_seconds=0.6)

    def late(communicator):
        communicator.barrier("first")
        communicator.note("reading sample 17")
        time.sleep(1.5)
        communicator.all_reduce(np.zeros(2))

    def punctual(communicator):
        communicator.barrier("first")
        communicator.all_reduce(np.zeros(2), name="grads")

    results = run_apart(communicators, punctual, late, punctual)
    assert all(isinstance(error, CollectiveTimeoutError) for error in results)
    assert len({str(error) for error in results}) == 1
    for part in (
        "rank 1 did not come to all_reduce sum float64 (2,) 'grads' (collective 2) within 0.6 s",
        "its last was 1, barrier 'first'",
        "comms.timeout_seconds",
    ):
        assert part in str(results[0])
    # Over c10d notes travel with collectives, and it entered none after this one.
    assert ('last note "reading sample 17"' in str(results[0])) == (every_transport == "shm")


def test_l4_an_announced_phase_does_not_time_out_and_is_reported(caplog):
    communicators = local_group(2, timeout_seconds=0.5, stall_report_seconds=0.3)

    def compile_first(communicator):
        with communicator.phase("compiling"), communicator.phase("loading"):
            time.sleep(1.2)
        return communicator.all_reduce(np.arange(2)).tolist()

    with caplog.at_level(logging.WARNING, logger="unified_ipu.comms"):
        results = run_apart(
            communicators, lambda c: c.all_reduce(np.arange(2)).tolist(), compile_first
        )
    assert results == [[0, 2]] * 2
    assert "announced phase: loading" in caplog.text


def test_l4_the_phase_ends_with_its_block():
    communicators = local_group(2, timeout_seconds=0.2)

    def slow_after(communicator):
        with communicator.phase("saving"):
            pass
        time.sleep(0.8)
        communicator.barrier()

    results = run_apart(communicators, lambda c: c.barrier(), slow_after)
    assert all(isinstance(error, CollectiveTimeoutError) for error in results)


def test_l4_a_stall_is_logged_by_the_first_rank_that_waits_only(every_transport, caplog):
    communicators = local_group(3, stall_report_seconds=0.3)

    def late(communicator):
        communicator.note("decoding")
        time.sleep(0.5)
        communicator.barrier()

    with caplog.at_level(logging.WARNING, logger="unified_ipu.comms"):
        run_apart(communicators, late, lambda c: c.barrier(), lambda c: c.barrier())
    assert len({record.threadName for record in caplog.records}) == 1
    text = caplog.text
    for part in ("rank 0: it has entered no collective yet", "in barrier"):
        assert part in text
    assert ('"decoding"' in text) == (every_transport == "shm")


def test_waiting_seconds_count_what_a_rank_was_blocked():
    communicators = local_group(2)

    def late(communicator):
        time.sleep(0.3)
        communicator.barrier()
        return communicator.waiting_seconds

    def punctual(communicator):
        communicator.barrier()
        return communicator.waiting_seconds

    waited, blocked = run_apart(communicators, late, punctual)
    assert blocked > 0.2
    assert waited < blocked


def test_an_interrupted_collective_is_not_entered_again(every_transport, monkeypatch):
    communicators = local_group(2)

    def interrupt(*_, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr(SLEEPS[every_transport], interrupt)
    with pytest.raises(KeyboardInterrupt):
        communicators[0].all_reduce(np.zeros(2), name="grads")
    monkeypatch.undo()
    with pytest.raises(CollectiveError, match="'grads' was interrupted before"):
        communicators[0].barrier()


def test_long_and_foreign_names_do_no_harm():
    name = "é" * 400
    texts = errors_of(2, lambda c: c.barrier(name + str(c.rank)))
    assert all("the ranks disagree" in text for text in texts)

    def note(_, communicator):
        communicator.note(name)
        communicator.barrier()

    run_ranks(2, note)


def test_a_signature_depends_on_text_name_and_problem():
    made = {
        build_signature("barrier").digest,
        build_signature("barrier", "a").digest,
        build_signature("barrier", "b").digest,
        build_signature("barrier", "", "odd").digest,
        build_signature("other").digest,
    }
    assert len(made) == 5
    assert build_signature("barrier", "a") == build_signature("barrier", "a")
