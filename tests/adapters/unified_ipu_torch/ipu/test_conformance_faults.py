"""Faults of the PopTorch device that the conformance kit notices."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Callable

import numpy as np
import pytest

from tests.adapters.mutated_calls import applied, replaced, without
from tests.adapters.planted_faults import Fault, assert_noticed
from unified_ipu import testing
from unified_ipu_torch.conformance import TorchSubject
from unified_ipu_torch.ipu import device, forms, optimizers, programs
from unified_ipu_torch.ipu.host_half import HostHalf
from unified_ipu_torch.ipu.sharing import Sharing
from unified_ipu_torch.lower_ipu import lower_for_ipu

pytestmark = pytest.mark.timeout(120)


def calls(change: Any) -> Callable[[Any], None]:
    """Another native call than the lowering's."""
    return lambda patch: patch.setattr(device, "lower_for_ipu", applied(change, lower_for_ipu))


def counts_padding(patch: Any) -> None:
    patch.setattr(forms, "_counted", lambda batch: np.ones(batch.rows))


def scores_padding(patch: Any) -> None:
    original = HostHalf.score

    def score(self: Any, micro: Any, *rest: Any) -> Any:
        return original(self, replace(micro, sample_weight=None), *rest)

    patch.setattr(HostHalf, "score", score)


def leaves_the_decay_of_adamw_out(patch: Any) -> None:
    patch.setitem(optimizers._ZERO_BY_DEFAULT, "AdamW", ("weight_decay",))


def restores_no_slots(patch: Any) -> None:
    patch.setattr(programs, "slots_to_device", lambda *_: None)


def infers_with_old_weights(patch: Any) -> None:
    original = programs.InferenceProgram.take

    def take(self: Any, model: Any) -> None:
        if self.version == -1:
            original(self, model)

    patch.setattr(programs.InferenceProgram, "take", take)


FAULTS = {
    "averages gradients": Fault(
        calls(
            replaced(
                "options.Training.accumulationAndReplicationReductionType",
                "=poptorch.ReductionType.Mean",
            )
        ),
        testing.UpdateLawSuite,
        "test_l1_3_a_short_last_group_is_divided_by_its_own_weight",
        {"size": 1},
    ),
    "sums gradients in half precision": Fault(
        calls(replaced("optimizer.accum_type", "=torch.float16")),
        testing.OptimizerSuite,
        "test_l5_3_fifty_updates_with_each_option_equal_the_oracle",
        {"which": "momentum"},
    ),
    "does not clip": Fault(
        calls(without("optimizer.max_grad_norm")),
        testing.UpdateLawSuite,
        "test_l1_8_clipping_comes_once_after_the_reduction",
        {"size": 1, "reduction": "mean"},
    ),
    "keeps an old rate": Fault(
        calls(without("poptorch_model.setOptimizer")),
        testing.ScheduleSuite,
        "test_l2_11_warm_up_rises_to_the_full_rate",
    ),
    "leaves the decay of AdamW out": Fault(
        leaves_the_decay_of_adamw_out,
        testing.OptimizerSuite,
        "test_l5_3_fifty_updates_with_each_option_equal_the_oracle",
        {"which": "adamw-no-decay"},
    ),
    "counts padding": Fault(
        counts_padding,
        testing.DataLawSuite,
        "test_l2_9_padding_is_counted_and_does_not_count",
        {"size": 1},
    ),
    "scores padding": Fault(
        scores_padding,
        testing.EvaluationSuite,
        "test_l6_1_each_sample_counts_once",
        {"size": 1, "pad": True},
    ),
    "infers with old weights": Fault(
        infers_with_old_weights,
        testing.EvaluationSuite,
        "test_evaluation_and_prediction_use_the_newest_weights",
        {"size": 1},
    ),
    "restores no slots": Fault(
        restores_no_slots,
        testing.StateLawSuite,
        "test_l3_1_a_tied_parameter_stays_tied",
    ),
    "lets programs over one model train apart": Fault(
        lambda patch: patch.setattr(Sharing, "catch_up", lambda self: False),
        testing.ConcurrencySuite,
        "test_two_programs_play_against_each_other_on_one_model",
        {"size": 1},
    ),
}


@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_the_kit_notices_a_fault_of_the_device(monkeypatch, tmp_path, fault):
    assert_noticed(FAULTS[fault], TorchSubject(), monkeypatch, tmp_path)
