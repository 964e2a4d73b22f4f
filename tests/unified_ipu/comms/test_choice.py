"""Choosing an algorithm by a table of measured times."""

from __future__ import annotations

import pytest

from unified_ipu.comms.choice import choose, describe_choice, estimate, gradient_bytes
from unified_ipu.comms.hosts import group_by_host
from unified_ipu.plan import TensorSpec, plan_buckets

KIB, MIB = 2**10, 2**20
# Seconds of 64 KiB and of 1 MiB.
BY_HOST = {"hierarchical": [0.004, 0.006], "direct": [0.002, 0.0139], "ring": [0.003, 0.0135]}


def test_times_grow_with_the_length_and_not_below_the_short_probe():
    assert estimate([0.001, 0.016], 64 * KIB) == 0.001
    assert estimate([0.001, 0.016], 4 * KIB) == 0.001
    assert estimate([0.001, 0.016], MIB) == pytest.approx(0.016)
    assert estimate([0.001, 0.016], 10 * MIB) == pytest.approx(0.016 + 9 * 0.016)
    assert estimate([0.002, 0.001], 10 * MIB) == 0.002


def test_the_length_decides():
    assert choose(BY_HOST, 4 * KIB) == "direct"
    assert choose(BY_HOST, 25 * MIB) == "hierarchical"


def test_what_is_not_clearly_faster_is_not_taken():
    assert choose({"direct": [0.001, 0.010], "ring": [0.001, 0.0085]}, MIB) == "direct"
    assert choose({"direct": [0.001, 0.010], "ring": [0.001, 0.0075]}, MIB) == "ring"


def test_the_log_says_what_was_measured():
    text = describe_choice("hierarchical", BY_HOST, MIB, [(0, 1), (2, 3)])
    assert text == (
        "gradients (1.0 MiB) of 4 ranks on 2 hosts: hierarchical; expected from what was "
        "measured: hierarchical 6.00 ms, direct 13.90 ms, ring 13.50 ms"
    )


def test_the_length_of_gradients_is_that_of_their_buckets():
    tensors = [TensorSpec("a", (16,), "float32"), TensorSpec("b", (32,), "bfloat16")]
    assert gradient_bytes(plan_buckets(tensors, MIB)) == 128


def test_ranks_are_grouped_by_host_in_the_order_of_first_ranks():
    assert group_by_host(["b", "a", "b", "c", "a"]) == [(0, 2), (1, 4), (3,)]
