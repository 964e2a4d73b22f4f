"""The sum of gradients: L1's division, clipping and non-finite decision, by every algorithm.

One file, because every test drives one reduction through the same few functions.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from unified_ipu.comms import NonFinite
from unified_ipu.errors import CollectiveError, PeerLostError
from unified_ipu.plan import TensorSpec, plan_buckets
from unified_ipu.testing.threads import run_ranks

pytestmark = pytest.mark.usefixtures("every_algorithm")


def specs(*shapes, dtype="float32"):
    return [TensorSpec(f"p{index}", shape, dtype) for index, shape in enumerate(shapes)]


def gradient(reducer, plan, index):
    """The slot of one parameter in this rank's buffers, in its shape."""
    slot = plan.slots[index]
    flat = reducer.gradients[slot.bucket][slot.offset : slot.offset + math.prod(slot.shape)]
    return flat.reshape(slot.shape)


def reduce_once(size, tensors, fill, **settings):
    """One reduction on ``size`` ranks: ``(Reduction, gradients)`` of each.

    ``fill(rank)`` gives the gradients of a rank, or None: it does not contribute.
    """
    bucket_bytes = settings.pop("bucket_bytes", 2**20)
    divide = settings.pop("divide", lambda header: 1.0 / header[0])
    plan = plan_buckets(tensors, bucket_bytes)

    def run(_, communicator):
        reducer = communicator.reducer(plan, 2)
        given_gradients = fill(communicator.rank)
        for index in range(len(tensors)):
            mine = gradient(reducer, plan, index)
            mine[...] = np.nan if given_gradients is None else given_gradients[index]
        reducer.header[:] = [0.0 if given_gradients is None else 1.0, communicator.rank]
        with np.errstate(all="raise"):
            done = reducer.reduce(
                contributes=given_gradients is not None, divide=divide, **settings
            )
        results = [gradient(reducer, plan, index).copy() for index in range(len(tensors))]
        reducer.close()
        return done, results

    return run_ranks(size, run)


def same_decision(reductions):
    first = reductions[0]
    for other in reductions[1:]:
        assert other.header.tobytes() == first.header.tobytes()
        assert (other.factor, other.clipped, other.non_finite) == (
            first.factor,
            first.clipped,
            first.non_finite,
        )
        assert np.float64(other.squared_norm).tobytes() == np.float64(first.squared_norm).tobytes()
    return first


@settings(max_examples=60)
@given(
    size=st.integers(1, 4),
    shapes=st.lists(st.lists(st.integers(0, 40), max_size=2).map(tuple), min_size=1, max_size=5),
    dtype=st.sampled_from(["float32", "float64", "float16"]),
    bucket_bytes=st.sampled_from([64, 1024, 2**20]),
    idle=st.sets(st.integers(0, 3)),
    clip=st.sampled_from([None, 0.5, 1e6]),
    seed=st.integers(0, 2**16),
)
def test_l1_gradients_are_divided_by_the_summed_weight_and_clipped_once(
    size, shapes, dtype, bucket_bytes, idle, clip, seed
):
    tensors = specs(*shapes, dtype=dtype)
    working = [rank for rank in range(size) if rank not in idle]
    rng = np.random.default_rng(seed)
    given_gradients = {
        rank: [rng.normal(size=shape).astype(dtype) for shape in shapes] for rank in working
    }
    outcomes = reduce_once(
        size,
        tensors,
        given_gradients.get,
        bucket_bytes=bucket_bytes,
        clip_norm=clip,
        divide=lambda header: 1.0 / header[0] if header[0] else None,
    )
    done = same_decision([reduction for reduction, _ in outcomes])
    assert done.header.tolist() == [len(working), sum(range(size))]
    if not working:
        assert done.factor is None
        return
    exact = [
        sum(given_gradients[rank][index].astype(np.float64) for rank in working) / len(working)
        for index in range(len(shapes))
    ]
    squared_norm = sum(float((array**2).sum()) for array in exact)
    norm = math.sqrt(squared_norm)
    assert done.squared_norm == pytest.approx(squared_norm, rel=1e-5, abs=1e-30)
    assert done.clipped == (clip is not None and norm > clip)
    shrink = clip / norm if done.clipped else 1.0
    tolerance = {"float16": 1e-3, "float32": 1e-5, "float64": 1e-6}[dtype]
    for _, results in outcomes:
        for result, array, first in zip(results, exact, outcomes[0][1]):
            np.testing.assert_allclose(result, array * shrink, rtol=tolerance, atol=tolerance)
            assert result.tobytes() == first.tobytes()


def test_l1_the_sum_is_in_rank_order_for_tensors_over_many_pieces(every_algorithm):
    length = 500_003
    inputs = [
        np.random.default_rng(rank).normal(size=length).astype(np.float32) for rank in range(3)
    ]
    expected = ((inputs[0] + inputs[1]) + inputs[2]) * np.float32(1 / 3)
    outcomes = reduce_once(3, specs((length,)), lambda rank: [inputs[rank]])
    for done, (result,) in outcomes:
        assert result.tobytes() == outcomes[0][1][0].tobytes()
        if every_algorithm in {"c10d", "ring"}:  # in the order of a ring
            np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)
        else:
            assert result.tobytes() == expected.tobytes()
        exact = float((expected.astype(np.float64) ** 2).sum())
        assert done.squared_norm == pytest.approx(exact, rel=1e-6)


def test_l1_a_reduction_of_sums_is_not_divided():
    outcomes = reduce_once(2, specs((3,)), lambda rank: [rank + 1.0], divide=lambda header: 1.0)
    assert [results[0].tolist() for _, results in outcomes] == [[3.0, 3.0, 3.0]] * 2


def test_l1_one_contributing_rank_is_copied_to_all():
    outcomes = reduce_once(3, specs((5,)), lambda rank: [7.0] if rank == 1 else None)
    for done, (result,) in outcomes:
        assert result.tolist() == [7.0] * 5
        assert done.squared_norm == 245.0


def test_l1_ranks_that_do_not_contribute_are_not_read():
    # Their buffers hold nan, which would show in every sum.
    outcomes = reduce_once(4, specs((4,), (2, 2)), lambda rank: [1.0, 2.0] if rank % 2 else None)
    for done, results in outcomes:
        assert done.non_finite is None
        assert [result.ravel().tolist() for result in results] == [[1.0] * 4, [2.0] * 4]


def test_l1_no_update_sums_nothing_and_keeps_ranks_in_step():
    plan = plan_buckets(specs((3,)), 2**20)

    def run(_, communicator):
        reducer = communicator.reducer(plan, 1)
        factors = []
        for weight in (0.0, 2.0, 0.0, 0.0, 4.0):
            reducer.gradients[0][:3] = weight
            reducer.header[0] = weight
            done = reducer.reduce(
                contributes=True, divide=lambda header: 1 / header[0] if header[0] else None
            )
            factors.append((done.factor, reducer.gradients[0][:3].tolist()))
        return factors

    expected = [
        (None, [0.0] * 3),
        (0.25, [1.0] * 3),
        (None, [0.0] * 3),
        (None, [0.0] * 3),
        (0.125, [1.0] * 3),
    ]
    assert run_ranks(2, run) == [expected] * 2


def test_l1_no_contributor_but_an_update_is_a_gradient_of_zero():
    outcomes = reduce_once(2, specs((3,)), lambda _: None, divide=lambda header: 1.0)
    for done, (result,) in outcomes:
        assert (done.factor, done.squared_norm, done.non_finite) == (1.0, 0.0, None)
        assert result.tolist() == [0.0] * 3


def test_the_header_is_fresh_for_every_reduction():
    plan = plan_buckets(specs((1,)), 2**20)

    def run(_, communicator):
        reducer = communicator.reducer(plan, 3)
        sums = []
        for update in range(50):
            assert reducer.header.tolist() == [0.0] * 3
            reducer.header[:] = [update, communicator.rank, 1]
            sums.append(reducer.reduce(contributes=True, divide=lambda _: None).header.tolist())
        return sums

    assert run_ranks(3, run) == [[[3.0 * update, 3.0, 3.0] for update in range(50)]] * 3


@pytest.mark.case("O-G6")
def test_l1_g6_clipping_comes_after_the_sum():
    # Micro-batches [2, 0] and [0, 2] of two ranks, largest norm 1, for a mean and for a sum.
    inputs = [[2.0, 0.0], [0.0, 2.0]]
    for divide in (lambda header: 1.0 / header[0], lambda _: 1.0):
        outcomes = reduce_once(
            2, specs((2,)), lambda rank: [inputs[rank]], clip_norm=1.0, divide=divide
        )
        for done, (result,) in outcomes:
            assert done.clipped
            np.testing.assert_allclose(result, [0.7071068, 0.7071068], rtol=1e-6)


def test_l1_a_norm_at_the_limit_is_not_clipped():
    for limit, clipped in ((5.0, False), (4.999, True)):
        outcomes = reduce_once(1, specs((2,)), lambda _: [[3.0, 4.0]], clip_norm=limit)
        assert outcomes[0][0].clipped is clipped
        assert outcomes[0][0].squared_norm == 25.0


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("clip", [None, 1.0])
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_l1_q4_one_bad_contribution_is_one_decision_for_all(size, clip, value):
    def fill(rank):
        bad = np.ones((40, 5000), np.float32)
        if rank == size - 1:
            bad[23, 4321] = value
        return [np.ones(7), bad, np.ones(3)]

    outcomes = reduce_once(size, specs((7,), (40, 5000), (3,)), fill, clip_norm=clip)
    done = same_decision([reduction for reduction, _ in outcomes])
    assert done.non_finite == NonFinite("p1", (size - 1,))
    assert math.isnan(done.squared_norm)


@pytest.mark.parametrize("place", [5, 29_000])
def test_l1_the_first_bad_tensor_is_named_with_all_its_ranks(place):
    # One tensor spans the shares of all ranks; a later one, first in its bucket, is bad too.
    def fill(rank):
        first, second = np.ones(30_000), np.ones(10)
        if rank == 0:
            first[place] = np.inf
        if rank == 2:
            first[29_000] = np.nan
        if rank == 1:
            second[3] = np.nan
        return [np.ones(3), first, second]

    outcomes = reduce_once(3, specs((3,), (30_000,), (10,)), fill)
    done = same_decision([reduction for reduction, _ in outcomes])
    assert done.non_finite == NonFinite("p1", (0, 2))


def test_l1_a_sum_that_overflows_blames_no_rank():
    outcomes = reduce_once(2, specs((2,)), lambda _: [3e38])
    assert {reduction.non_finite for reduction, _ in outcomes} == {NonFinite("p0", ())}


@pytest.mark.parametrize(("dtype", "value"), [("float32", 1e25), ("float32", 1e-30)])
def test_l1_squares_outside_float32_do_not_change_the_norm(dtype, value):
    outcomes = reduce_once(2, specs((4000,), dtype=dtype), lambda _: [value])
    for done, _ in outcomes:
        assert done.non_finite is None
        assert done.squared_norm == pytest.approx(4000 * value**2, rel=1e-5)


def test_l1_a_rank_goes_on_after_a_skipped_update():
    plan = plan_buckets(specs((2,)), 2**20)

    def run(_, communicator):
        reducer = communicator.reducer(plan, 1)
        seen = []
        for update in range(3):
            bad = update == 1 and communicator.rank == 2
            reducer.gradients[0][:2] = np.inf if bad else 1.0
            done = reducer.reduce(contributes=True, divide=lambda _: 1 / 3)
            seen.append(done.non_finite or reducer.gradients[0][:2].tolist())
        return seen

    assert run_ranks(3, run) == [[[1.0, 1.0], NonFinite("p0", (2,)), [1.0, 1.0]]] * 3


def test_l4_other_buckets_are_an_error_on_all_ranks():
    plans = [plan_buckets(specs(shape), 2**20) for shape in ((4, 4), (2, 8))]

    def run(_, communicator):
        reducer = communicator.reducer(plans[communicator.rank], 1)
        with pytest.raises(CollectiveError, match="reduce gradients") as caught:
            reducer.reduce(contributes=True, divide=lambda _: 1.0)
        communicator.barrier()
        return str(caught.value)

    texts = run_ranks(2, run)
    assert texts[0] == texts[1]
    assert all(plan.digest[:16] in texts[0] for plan in plans)


def test_l4_another_limit_is_an_error_on_all_ranks():
    plan = plan_buckets(specs((4,)), 2**20)

    def run(_, communicator):
        reducer = communicator.reducer(plan, 1)
        with pytest.raises(CollectiveError, match="disagree"):
            reducer.reduce(
                contributes=True,
                divide=lambda _: 1.0,
                clip_norm=1.0 if communicator.rank else None,
            )
        communicator.barrier()

    run_ranks(2, run)


def test_l4_an_error_in_divide_leaves_ranks_in_step():
    plan = plan_buckets(specs((4,)), 2**20)

    def refuse(_):
        raise ValueError("no weight")

    def run(_, communicator):
        reducer = communicator.reducer(plan, 1)
        with pytest.raises(ValueError, match="no weight"):
            reducer.reduce(contributes=True, divide=refuse)
        communicator.barrier()
        return reducer.reduce(contributes=True, divide=lambda _: 1.0).factor

    assert run_ranks(2, run) == [1.0, 1.0]


def test_l4_a_rank_that_gave_up_ends_the_reduction():
    plan = plan_buckets(specs((4,)), 2**20)

    def run(_, communicator):
        reducer = communicator.reducer(plan, 1)
        if communicator.rank == 1:
            communicator.abort("bad batch")
            return
        with pytest.raises(PeerLostError, match="rank 1 gave up: bad batch"):
            reducer.reduce(contributes=True, divide=lambda _: 1.0)

    run_ranks(3, run)


def test_buffers_are_aligned_and_shared_by_nobody_else():
    plan = plan_buckets(specs((3,), (17,), dtype="float32"), 64)

    def run(_, communicator):
        reducer = communicator.reducer(plan, 3)
        for buffer in reducer.gradients:
            assert buffer.__array_interface__["data"][0] % 64 == 0
            assert not buffer.any()
            buffer.fill(communicator.rank)
        communicator.barrier()
        values = {float(value) for buffer in reducer.gradients for value in buffer}
        communicator.barrier()
        return values

    assert run_ranks(3, run) == [{0.0}, {1.0}, {2.0}]


def test_float16_is_added_in_float32_and_rounded_once():
    # 2048 + 1 is 2048 in float16.
    outcomes = reduce_once(
        4,
        specs((3,), dtype="float16"),
        lambda rank: [2048.0 if rank == 0 else 1.0],
        divide=lambda _: 1.0,
    )
    assert [results[0].tolist() for _, results in outcomes] == [[2052.0 - 2052 % 2] * 3] * 4


def test_complex_gradients_have_a_real_norm():
    outcomes = reduce_once(2, specs((1,), dtype="complex64"), lambda _: [3 + 4j])
    for done, (result,) in outcomes:
        assert result.tolist() == [3 + 4j]
        assert done.squared_norm == 25.0


def test_buffers_outlive_the_reducer():
    plan = plan_buckets(specs((3,)), 64)

    def run(_, communicator):
        reducer = communicator.reducer(plan, 1)
        mine = reducer.gradients[0]
        mine.fill(5.0)
        reducer.close()
        communicator.close()
        return mine[:3].tolist()

    assert run_ranks(2, run) == [[5.0] * 3] * 2


@pytest.mark.parametrize("size", [1, 2])
def test_a_model_without_trained_tensors_still_sums_its_header(size):
    plan = plan_buckets([], 64)

    def run(_, communicator):
        reducer = communicator.reducer(plan, 1)
        reducer.header[0] = 2.0
        done = reducer.reduce(contributes=True, divide=lambda _: 1.0, clip_norm=1.0)
        return done.header.tolist(), done.squared_norm, done.clipped, reducer.gradients

    assert run_ranks(size, run) == [([2.0 * size], 0.0, False, [])] * size
