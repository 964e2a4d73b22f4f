from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from unified_ipu.adapter import MicroBatch
from unified_ipu.engine.rounds import EvenRounds, empty_like, form_of, rounds_of
from unified_ipu.errors import ConfigError
from unified_ipu.testing.threads import run_ranks

TREE = {"x": (np.zeros((2, 3), np.float32), [np.zeros((2,), np.int64)]), "y": np.zeros((2, 1, 4))}


def test_the_form_of_a_batch_gives_one_without_rows():
    empty = empty_like(json.loads(json.dumps(form_of(TREE))))
    assert empty["x"][0].shape == (0, 3)
    assert empty["x"][0].dtype == np.float32
    assert isinstance(empty["x"], tuple)
    assert isinstance(empty["x"][1], list)
    assert empty["x"][1][0].dtype == np.int64
    assert empty["y"].shape == (0, 1, 4)


class _Foreign:
    dtype = "torch.bfloat16"
    shape = (2, 3)


@pytest.mark.parametrize(
    ("tree", "message"), [(_Foreign(), "bfloat16"), ({1: np.zeros(2)}, "expected strings")]
)
def test_what_other_ranks_could_not_make_is_refused(tree, message):
    with pytest.raises(ConfigError, match=message):
        form_of(tree)


def test_a_replica_without_collectives_gets_its_micro_batches_as_they_are():
    class Plain:
        holds_collectives = False

    batches = [MicroBatch(0, TREE, 2)]

    def run(world, communicator):
        return rounds_of(Plain(), communicator)(batches) is batches  # type: ignore[arg-type]

    assert run_ranks(2, run) == [True, True]


@settings(max_examples=12, deadline=None)
@given(counts=st.lists(st.lists(st.integers(0, 3), min_size=3, max_size=3), max_size=3))
def test_l1_5_every_rank_runs_as_many_micro_batches_as_the_busiest(counts):
    def run(world, communicator):
        rounds = EvenRounds(communicator)
        return [
            [micro.rows for micro in rounds(MicroBatch(0, TREE, 2) for _ in range(row[world.rank]))]
            for row in counts
        ]

    for rank, updates in enumerate(run_ranks(3, run)):
        for row, found in zip(counts, updates):
            assert found == [2] * row[rank] + [0] * (max(row) - row[rank])
