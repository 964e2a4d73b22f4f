"""Random numbers in forward: a function of seed, program, update and micro-batch alone."""

from __future__ import annotations

from typing import Any, Dict, List

import numpy as np
import pytest

from unified_ipu.adapter import Capability, optim
from unified_ipu.testing import samples
from unified_ipu.testing.float_types import near
from unified_ipu.testing.ranks import Rank, Ranks
from unified_ipu.testing.scenarios import batch_plan
from unified_ipu.testing.suite import AdapterSuite, holds, requires

SIZE = 64
PER_UPDATE = 4
Masks = List[List[str]]  # [update][micro-batch] -> one "0" or "1" a feature


def masks_of(
    rank: Rank, *, seed: int = 40, updates: int = 2, evaluate: bool = False, programs: int = 1
) -> Dict[str, Any]:
    """Read the masks of every micro-batch off the weights of the last of ``programs``.

    Row m of an update is 2**m, its only loss the output: feature i moves by the sum of
    2**m * mask, twice, so the bits of its weight are its masks in the micro-batches.
    """
    rows = PER_UPDATE * updates
    x = np.array([[2.0 ** (row % PER_UPDATE)] * SIZE for row in range(rows)])
    plan = batch_plan(PER_UPDATE, 1, seed=seed, update={"reduction": "sum"})
    with rank.session(plan) as session:
        models = [rank.subject.dropout_probe(SIZE, 0.5) for _ in range(programs)]
        compiled = [
            rank.compile(
                session,
                one,
                loss=rank.subject.product_loss(),
                optimizer=optim.SGD(lr=1.0),
            )
            for one in models
        ]
        model, program = models[-1], compiled[-1]
        loader = session.loader(rank.arrays(x, samples.ones(rows)))
        held = session.loader(rank.arrays(x, samples.ones(rows)), train=False)
        masks: Masks = []
        before = np.zeros(SIZE)
        is_kept = True
        outputs = None
        for call in loader:
            program.step(call)
            after = model.canonical(program.weights())["weight"][:, 0]
            masks.append(_bits((before - after) / 2.0))
            before = after
            if evaluate:
                state = rank.subject.random_state()
                program.evaluate(held)
                outputs = program.predict(held, gather="all")
                is_kept = is_kept and rank.subject.random_state() == state
        return {"masks": masks, "is_kept": is_kept, "outputs": outputs, "x": x, "weight": before}


def _bits(sums: Any) -> List[str]:
    whole = np.asarray(np.rint(sums), np.int64)
    assert np.array_equal(whole, sums), "a mask is 0, or 1 / (1 - rate)"
    assert whole.min() >= 0
    assert whole.max() < 2**PER_UPDATE
    return ["".join(str(bit) for bit in (whole >> m) & 1) for m in range(PER_UPDATE)]


@requires(Capability.RANDOM_LAYERS)
class RandomNumbersSuite(AdapterSuite):
    """L3.2 and L6.7 for adapters with random layers."""

    @holds("L3.4")
    @pytest.mark.case("O-M5")
    def test_l3_2_every_micro_batch_of_every_update_has_its_own_mask(self, ranks: Ranks) -> None:
        results = ranks.run(masks_of, 4)
        masks = [mask for update in results[0]["masks"] for mask in update]
        assert len(set(masks)) == 8
        assert all(16 <= mask.count("1") <= 48 for mask in masks), "half of 64, within four sigma"
        assert all(theirs["masks"] == results[0]["masks"] for theirs in results)

    @holds("L1.12")
    def test_l3_2_masks_do_not_depend_on_the_world(self, ranks: Ranks) -> None:
        alone = ranks.run(masks_of, 1)[0]["masks"]
        for size in (2, 3):
            assert ranks.run(masks_of, size)[0]["masks"] == alone

    @pytest.mark.case("O-M5")
    def test_l3_2_a_second_run_draws_the_same_and_another_seed_others(self, ranks: Ranks) -> None:
        first = ranks.run(masks_of, 2)[0]["masks"]
        assert ranks.run(masks_of, 2)[0]["masks"] == first
        other = ranks.run(masks_of, 2, seed=41)[0]["masks"]
        assert not {m for u in first for m in u} & {m for u in other for m in u}

    def test_l3_2_programs_draw_from_keys_of_their_own(self, ranks: Ranks) -> None:
        first = ranks.run(masks_of, 1)[0]["masks"]
        second = ranks.run(masks_of, 1, programs=2)[0]["masks"]
        assert not {m for u in first for m in u} & {m for u in second for m in u}

    @pytest.mark.parametrize("size", [1, 2])
    def test_l6_7_evaluation_draws_nothing_and_leaves_generators_alone(
        self, ranks: Ranks, size: int
    ) -> None:
        plain = ranks.run(masks_of, size)[0]["masks"]
        for result in ranks.run(masks_of, size, evaluate=True):
            assert result["masks"] == plain
            assert result["is_kept"], "the global generators moved"
            expected = result["x"] @ result["weight"]
            assert result["outputs"][:, 0] == near(ranks, expected, rel=1e-13)
