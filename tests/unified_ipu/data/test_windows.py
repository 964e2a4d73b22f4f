"""Windows against brute force: who gets which positions of a source without a size."""

from __future__ import annotations

from hypothesis import given, strategies as st

from unified_ipu.data.schedule import Schedule
from unified_ipu.data.windows import Windows
from unified_ipu.plan import BatchPlan

REMAINDERS = st.sampled_from(["exact", "pad", "drop"])


def deal(schedule, size, replicas, start_update=0):
    """All micro-batches as (replica, ordinal, update, index, ids), as they come to be known."""
    windows = Windows(schedule, replicas, start_update)
    dealt = []
    while True:
        end = windows.start + windows.rows
        assert windows.end_after(windows.start) == end
        assert windows.end_after(end - 1) == end
        portions = windows.deal(min(size, end))
        dealt += [(p.replica, p.ordinal, p.update, p.span.index, p.ids.tolist()) for p in portions]
        if size < end:
            return dealt


@given(
    micro=st.integers(1, 4),
    replicas=st.integers(1, 4),
    accumulation=st.integers(1, 3),
    short=st.integers(0, 3),
    per_call=st.integers(1, 3),
    size=st.integers(1, 60),
    start_update=st.integers(0, 2),
    remainder=REMAINDERS,
)
def test_l2_4_updates_of_a_stream_are_dealt_by_the_law(
    micro, replicas, accumulation, short, per_call, size, start_update, remainder
):
    total = micro * replicas * accumulation
    if remainder != "pad":
        total = max(1, total - short)
    batch = BatchPlan(total, micro, replicas, per_call, remainder)
    schedule = Schedule(batch, 0, seed=0, shuffle=False, train=True)
    expected = []
    ordinals = [0] * replicas
    for start in range(start_update * total, size, total):
        if remainder == "drop" and start + total > size:
            break
        for m in range(-(-total // micro)):
            first, last = start + m * micro, min(start + (m + 1) * micro, start + total)
            ids = [k if k < size else -1 for k in range(first, last)]
            if remainder != "pad":
                ids = [k for k in ids if k >= 0]
            if ids:
                replica = m % replicas
                expected.append((replica, ordinals[replica], start // total, m, ids))
                ordinals[replica] += 1
    assert deal(schedule, size, range(replicas), start_update) == expected
    for replica in range(replicas):
        mine = [entry for entry in expected if entry[0] == replica]
        assert deal(schedule, size, [replica], start_update) == mine


@given(
    micro=st.integers(1, 4), replicas=st.integers(1, 4), size=st.integers(0, 40), pads=st.booleans()
)
def test_l6_evaluation_of_a_stream_deals_micro_batches_in_turn(micro, replicas, size, pads):
    batch = BatchPlan(7 * replicas, 7, replicas, 1, "pad" if pads else "exact")
    schedule = Schedule(batch, 0, seed=0, shuffle=False, train=False, micro_batch_size=micro)
    expected = []
    for m, start in enumerate(range(0, size, micro)):
        ids = [k if k < size else -1 for k in range(start, start + micro)]
        if not pads:
            ids = [k for k in ids if k >= 0]
        expected.append((m % replicas, m // replicas, m, m, ids))
    assert deal(schedule, size, range(replicas)) == expected
