"""The conformance suites on the device of the sample numpy adapter, and what is left out there."""

from __future__ import annotations

from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any, Callable, Dict, Optional, Tuple

import pytest
from unified_ipu_numpy_conformance import NumpySubject

from unified_ipu import testing
from unified_ipu.engine import device as device_engine, device_feed, device_inference
from unified_ipu.errors import ConfigError
from unified_ipu.testing import installed
from unified_ipu.testing.device_limits import EVERY_DEVICE, check_target, limit_of
from unified_ipu.testing.on_devices import assert_norms, on_device


class Fixtures:
    @pytest.fixture
    def subject(self) -> NumpySubject:
        return NumpySubject()

    @pytest.fixture
    def ranks(self, subject: NumpySubject) -> testing.ThreadRanks:
        return testing.ThreadRanks(subject, "ipu-emulated")


class TestUpdateLaw(Fixtures, testing.UpdateLawSuite):
    pass


class TestUpdateDecision(Fixtures, testing.UpdateDecisionSuite):
    pass


class TestUpdateOracle(Fixtures, testing.UpdateOracleSuite):
    pass


class TestDataLaw(Fixtures, testing.DataLawSuite):
    pass


class TestRandomNumbers(Fixtures, testing.RandomNumbersSuite):
    pass


class TestWeights(Fixtures, testing.WeightsSuite):
    pass


class TestStateLaw(Fixtures, testing.StateLawSuite):
    pass


class TestAgreement(Fixtures, testing.AgreementSuite):
    pass


class TestConcurrency(Fixtures, testing.ConcurrencySuite):
    pass


class TestLoss(Fixtures, testing.LossSuite):
    pass


class TestOptimizer(Fixtures, testing.OptimizerSuite):
    pass


class TestPrecision(Fixtures, testing.PrecisionSuite):
    pass


class TestSchedule(Fixtures, testing.ScheduleSuite):
    pass


class TestEvaluation(Fixtures, testing.EvaluationSuite):
    pass


class TestBadInput(Fixtures, testing.BadInputSuite):
    pass


# Who leaves out more changes this list, and says why beside the declaration.
NO_DEVICE = {
    "test_l1_10_what_some_micro_batches_use_is_reduced_and_the_unused_stays",
    "test_l1_5_a_rank_whose_targets_are_all_ignored_does_not_count",
    "test_l1_7_an_overflow_on_one_rank_skips_the_update_on_all",
    "test_l2_4_the_micro_batches_of_an_uneven_world",
    "test_l3_2_*",
    "test_l3_6_masks_go_on_in_another_world",
    "test_l4_2_metrics_that_change_their_names_end_all_ranks",
    "test_l5_2_ranks_may_keep_a_tensor_with_other_axes",
    "test_l5_3_other_names_and_axes_change_nothing",
    "test_l6_7_evaluation_draws_nothing_and_leaves_generators_alone",
}
NUMPY = {
    "test_an_objective_must_return_a_loss",
    "test_l1_11_a_penalty_weighs_the_same_however_the_update_is_split",
    "test_l1_3_token_losses_are_divided_by_all_tokens",
    "test_l1_8_a_loss_scale_does_not_show",
    "test_l1_8_clipping_comes_once_after_the_reduction",
    "test_l4_8_every_rank_has_the_same_bits_after_every_update",
    "test_l5_3_clipping_warm_up_and_scaling_equal_the_oracle",
}


def test_no_more_is_left_out_than_is_listed_here() -> None:
    assert set(EVERY_DEVICE) == NO_DEVICE
    assert set(NumpySubject.device_limits) == NUMPY
    suites = [suite for name, suite in vars(installed).items() if name.startswith("Test")]
    known = {name for suite in suites for name in dir(suite) if name.startswith("test_")}
    for pattern in (*NO_DEVICE, *NUMPY):
        assert any(fnmatchcase(name, pattern) for name in known), f"{pattern} is no test"


def test_a_limit_is_of_devices_and_of_the_test_it_names() -> None:
    assert "clip" in str(limit_of(NumpySubject(), "test_l1_8_a_loss_scale_does_not_show"))
    assert "L3.2" in str(limit_of(NumpySubject(), "test_l3_2_masks_do_not_depend_on_the_world"))
    assert limit_of(NumpySubject(), "test_l1_8_decay_acts_once_an_update") is None


def test_a_subject_without_limits_is_refused_on_devices_only() -> None:
    class Plain:
        adapter = "plain"

    for target in ("auto", "cpu", "cuda"):
        check_target(Plain(), target)
    check_target(NumpySubject(), "ipu-emulated")
    for target in ("ipu", "ipu-emulated"):
        with pytest.raises(ConfigError, match="does not run the adapter 'plain' on devices"):
            check_target(Plain(), target)


def compile_with_topk(rank: Any) -> str:
    """Open a session that no target allows yet."""
    plan = {"batch": {"global_batch_size": 4}, "comms": {"compression": "topk"}}
    with rank.session(plan) as session:
        return str(session.plan.target)


def target_of(rank: Any) -> str:
    """Where the plan says it runs."""
    with rank.session() as session:
        return str(session.plan.target)


@pytest.mark.parametrize("target", ["cpu", "ipu-emulated"])
def test_the_target_of_the_ranks_is_the_one_of_their_plans(target: str) -> None:
    assert testing.ThreadRanks(NumpySubject(), target).run(target_of, 2) == [target, target]


@pytest.mark.parametrize("target", ["cpu", "ipu-emulated"])
def test_a_refusal_that_is_not_declared_fails(target: str) -> None:
    with pytest.raises(testing.RanksFailedError, match="PlanError"):
        testing.ThreadRanks(NumpySubject(), target).run(compile_with_topk, 2)


def test_a_plan_becomes_static_on_a_device() -> None:
    def sizes(plan: Any, processes: int, rows: Optional[int] = None) -> Any:
        batch = on_device(plan, processes, rows)["batch"]
        return batch["global_batch_size"], batch["micro_batch_size"], batch["remainder"]

    assert sizes({}, 3, 2) == (6, 2, "pad")
    batch = {"global_batch_size": 8, "micro_batch_size": 3}
    assert sizes({"batch": batch}, 1) == (8, 2, "pad")
    assert sizes({"batch": batch}, 2) == (8, 2, "pad")
    assert sizes({"batch": batch}, 3) == (8, 3, "pad"), "refused later"
    assert sizes({"batch": {**batch, "remainder": "drop"}}, 4) == (8, 2, "drop")


def test_a_device_that_claims_a_norm_fails() -> None:
    ranks = testing.ThreadRanks(NumpySubject(), "ipu-emulated")
    assert_norms(ranks, [float("nan")], [2.0])
    with pytest.raises(AssertionError, match="no device has measured"):
        assert_norms(ranks, [2.0], [2.0])
    with pytest.raises(AssertionError):
        assert_norms(testing.ThreadRanks(NumpySubject()), [float("nan")], [2.0])


def feeds_what_has_no_weight(patch: Any) -> None:
    original = device_engine.DeviceExecutor._totals

    def totals(self: Any, *given: Any) -> Any:
        weights, samples = original(self, *given)
        return [weight or 1.0 for weight in weights], samples

    patch.setattr(device_engine.DeviceExecutor, "_totals", totals)


def divides_each_process_by_its_own(patch: Any) -> None:
    original = device_feed.Weighed.update

    def update(self: Any, total: float, reduction: str) -> Any:
        del total
        return original(self, float(self.weights.sum()), reduction)

    patch.setattr(device_feed.Weighed, "update", update)


def divides_the_tail_by_a_full_batch(patch: Any) -> None:
    original, seen = vars(device_feed)["loss_coefficients"], [0.0]

    def coefficients(factors: Any, *, reduction: str, total: float) -> Any:
        seen[0] = max(seen[0], total)
        return original(factors, reduction=reduction, total=seen[0])

    patch.setattr(device_feed, "loss_coefficients", coefficients)


def counts_padding(patch: Any) -> None:
    patch.setattr(
        device_feed,
        "padded",
        lambda micro, rows: replace(
            micro, tree=device_feed.repeated(micro.tree, rows), rows=rows, sample_weight=None
        ),
    )


def scores_what_was_filled_up(patch: Any) -> None:
    original = device_inference.DeviceInference._result_of

    def result_of(self: Any, micro: Any) -> Any:
        complete, result = original(self, micro)
        return replace(complete, sample_weight=None), result

    patch.setattr(device_inference.DeviceInference, "_result_of", result_of)


Mutant = Tuple[Callable[[Any], None], Any, str, Dict[str, Any]]
MUTANTS: Tuple[Mutant, ...] = (
    (
        feeds_what_has_no_weight,
        testing.UpdateDecisionSuite,
        "test_l1_6_nothing_happens_when_nothing_counts",
        {},
    ),
    (
        divides_each_process_by_its_own,
        testing.UpdateLawSuite,
        "test_l1_3_replicas_with_unequal_batches_form_one_mean",
        {},
    ),
    (
        divides_the_tail_by_a_full_batch,
        testing.UpdateLawSuite,
        "test_l1_3_a_short_last_group_is_divided_by_its_own_weight",
        {"size": 1},
    ),
    (
        counts_padding,
        testing.DataLawSuite,
        "test_l2_9_padding_is_counted_and_does_not_count",
        {"size": 2},
    ),
    (
        scores_what_was_filled_up,
        testing.EvaluationSuite,
        "test_l6_1_each_sample_counts_once",
        {"size": 1, "pad": False},
    ),
)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant[0].__name__)
def test_the_kit_notices_a_fault_of_the_engine_that_drives_devices(
    monkeypatch: Any, mutant: Mutant
) -> None:
    plant, suite, test, arguments = mutant
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        getattr(suite(), test)(testing.ThreadRanks(NumpySubject(), "ipu-emulated"), **arguments)
