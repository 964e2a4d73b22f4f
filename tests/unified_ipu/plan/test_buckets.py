"""The layout of gradients against rules that are checked byte by byte."""

from __future__ import annotations

from typing import Dict, List, Tuple

import pytest
from hypothesis import given, strategies as st

from unified_ipu.errors import ConfigError
from unified_ipu.plan import Bucket, BucketPlan, Slot, TensorSpec, plan_buckets

ITEM_BYTES = {"float16": 2, "float32": 4, "float64": 8, "complex128": 16}

SPECS = st.lists(
    st.tuples(
        st.lists(st.integers(0, 9), max_size=3).map(tuple),
        st.sampled_from(sorted(ITEM_BYTES)),
        st.sampled_from(["parameter", "parameter", "parameter", "buffer", "slot"]),
        st.booleans(),
        st.sampled_from([("data",), ("data", "stage")]),
    ),
    max_size=25,
).map(
    lambda rows: [
        TensorSpec(f"t{i}", shape, dtype, role=role, trainable=trainable, reduce_over=axes)
        for i, (shape, dtype, role, trainable, axes) in enumerate(rows)
    ]
)


def spec(name, *shape, dtype="float32", **more):
    return TensorSpec(name, shape, dtype, **more)


@given(SPECS, st.integers(1, 3000))
def test_every_trained_tensor_lies_once_aligned_and_apart(specs, bucket_bytes):
    plan = plan_buckets(specs, bucket_bytes)
    trained = [s for s in specs if s.role == "parameter" and s.trainable]
    assert [slot.name for slot in plan.slots] == [s.name for s in trained]
    assert [slot.shape for slot in plan.slots] == [s.shape for s in trained]
    used: Dict[int, List[int]] = {bucket.index: [] for bucket in plan.buckets}
    for slot, each in zip(plan.slots, trained):
        bucket = plan.buckets[slot.bucket]
        item = ITEM_BYTES[each.dtype]
        assert bucket.dtype == each.dtype
        assert slot.offset * item % 64 == 0
        size = 1
        for dim in each.shape:
            size *= dim
        assert 0 <= slot.offset <= slot.offset + size <= bucket.num_elements
        used[slot.bucket] += range(slot.offset, slot.offset + size)
    for bucket in plan.buckets:
        elements = used[bucket.index]
        assert len(elements) == len(set(elements))
        assert bucket.num_elements * ITEM_BYTES[bucket.dtype] % 64 == 0
        assert bucket.num_elements > 0
    assert [bucket.index for bucket in plan.buckets] == list(range(len(plan.buckets)))


@given(SPECS, st.integers(1, 3000))
def test_buckets_are_as_large_as_allowed_and_in_reverse_order_of_use(specs, bucket_bytes):
    plan = plan_buckets(specs, bucket_bytes)
    place = {each.name: i for i, each in enumerate(specs)}
    axes = {each.name: each.reduce_over for each in specs}
    for bucket in plan.buckets:
        places = [place[name] for name in bucket.names]
        assert places == sorted(places, reverse=True)
        assert len({axes[name] for name in bucket.names}) == 1
        offsets = {slot.name: slot.offset for slot in plan.slots if slot.bucket == bucket.index}
        assert list(bucket.names) == sorted(offsets, key=offsets.__getitem__)
        if len(bucket.names) > 1:
            assert bucket.num_elements * ITEM_BYTES[bucket.dtype] <= bucket_bytes
    completed = [min(place[name] for name in bucket.names) for bucket in plan.buckets]
    assert completed == sorted(completed, reverse=True)
    # Greedy: what opens the next bucket of its kind did not fit into the one before.
    kinds: Dict[Tuple[str, Tuple[str, ...]], List[Bucket]] = {}
    for bucket in plan.buckets:
        kinds.setdefault((bucket.dtype, axes[bucket.names[0]]), []).append(bucket)
    for (dtype, _), buckets in kinds.items():
        for before, after in zip(buckets, buckets[1:]):
            item = ITEM_BYTES[dtype]
            needed = max(64, -(-specs[place[after.names[0]]].num_elements * item // 64) * 64)
            assert before.num_elements * item + needed > bucket_bytes


def test_a_small_model_in_two_buckets_of_256_bytes():
    specs = [
        spec("first.weight", 4, 8),  # 128 bytes
        spec("first.bias", 4),  # 16, takes 64
        spec("last.weight", 3, 4),  # 48, takes 64
        spec("last.bias", 3),  # 12, takes 64
    ]
    plan = plan_buckets(specs, 256)
    assert plan.buckets == (
        Bucket(0, "float32", 48, ("last.bias", "last.weight", "first.bias")),
        Bucket(1, "float32", 32, ("first.weight",)),
    )
    assert plan.slots == (
        Slot("first.weight", 1, 0, (4, 8)),
        Slot("first.bias", 0, 32, (4,)),
        Slot("last.weight", 0, 16, (3, 4)),
        Slot("last.bias", 0, 0, (3,)),
    )


def test_a_tensor_larger_than_a_bucket_is_not_split():
    plan = plan_buckets([spec("a", 1000), spec("b", 1)], 256)
    assert [bucket.names for bucket in plan.buckets] == [("b",), ("a",)]
    assert plan.buckets[1].num_elements == 1008


def test_dtypes_do_not_mix_and_the_bucket_that_is_complete_first_comes_first():
    specs = [
        spec("a", 1),
        spec("b", 1, dtype="float64"),
        spec("c", 1),
        spec("d", 1, dtype="float64"),
    ]
    plan = plan_buckets(specs, 10**6)
    assert [(b.dtype, b.names) for b in plan.buckets] == [
        ("float64", ("d", "b")),
        ("float32", ("c", "a")),
    ]


def test_tied_frozen_and_other_tensors_get_no_slot():
    specs = [
        spec("a", 2),
        spec("b", 2, tied_to="a"),
        spec("c", 2, trainable=False),
        spec("mean", 2, role="buffer"),
        spec("a/momentum", 2, role="slot"),
        spec("table", 2, dtype="int64", trainable=False),
    ]
    assert [slot.name for slot in plan_buckets(specs, 1000).slots] == ["a"]


def test_nothing_to_train_is_no_bucket():
    plan = plan_buckets([], 1000)
    assert (plan.buckets, plan.slots) == ((), ())
    assert isinstance(plan, BucketPlan)


def test_the_digest_tells_layouts_apart():
    def digest(*specs, size=1000):
        return plan_buckets(specs, size).digest

    base = digest(spec("a", 2, 3), spec("b", 4))
    assert base == digest(spec("a", 2, 3), spec("b", 4))
    others = {
        digest(spec("b", 4), spec("a", 2, 3)),
        digest(spec("a", 3, 2), spec("b", 4)),
        digest(spec("a", 2, 3), spec("c", 4)),
        digest(spec("a", 2, 3, dtype="float64"), spec("b", 4)),
        digest(spec("a", 2, 3), spec("b", 4), size=64),
        digest(spec("a", 2, 3, reduce_over=("data", "stage")), spec("b", 4)),
    }
    assert len(others) == 6
    assert base not in others


def test_two_tensors_of_one_name_are_refused():
    with pytest.raises(ConfigError, match="tensor 'a' is given twice"):
        plan_buckets([spec("a", 2), spec("a", 2)], 1000)


def test_a_dtype_without_gradients_is_refused_by_name():
    with pytest.raises(ConfigError, match="tensor 'a' is trained and has dtype 'int32'"):
        plan_buckets([spec("a", 2, dtype="int32")], 1000)


def test_a_bucket_of_no_bytes_is_refused():
    with pytest.raises(ConfigError, match="bucket_bytes: got 0"):
        plan_buckets([spec("a", 2)], 0)
