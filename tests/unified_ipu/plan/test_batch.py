"""Batch arithmetic against literals and a brute-force dealer of positions."""

from __future__ import annotations

from itertools import islice
from typing import List, Tuple

import pytest
from hypothesis import given, strategies as st

from unified_ipu.errors import ConfigError, PlanError
from unified_ipu.plan import BatchPlan, MicroSpan, Plan

SIZES = st.integers(1, 12)


def chunks(items, size):
    return [items[i : i + size] for i in range(0, len(items), size)]


def dealt(samples, total, size, replicas, remainder):
    """Updates of replicas of (index, rows with None for padding), by lists of all positions."""
    updates = chunks(list(range(samples)), total)
    if updates and len(updates[-1]) < total:
        if remainder == "drop":
            updates.pop()
        if remainder == "pad":
            updates[-1] += [None] * (total - len(updates[-1]))
    found = []
    for positions in updates:
        by_replica: List[List[Tuple[int, list]]] = [[] for _ in range(replicas)]
        for index, rows in enumerate(chunks(positions, size)):
            by_replica[index % replicas].append((index, rows))
        found.append(by_replica)
    return found


def expanded(span):
    real = list(range(span.start, span.stop))
    return span.index, real + [None] * (span.rows - len(real))


def spans_of_epoch(plan, samples):
    return [
        [
            [expanded(span) for span in plan.micro_spans(update, replica, samples)]
            for replica in range(plan.num_replicas)
        ]
        for update in range(plan.num_updates(samples))
    ]


@given(st.integers(0, 80), SIZES, SIZES, SIZES)
def test_l2_every_sample_is_dealt_once_in_the_order_of_the_law(samples, total, size, replicas):
    plan = BatchPlan(total, size, replicas)
    found = spans_of_epoch(plan, samples)
    assert found == dealt(samples, total, size, replicas, "exact")
    flat = [p for update in found for replica in update for _, rows in replica for p in rows]
    assert sorted(flat) == list(range(samples))
    assert plan.used_samples(samples) == samples
    assert plan.dropped(samples) == plan.padded(samples) == 0


@given(st.integers(0, 80), SIZES, SIZES, SIZES)
def test_drop_leaves_out_the_short_update_only(samples, total, size, replicas):
    plan = BatchPlan(total, size, replicas, remainder="drop")
    found = spans_of_epoch(plan, samples)
    assert found == dealt(samples, total, size, replicas, "drop")
    flat = [p for update in found for replica in update for _, rows in replica for p in rows]
    assert plan.used_samples(samples) == len(flat)
    assert plan.dropped(samples) == samples - len(flat)


@given(st.integers(0, 80), st.integers(1, 4), SIZES, st.integers(1, 4))
def test_pad_fills_the_last_update_and_adds_none(samples, size, replicas, accumulation):
    total = size * replicas * accumulation
    plan = BatchPlan(total, size, replicas, remainder="pad")
    found = spans_of_epoch(plan, samples)
    assert found == dealt(samples, total, size, replicas, "pad")
    flat = [p for update in found for replica in update for _, rows in replica for p in rows]
    assert plan.padded(samples) == flat.count(None)
    assert sorted(p for p in flat if p is not None) == list(range(samples))
    assert len(found) == BatchPlan(total, size, replicas).num_updates(samples)
    rows = [len(rows) for update in found for replica in update for _, rows in replica]
    assert set(rows) <= {size}


@given(st.integers(0, 80), SIZES, SIZES, st.integers(0, 90))
def test_calls_cover_what_is_left_of_an_epoch(samples, total, per_call, start):
    plan = BatchPlan(total, 3, updates_per_call=per_call)
    calls = [list(call) for call in plan.calls(samples, start)]
    left = list(range(-(-samples // total)))[start:]
    assert calls == chunks(left, per_call)
    assert plan.num_calls(samples, start) == len(calls)


@given(st.integers(0, 80), SIZES, SIZES, st.one_of(st.none(), SIZES))
def test_l6_evaluation_deals_whole_micro_batches_in_turn(samples, size, replicas, other):
    for total in (1, 64):
        plan = BatchPlan(total, size, replicas)
        found = [
            [expanded(span) for span in plan.evaluation_spans(replica, samples, other)]
            for replica in range(replicas)
        ]
        everything = list(enumerate(chunks(list(range(samples)), other or size)))
        assert found == [everything[replica::replicas] for replica in range(replicas)]
        counts = [plan.num_evaluation_spans(r, samples, other) for r in range(replicas)]
        assert counts == [len(spans) for spans in found]


@given(st.integers(0, 80), SIZES, SIZES)
def test_l2_the_rows_of_a_micro_batch_do_not_depend_on_the_replicas(samples, total, size):
    def by_index(replicas):
        plan = BatchPlan(total, size, replicas)
        return [
            sorted(span for replica in update for span in replica)
            for update in spans_of_epoch(plan, samples)
        ]

    assert by_index(1) == by_index(2) == by_index(5)


def test_three_replicas_of_a_batch_of_64_get_16_16_16_and_then_16_0_0():
    plan = BatchPlan(64, 16, 3)
    assert plan.accumulation_per_replica == 2
    assert plan.micro_spans(0, 0, 64) == (MicroSpan(0, 0, 16, 16), MicroSpan(3, 48, 64, 16))
    assert plan.micro_spans(0, 1, 64) == (MicroSpan(1, 16, 32, 16),)
    assert plan.micro_spans(0, 2, 64) == (MicroSpan(2, 32, 48, 16),)


def test_padding_only_spans_start_where_they_stop():
    plan = BatchPlan(8, 2, 2, remainder="pad")
    assert plan.micro_spans(1, 0, 11) == (MicroSpan(0, 8, 10, 2), MicroSpan(2, 12, 12, 2))
    assert plan.micro_spans(1, 1, 11) == (MicroSpan(1, 10, 11, 2), MicroSpan(3, 14, 14, 2))


def test_padding_in_evaluation_fills_the_last_micro_batch_only():
    plan = BatchPlan(8, 2, 2, remainder="pad")
    assert list(plan.evaluation_spans(0, 5)) == [MicroSpan(0, 0, 2, 2), MicroSpan(2, 4, 5, 2)]
    assert list(plan.evaluation_spans(1, 5)) == [MicroSpan(1, 2, 4, 2)]


def test_evaluation_of_ten_samples_on_four_replicas_counts_each_once():
    plan = BatchPlan(64, 1, 4)
    dealt_out = [[s.start for s in plan.evaluation_spans(r, 10)] for r in range(4)]
    assert dealt_out == [[0, 4, 8], [1, 5, 9], [2, 6], [3, 7]]


def test_evaluation_of_seven_samples_in_pairs_on_three_replicas():
    plan = BatchPlan(64, 2, 3)
    dealt_out = [[expanded(s)[1] for s in plan.evaluation_spans(r, 7)] for r in range(3)]
    assert dealt_out == [[[0, 1], [6]], [[2, 3]], [[4, 5]]]


@pytest.mark.case("O-S2")
def test_four_samples_on_nine_replicas_are_padded_or_refused():
    padded = BatchPlan(9, 1, 9, remainder="pad")
    spans = [padded.micro_spans(0, replica, 4) for replica in range(9)]
    assert [len(s) for s in spans] == [1] * 9
    assert [list(range(s[0].start, s[0].stop)) for s in spans] == [[0], [1], [2], [3]] + [[]] * 5
    assert padded.padded(4) == 5
    dropped = BatchPlan(9, 1, 9, remainder="drop")
    assert dropped.num_updates(4) == 0
    with pytest.raises(ConfigError, match="4 samples are fewer than the global batch of 9") as info:
        dropped.check_samples(4)
    assert "num_replicas 9" in str(info.value)


@pytest.mark.case("O-S3")
def test_24_samples_on_five_replicas_are_dealt_in_turn_without_a_duplicate():
    plan = BatchPlan(5, 1, 5)
    by_replica = [
        [span.start for u in range(plan.num_updates(24)) for span in plan.micro_spans(u, r, 24)]
        for r in range(5)
    ]
    assert by_replica[:4] == [[r, r + 5, r + 10, r + 15, r + 20] for r in range(4)]
    assert by_replica[4] == [4, 9, 14, 19]
    assert plan.used_samples(24) == 24


@pytest.mark.case("O-S5")
def test_a_dropped_tail_is_counted_and_never_the_default():
    first = BatchPlan(16, 16, remainder="drop")
    assert (first.used_samples(100), first.dropped(100), first.num_calls(100)) == (96, 4, 6)
    kept = BatchPlan(16, 16)
    assert (kept.used_samples(100), kept.dropped(100), kept.num_calls(100)) == (100, 0, 7)
    assert kept.micro_spans(6, 0, 100) == (MicroSpan(0, 96, 100, 4),)
    second = BatchPlan(12, 2, 2, remainder="drop")
    assert second.accumulation_per_replica == 3
    assert (second.used_samples(100), second.dropped(100), second.num_updates(100)) == (96, 4, 8)


@pytest.mark.case("O-I2")
def test_a_data_set_smaller_than_one_global_batch_is_an_error_with_the_factors():
    plan = BatchPlan(16, 2, 2, updates_per_call=1, remainder="drop")
    assert plan.num_calls(10) == 0
    with pytest.raises(ConfigError) as info:
        plan.check_samples(10)
    for part in (
        "10 samples",
        "global batch of 16",
        "micro_batch_size 2",
        "num_replicas 2",
        "accumulation_per_replica 4",
        "updates_per_call 1",
    ):
        assert part in str(info.value)
    BatchPlan(16, 2, 2).check_samples(10)


def test_an_empty_data_set_is_refused_in_every_mode():
    with pytest.raises(ConfigError, match="0 samples"):
        BatchPlan(16, 2).check_samples(0)


def test_the_last_updates_of_an_epoch_make_a_shorter_call():
    assert list(BatchPlan(1, 1, updates_per_call=4).calls(10)) == [
        range(4),
        range(4, 8),
        range(8, 10),
    ]


def test_a_resume_inside_an_epoch_counts_calls_from_there():
    calls = list(BatchPlan(1, 1, updates_per_call=4).calls(10, start_update=3))
    assert calls == [range(3, 7), range(7, 10)]


def test_a_trillion_samples_cost_nothing():
    samples = 10**12 + 1
    plan = BatchPlan(10**6, 1000, 8, updates_per_call=10)
    assert plan.num_updates(samples) == 10**6 + 1
    assert plan.num_calls(samples) == 10**5 + 1
    assert plan.micro_spans(10**6, 0, samples) == (MicroSpan(0, 10**12, samples, 1),)
    assert plan.micro_spans(10**6, 1, samples) == ()
    assert next(plan.calls(samples, 10**6 - 1)) == range(10**6 - 1, 10**6 + 1)
    first = list(islice(plan.evaluation_spans(3, samples), 2))
    assert first == [MicroSpan(3, 3000, 4000, 1000), MicroSpan(11, 11000, 12000, 1000)]
    assert plan.num_evaluation_spans(0, samples) == 125_000_001


def test_idle_replicas_are_counted():
    assert BatchPlan(64, 16, 3).num_idle_replicas == 0
    assert BatchPlan(64, 16, 8).num_idle_replicas == 4


@pytest.mark.parametrize("update", [-1, 4])
def test_an_update_outside_the_epoch_is_refused(update):
    with pytest.raises(ConfigError, match=f"update: got {update}; an epoch of 62 samples has 4"):
        BatchPlan(16, 4).micro_spans(update, 0, 62)


@pytest.mark.parametrize("replica", [-1, 2])
def test_a_replica_outside_the_world_is_refused(replica):
    plan = BatchPlan(16, 4, 2)
    with pytest.raises(ConfigError, match=f"replica: got {replica}; there are 2"):
        plan.micro_spans(0, replica, 62)
    with pytest.raises(ConfigError, match=f"replica: got {replica}; there are 2"):
        plan.evaluation_spans(replica, 62)


def test_evaluation_refuses_a_micro_batch_of_zero_rows_at_once():
    with pytest.raises(ConfigError, match="micro_batch_size: got 0"):
        BatchPlan(16, 4).evaluation_spans(0, 62, 0)


def test_impossible_sizes_are_refused():
    with pytest.raises(PlanError, match="num_replicas: got 0"):
        BatchPlan(16, 4, 0)
    with pytest.raises(PlanError, match="remainder: got 'keep'; expected one of exact, pad, drop"):
        BatchPlan(16, 4, remainder="keep")


def test_padding_needs_full_rounds_and_names_the_nearest_sizes():
    with pytest.raises(PlanError) as info:
        BatchPlan(60, 16, 2, remainder="pad")
    assert "got 60 with micro_batch_size 16 on 2 replicas" in str(info.value)
    assert "batch.micro_batch_size = 15 or 30" in str(info.value)
    with pytest.raises(PlanError, match="no micro_batch_size does it with 7 replicas"):
        BatchPlan(60, 16, 7, remainder="pad")


@given(st.integers(1, 200), st.integers(1, 60), st.integers(1, 8))
def test_the_nearest_sizes_that_are_named_do_pad(total, size, replicas):
    fitting = [b for b in range(1, total + 1) if total % (b * replicas) == 0]
    near = [b for b in fitting if b < size][-1:] + [b for b in fitting if b > size][:1]
    if size in fitting:
        assert BatchPlan(total, size, replicas, remainder="pad").padded(total) == 0
        return
    with pytest.raises(PlanError) as info:
        BatchPlan(total, size, replicas, remainder="pad")
    if near:
        assert f"= {' or '.join(map(str, near))}, or" in str(info.value)


def test_a_plan_gives_the_global_batch_or_the_accumulation():
    plan = Plan.from_dict({"batch": {"accumulation_per_replica": 4, "micro_batch_size": 8}})
    assert BatchPlan.from_plan(plan, 3) == BatchPlan(96, 8, 3)
    assert BatchPlan.from_plan(Plan(), 3) == BatchPlan(64, 16, 3)
    both = plan.replace(batch={"global_batch_size": 90, "accumulation_per_replica": 4})
    assert BatchPlan.from_plan(both, 3) == BatchPlan(90, 8, 3)


def test_a_global_batch_and_an_accumulation_that_disagree_are_refused_with_the_numbers():
    plan = Plan.from_dict({"batch": {"accumulation_per_replica": 4, "global_batch_size": 64}})
    with pytest.raises(PlanError) as info:
        BatchPlan.from_plan(plan, 2)
    text = str(info.value)
    assert "batch.accumulation_per_replica: got 4, but global_batch_size 64" in text
    assert "micro_batch_size 16 on 2 replicas makes 2" in text
    assert "accumulation_per_replica = 2 or global_batch_size = 128" in text


@given(st.integers(1, 300), SIZES, SIZES)
def test_a_derived_accumulation_always_agrees(total, size, replicas):
    derived = BatchPlan(total, size, replicas).accumulation_per_replica
    rounds = len(chunks(list(range(total)), size * replicas))
    assert derived == rounds
    both = {"global_batch_size": total, "micro_batch_size": size}
    plan = Plan.from_dict({"batch": {**both, "accumulation_per_replica": rounds}})
    assert BatchPlan.from_plan(plan, replicas).global_batch_size == total
