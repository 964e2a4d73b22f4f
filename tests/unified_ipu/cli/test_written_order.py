"""The order, padding and coefficients of written scripts: literals, our planning, and an oracle."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from unified_ipu.cli.written_order import order_imports, order_text
from unified_ipu.data import Order
from unified_ipu.data.mixing import sample_seeds
from unified_ipu.data.schedule import Schedule
from unified_ipu.plan import BatchPlan

WORD = (1 << 64) - 1


def script(size, *, seed=0, shuffle=True, remainder="pad", reduction="mean", **batch):
    """The functions of a written script, with the constants that stand above them."""
    plan = BatchPlan(
        global_batch_size=batch.get("whole", 8),
        micro_batch_size=batch.get("micro", 2),
        updates_per_call=batch.get("per_call", 1),
        remainder=remainder,
    )
    names = {
        "np": np,
        "SEED": seed,
        "SAMPLES": size,
        "GLOBAL_BATCH": plan.global_batch_size,
        "MICRO_BATCH": plan.micro_batch_size,
        "UPDATES_PER_CALL": plan.updates_per_call,
        "UPDATES": plan.num_updates(size),
        "units_of": lambda targets: (targets >= 0).astype(np.float64),
    }
    exec("\n".join(order_imports(size, shuffle=shuffle, seeds=True)), names)  # noqa: S102 - the text under test
    text = order_text(size, shuffle=shuffle, seeds=True, reduction=reduction)
    exec(text, names)  # noqa: S102 - the text under test
    return names


def mixed(value, key):
    value = (value + key) & WORD
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & WORD
    return value ^ (value >> 31)


def oracle(size, seed, epoch):
    """The order of an epoch, one sample after the other in Python's own integers."""
    digest = hashlib.blake2b(
        f"{seed}|{epoch}|{size}".encode(), person=b"ui-order", digest_size=64
    ).digest()
    keys = [int.from_bytes(digest[k : k + 8], "little") for k in range(0, 64, 8)]
    if size <= 1024:
        return sorted(range(size), key=lambda k: (mixed(mixed(k, keys[0]), keys[1]), k))
    height = math.isqrt(size) + 1
    width = size // height + 1

    def once(value):
        halves = list(divmod(value, width))
        for turn, key in enumerate(keys):
            noise = ((halves[1 - turn % 2] + key) * 0xBF58476D1CE4E5B9) & WORD
            noise = (((noise ^ (noise >> 32)) * 0x94D049BB133111EB) & WORD) >> 32
            modulus = (height, width)[turn % 2]
            halves[turn % 2] = (halves[turn % 2] + (noise * modulus >> 32)) % modulus
        return halves[0] * width + halves[1]

    def walked(value):
        value = once(value)
        while value >= size:
            value = once(value)
        return value

    return [walked(k) for k in range(size)]


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (10, [6, 0, 3, 4, 2, 7, 9, 5]),
        (1000, [110, 94, 873, 897, 401, 443, 663, 956]),
        (10**6, [982611, 852825, 232769, 778942, 674163, 785056, 113272, 833207]),
    ],
)
def test_the_written_order_is_the_same_for_ever(size, expected):
    assert script(size)["order_of"](0)[:8].tolist() == expected


@settings(max_examples=40, deadline=None)
@given(
    size=st.integers(1, 3000),
    seed=st.integers(0, 2**64),
    epoch=st.integers(0, 1000),
    shuffle=st.booleans(),
)
def test_the_written_order_is_that_of_the_loader_and_of_an_oracle(size, seed, epoch, shuffle):
    names = script(size, seed=seed, shuffle=shuffle)
    found = names["order_of"](epoch)
    assert found.dtype == np.int64
    ours = Order(size, seed=seed, epoch=epoch, shuffle=shuffle).slice(0, size)
    assert found.tolist() == ours.tolist()
    assert found.tolist() == (oracle(size, seed, epoch) if shuffle else list(range(size)))
    seeds = names["sample_seeds"](epoch, found)
    assert seeds.tolist() == sample_seeds(seed, epoch, found).tolist()


@settings(max_examples=60, deadline=None)
@given(
    size=st.integers(1, 400),
    micro=st.integers(1, 8),
    accumulation=st.integers(1, 4),
    replicas=st.integers(1, 4),
    remainder=st.sampled_from(["pad", "drop"]),
    epoch=st.integers(0, 5),
)
def test_written_rows_are_those_of_the_loader_micro_batch_by_micro_batch(
    size, micro, accumulation, replicas, remainder, epoch
):
    whole = micro * accumulation * replicas
    names = script(size, seed=3, remainder=remainder, whole=whole, micro=micro)
    ids, counts = names["rows_of"](epoch)
    plan = BatchPlan(whole, micro, replicas, remainder=remainder)
    schedule = Schedule(plan, size, seed=3, shuffle=True, train=True)
    portions = list(schedule.portions(epoch, range(replicas)))
    assert len(ids) == plan.num_updates(size)
    expected = [portion.row_ids.tolist() for portion in portions]
    assert ids.reshape(-1, micro).tolist() == expected
    real = [[1.0] * portion.real + [0.0] * (micro - portion.real) for portion in portions]
    assert counts.reshape(-1, micro).tolist() == real
    used = ids[counts > 0].tolist()
    assert len(used) == len(set(used)) == plan.used_samples(size)


def test_padding_repeats_rows_of_its_micro_batch_or_else_of_its_update():
    names = script(11, shuffle=False, whole=8, micro=2)
    ids, counts = names["rows_of"](0)
    assert ids.tolist() == [[0, 1, 2, 3, 4, 5, 6, 7], [8, 9, 10, 10, 8, 9, 8, 9]]
    assert counts.tolist() == [[1.0] * 8, [1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0]]


class Rows:
    """Inputs are ids; the targets of some ids do not count."""

    def __init__(self, names, ignored=()):
        self.names, self.ignored = names, ignored

    def updates_of(self, epoch):
        for ids, counts in zip(*self.names["rows_of"](epoch)):
            yield ids, np.where(np.isin(ids, self.ignored), -1, ids), counts


def test_coefficients_divide_by_the_weight_of_the_update_and_padding_has_none():
    names = script(6, shuffle=False, whole=4, micro=2, per_call=2)
    ((inputs, _, coefficients),) = names["calls_of"](Rows(names), 0)
    assert inputs.tolist() == [0, 1, 2, 3, 4, 5, 4, 5]
    assert coefficients.tolist() == [0.25, 0.25, 0.25, 0.25, 0.5, 0.5, 0.0, 0.0]
    assert coefficients.dtype == np.float32
    # Row 1 does not count in W: the loss of what does is divided by 3.
    ((_, _, coefficients),) = names["calls_of"](Rows(names, ignored=[1]), 0)
    assert coefficients[:4].tolist() == [np.float32(1 / 3)] * 4


def test_without_division_rows_count_once_and_padding_not():
    names = script(3, shuffle=False, whole=4, micro=2, reduction="sum")
    ((_, _, coefficients),) = names["calls_of"](Rows(names), 0)
    assert coefficients.tolist() == [1.0, 1.0, 1.0, 0.0]


def test_an_update_of_weight_zero_is_not_fed_and_its_call_is_shorter():
    names = script(10, shuffle=False, whole=2, micro=2, per_call=2)

    def fed(*ignored):
        calls = names["calls_of"](Rows(names, ignored), 0)
        return [inputs.tolist() for inputs, _, _ in calls]

    assert fed() == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert fed(2, 3) == [[0, 1], [4, 5, 6, 7], [8, 9]]
    assert fed(4, 5, 6, 7) == [[0, 1, 2, 3], [8, 9]]
    assert fed(8, 9) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert fed(6, 7, 8, 9) == [[0, 1, 2, 3], [4, 5]]
