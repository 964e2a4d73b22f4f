"""Gradients over ranks of several hosts: bits, blame, and waits that know of each other.

Ranks are threads over gloo; which host each is on is said by the node's number.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

import numpy as np
import pytest

import unified_ipu as ui
from unified_ipu.comms import NonFinite, arranged
from unified_ipu.errors import (
    CollectiveError,
    CollectiveTimeoutError,
    PeerLostError,
    PlanError,
)
from unified_ipu.plan import CommsSettings, TensorSpec, plan_buckets
from unified_ipu.world import World
from unified_ipu_numpy import MeanSquaredError, Mlp
from unified_ipu_torch.c10d import local_group

PLAN = plan_buckets([TensorSpec("w", (5001,), "float32"), TensorSpec("b", (3,), "float32")], 2**12)
PAIRS = (0, 0, 1, 1)


def run(
    hosts, work, *, algorithm="hierarchical", deterministic=False, timeout_seconds=20.0, **settings
):
    """``work(communicator)`` of each rank, or the error that it raised."""
    group = local_group(len(hosts), timeout_seconds=timeout_seconds, **settings)
    comms = CommsSettings(algorithm=algorithm, timeout_seconds=timeout_seconds, **settings)
    results: list[Any] = [None] * len(hosts)

    def rank(communicator):
        try:
            communicator.arrange(
                comms, node_rank=hosts[communicator.rank], deterministic=deterministic
            )
            results[communicator.rank] = work(communicator)
        except Exception as error:  # noqa: BLE001  # what is looked at
            results[communicator.rank] = error

    threads = [threading.Thread(target=rank, args=(each,)) for each in group]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for communicator in group:
        communicator.close()
    return results


def contribution(rank, dtype=np.float32):
    return np.random.default_rng(rank).normal(size=5001).astype(dtype)


def put(reducer, plan, index, values):
    slot = plan.slots[index]
    buffer = reducer.gradients[slot.bucket]
    buffer[slot.offset : slot.offset + len(values)] = values


def taken(reducer, plan, index, length):
    slot = plan.slots[index]
    return reducer.gradients[slot.bucket][slot.offset : slot.offset + length].copy()


def summed(communicator, plan=PLAN, dtype=np.float32, change=None, **settings):
    reducer = communicator.reducer(plan, 2)
    mine = contribution(communicator.rank, dtype)
    if change is not None:
        change(communicator.rank, mine)
    put(reducer, plan, 0, mine)
    reducer.header[:] = [1.0, communicator.rank]
    done = reducer.reduce(contributes=True, divide=lambda header: 1.0, **settings)
    return done, taken(reducer, plan, 0, 5001)


@pytest.mark.parametrize(
    ("hosts", "order"),
    [
        (PAIRS, lambda a, b, c, d: (a + b) + (c + d)),
        ((0, 0, 0, 1), lambda a, b, c, d: ((a + b) + c) + d),
        ((0, 1, 0, 1), lambda a, b, c, d: (a + c) + (b + d)),
        ((1, 1), lambda a, b: a + b),
    ],
    ids=["2+2", "3+1", "in turns", "1 host"],
)
def test_l4_8_sums_are_made_by_host_and_are_the_same_bits_on_all_ranks(hosts, order):
    if len(set(hosts)) == 1:
        errors = run(hosts, summed)
        assert all(isinstance(error, PlanError) for error in errors)
        assert "it joins several hosts, and all ranks are on one" in str(errors[0])
        return
    outcomes = run(hosts, summed)
    expected = order(*(contribution(rank) for rank in range(len(hosts))))
    exact = sum(contribution(rank).astype(np.float64) for rank in range(len(hosts)))
    for done, result in outcomes:
        assert result.tobytes() == expected.tobytes()
        assert done.header.tolist() == [4.0, 6.0]
        assert done.squared_norm == outcomes[0][0].squared_norm
        assert done.squared_norm == pytest.approx(float((exact**2).sum()), rel=1e-6)


def test_l4_8_a_ring_adds_each_share_in_its_own_order():
    outcomes = run(PAIRS, summed, algorithm="ring")
    inputs = [contribution(rank) for rank in range(4)]
    slot = PLAN.slots[0]
    share_length = PLAN.buckets[slot.bucket].num_elements // 4
    for _, result in outcomes:
        assert result.tobytes() == outcomes[0][1].tobytes()
        for share in range(4):
            first = max(share * share_length - slot.offset, 0)
            part = slice(first, (share + 1) * share_length - slot.offset)
            a, b, c, d = (inputs[(share + step) % 4][part] for step in range(4))
            assert result[part].tobytes() == (((a + b) + c) + d).tobytes()


def test_halves_are_rounded_once():
    plan = plan_buckets([TensorSpec("w", (5001,), "float16")], 2**20)
    outcomes = run(PAIRS, lambda c: summed(c, plan, np.float16))
    wide = [contribution(rank, np.float16).astype(np.float32) for rank in range(4)]
    expected = ((wide[0] + wide[1]) + (wide[2] + wide[3])).astype(np.float16)
    assert [result.tobytes() for _, result in outcomes] == [expected.tobytes()] * 4


def test_l1_9_clipping_is_one_decision():
    exact = sum(contribution(rank).astype(np.float64) for rank in range(4))
    norm = float(np.sqrt((exact**2).sum()))
    outcomes = run(PAIRS, lambda c: summed(c, clip_norm=norm / 2))
    for done, result in outcomes:
        assert done.clipped
        assert result.tobytes() == outcomes[0][1].tobytes()
        np.testing.assert_allclose(result, exact / 2, rtol=1e-5, atol=1e-6)


def test_l1_7_ranks_of_all_hosts_are_named_for_the_first_bad_tensor():
    def spoil(rank, mine):
        if rank == 0:
            mine[17] = np.inf  # in the slice of the first rank of each host
        if rank == 3:
            mine[5000] = np.nan  # in that of the second

    found = {done.non_finite for done, _ in run(PAIRS, lambda c: summed(c, change=spoil))}
    assert found == {NonFinite("w", (0, 3))}


@pytest.mark.parametrize("different", [(3,), (2, 3)], ids=["inside a host", "between hosts"])
def test_l4_2_other_buckets_are_an_error_on_all_ranks_that_stay_in_step(different):
    other = plan_buckets(
        [TensorSpec("w", (1667, 3), "float32"), TensorSpec("b", (3,), "float32")], 2**12
    )

    def work(communicator):
        plan = other if communicator.rank in different else PLAN
        reducer = communicator.reducer(plan, 2)
        with pytest.raises(CollectiveError, match="disagree") as caught:
            reducer.reduce(contributes=True, divide=lambda header: 1.0)
        communicator.barrier()
        same = communicator.reducer(PLAN, 2)
        return str(caught.value), same.reduce(contributes=True, divide=lambda header: 2.0).factor

    for text, factor in run(PAIRS, work):
        assert factor == 2.0
        assert PLAN.digest[:16] in text
        assert other.digest[:16] in text


def test_l4_2_a_rank_in_another_collective_is_an_error_on_all_ranks():
    def work(communicator):
        reducer = communicator.reducer(PLAN, 2)
        if communicator.rank == 2:
            communicator.barrier("epoch end")
        reducer.reduce(contributes=True, divide=lambda header: 1.0)

    errors = run(PAIRS, work)
    assert {type(error) for error in errors} == {CollectiveError}
    (text,) = {str(error) for error in errors}
    assert "rank 2: barrier 'epoch end'" in text
    assert "reduce gradients" in text


@pytest.mark.parametrize("late", [1, 3])
def test_l4_3_a_late_rank_is_named_by_its_place_in_the_world(late, caplog):
    gone = threading.Event()

    def work(communicator):
        reducer = communicator.reducer(PLAN, 2)
        communicator.note(f"busy with batch {communicator.rank}")
        communicator.barrier()
        if communicator.rank == late:
            gone.wait(20)
            return
        try:
            reducer.reduce(contributes=True, divide=lambda header: 1.0)
        finally:
            gone.set()

    with caplog.at_level(logging.WARNING, logger="unified_ipu.comms"):
        errors = run(PAIRS, work, timeout_seconds=1.5, stall_report_seconds=0.4)
    texts = {str(error) for rank, error in enumerate(errors) if rank != late}
    assert len(texts) == 1
    assert {type(error) for rank, error in enumerate(errors) if rank != late} == {
        CollectiveTimeoutError
    }
    assert f"rank {late} did not come to reduce gradients" in texts.pop()
    assert f'last note "busy with batch {late}"' in caplog.text


def test_l4_5_a_phase_is_known_inside_the_host_and_between_hosts():
    def work(communicator):
        reducer = communicator.reducer(PLAN, 2)
        communicator.barrier()
        if communicator.rank == 1:
            with communicator.phase("compiling"):
                time.sleep(1.6)
        return reducer.reduce(contributes=True, divide=lambda header: 1.0).factor

    assert run(PAIRS, work, timeout_seconds=0.8) == [1.0] * 4


def test_l4_4_a_rank_that_gives_up_ends_the_waits_on_its_host_and_on_others():
    def work(communicator):
        reducer = communicator.reducer(PLAN, 2)
        if communicator.rank == 3:
            communicator.abort("bad batch")
            return
        reducer.reduce(contributes=True, divide=lambda header: 1.0)

    *errors, _ = run(PAIRS, work)
    assert {type(error) for error in errors} == {PeerLostError}
    assert {str(error) for error in errors} == {"rank 3 gave up: bad batch"}


def test_a_host_without_memory_is_an_error_on_all_ranks(monkeypatch):
    def refuse(nbytes, name):
        raise CollectiveError(f"{nbytes} bytes for {name!r} are too many")

    def work(communicator):
        if communicator.rank >= 2:
            communicator._hosts.local.allocate_shared = refuse
        with pytest.raises(CollectiveError, match=r"rank 2: .* bytes for 'gradients' are too many"):
            communicator.reducer(PLAN, 2)
        communicator.barrier()

    assert run(PAIRS, work) == [None] * 4


def test_l4_7_auto_without_measuring_takes_what_fits_the_hosts():
    def work(communicator):
        return communicator.algorithm

    assert run(PAIRS, work, algorithm="auto", deterministic=True) == ["hierarchical"] * 4
    assert run((0, 1), work, algorithm="auto", deterministic=True) == ["direct"] * 2


def test_l4_7_auto_is_measured_once_and_said_once(caplog):
    def work(communicator):
        before = communicator.algorithm
        outcomes = [summed(communicator)[1].tobytes() for _ in range(2)]
        return before, communicator.algorithm, outcomes[0] == outcomes[1]

    with caplog.at_level(logging.INFO, logger="unified_ipu.comms"):
        found = set(run(PAIRS, work, algorithm="auto"))
    ((before, chosen, is_equal),) = found
    assert (before, is_equal) == ("", True)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(f"gradients (0.0 MiB) of 4 ranks on 2 hosts: {chosen}; expected")
    assert all(f"{name} " in line for name in ("hierarchical", "direct", "ring"))


def test_l3_5_a_resumed_run_sums_as_the_one_that_was_saved(tmp_path, monkeypatch):
    x = np.random.default_rng(1).normal(size=(12, 3))
    plan = ui.Plan().replace({"mesh.data": 4, "batch.global_batch_size": 4})

    def session_of(communicator):
        rank = communicator.rank
        world = World(rank, rank % 2, 4, 2, node_rank=rank // 2, launcher="threads", job="x")
        return ui.Session(plan, world=world, communicator=communicator, argv=[])

    def work(communicator, epochs, **fit):
        with session_of(communicator) as session:
            program = session.compile(
                Mlp((3, 4, 1), seed=0), loss=MeanSquaredError("mean"), optimizer=ui.optim.SGD(0.1)
            )
            program.fit(session.loader((x, x[:, :1])), epochs=epochs, callbacks=[], **fit)
            return communicator.algorithm, program.weights()

    def never(*_):
        raise AssertionError("there was a choice to make")

    monkeypatch.setattr(arranged, "choose", lambda *_: "ring")
    unbroken = run(PAIRS, lambda c: work(c, 2), algorithm="auto")
    run(PAIRS, lambda c: work(c, 1, checkpoint=tmp_path), algorithm="auto")
    monkeypatch.setattr(arranged, "choose", never)
    resumed = run(PAIRS, lambda c: work(c, 2, checkpoint=tmp_path, resume="auto"), algorithm="auto")
    for (algorithm, weights), (_, expected) in zip(resumed, unbroken):
        assert algorithm == "ring"
        assert all(weights[name].tobytes() == expected[name].tobytes() for name in expected)
