"""Faults planted into the device of IPU Keras: tests of the conformance kit must notice each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Callable

import numpy as np
import pytest

from tests.adapters.mutated_calls import applied, replaced, without
from tests.adapters.planted_faults import Fault, assert_noticed
from unified_ipu import testing
from unified_ipu_tensorflow import lower as lowering
from unified_ipu_tensorflow.conformance import TensorflowSubject
from unified_ipu_tensorflow.emulated.keras import programs
from unified_ipu_tensorflow.ipu import models, optimizers, scoring
from unified_ipu_tensorflow.ipu.drivers import ExactDriver
from unified_ipu_tensorflow.ipu.known_rows import Counted
from unified_ipu_tensorflow.lower_ipu import lower_for_ipu

pytestmark = pytest.mark.timeout(120)


def calls(change: Any) -> Callable[[Any], None]:
    """A lowering that makes another native call."""

    def plant(monkeypatch: Any) -> None:
        monkeypatch.setattr(lowering, "lower_for_ipu", applied(change, lower_for_ipu))

    return plant


def counts_padding(monkeypatch: Any) -> None:
    def parts(self: Any, micro: Any) -> Any:
        targets, counted, weights = own(self, micro)
        return targets, np.ones_like(counted), weights

    own = Counted.parts
    monkeypatch.setattr(Counted, "parts", parts)


def scores_padding(monkeypatch: Any) -> None:
    def everything(micro: Any, result: Any) -> Any:
        return replace(micro, sample_weight=None), result

    monkeypatch.setattr(scoring, "_without_padding", everything)


def trains_while_it_infers(monkeypatch: Any) -> None:
    def call_model(model: Any, x: Any, *, training: bool) -> Any:
        del training
        return own(model, x, training=True)

    own = vars(models)["call_model"]
    monkeypatch.setattr(models, "call_model", call_model)


def has_the_rate_inside(monkeypatch: Any) -> None:
    def update(settings: Any, variable: Any, gradient: Any, rate: Any, slots: Any) -> Any:
        return own(settings, variable, rate * gradient, 1.0, slots)

    own = optimizers.update
    monkeypatch.setattr(optimizers, "update", update)


def keeps_slots_to_itself(monkeypatch: Any) -> None:
    monkeypatch.setattr(ExactDriver, "slots", lambda self: {})


def applies_each_micro_batch(monkeypatch: Any) -> None:
    def train(shape: Any, reduction: Any, micro_step: Any, apply: Any, **others: Any) -> None:
        def step(position: Any) -> Any:
            gradients = micro_step(position)
            apply(gradients)
            return {name: 0.0 * gradient for name, gradient in gradients.items()}

        own(shape, reduction, step, apply, **others)

    own = vars(programs)["train"]
    monkeypatch.setattr(programs, "train", train)


ACCUMULATION = "model.set_gradient_accumulation_options"
MEAN = (
    "=gradient_accumulation_steps_per_replica=3, gradient_accumulation_reduction_method='mean', "
    "offload_weight_update_variables=False, replicated_optimizer_state_sharding=False"
)
UPDATE, SCHEDULE = testing.UpdateLawSuite, testing.ScheduleSuite
FAULTS = {
    "averages accumulated gradients": Fault(
        calls(replaced(ACCUMULATION, MEAN)),
        UPDATE,
        "test_l1_2_the_reduction_of_a_loss_does_not_show",
        {"reduction": "none"},
    ),
    "averages rows": Fault(
        calls(replaced("loss.reduction", "sum_over_batch_size")),
        UPDATE,
        "test_l1_2_a_sample_weight_scales_the_loss_and_not_its_count",
    ),
    "steps at each micro-batch": Fault(
        applies_each_micro_batch,
        UPDATE,
        "test_l1_8_step_counters_move_once_an_update",
    ),
    "leaves clipping out": Fault(
        calls(without("optimizer.global_clipnorm")),
        UPDATE,
        "test_l1_8_clipping_comes_once_after_the_reduction",
        {"size": 1, "reduction": "mean"},
    ),
    "keeps an old rate": Fault(
        calls(without("optimizer.learning_rate.assign")),
        SCHEDULE,
        "test_l2_11_warm_up_rises_to_the_full_rate",
    ),
    "has the rate inside the velocity": Fault(
        has_the_rate_inside,
        SCHEDULE,
        "test_l1_8_the_rate_stays_outside_the_velocity",
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
    "trains while it infers": Fault(
        trains_while_it_infers,
        testing.EvaluationSuite,
        "test_l6_7_buffers_are_the_same_for_every_sample_and_stay_as_they_were",
        {"size": 1},
    ),
    "saves no slots": Fault(
        keeps_slots_to_itself,
        testing.StateLawSuite,
        "test_l3_1_a_tied_parameter_stays_tied",
    ),
}


@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_the_kit_notices_a_fault_of_a_device(monkeypatch, tmp_path, fault):
    assert_noticed(FAULTS[fault], TensorflowSubject(), monkeypatch, tmp_path)
