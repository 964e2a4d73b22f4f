"""Faults planted into the device of PopART: tests of the conformance kit must notice each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Callable

import numpy as np
import pytest

from tests.adapters.mutated_calls import applied, replaced, without
from tests.adapters.planted_faults import Fault, assert_noticed
from unified_ipu import device, testing
from unified_ipu_onnx.conformance import OnnxSubject
from unified_ipu_onnx.ipu import counting
from unified_ipu_onnx.ipu.device import OnnxDevice
from unified_ipu_onnx.ipu.optimizers import NativeOptimizer
from unified_ipu_onnx.ipu.twin import HostTwin
from unified_ipu_onnx.lower import lower

pytestmark = pytest.mark.timeout(120)


def calls(change: Any) -> Callable[[Any], None]:
    """A lowering that makes another native call."""

    def plant(monkeypatch: Any) -> None:
        monkeypatch.setattr("unified_ipu_onnx.adapter.lower", applied(change, lower))

    return plant


def counts_padding(monkeypatch: Any) -> None:
    monkeypatch.setattr(counting, "counted_rows", lambda micro: np.ones(micro.rows, bool))


def scores_padding(monkeypatch: Any) -> None:
    def score(self: Any, micro: Any, outputs: Any, metrics: Any) -> Any:
        return own(self, replace(micro, sample_weight=None), outputs, metrics)

    own = HostTwin.score
    monkeypatch.setattr(HostTwin, "score", score)


def has_the_rate_inside(monkeypatch: Any) -> None:
    def values(self: Any, group: Any, factor: float) -> Any:
        found = own(self, group, factor)
        return {**found, "momentum": (found["momentum"][0] * factor, False)}

    own = NativeOptimizer._values
    monkeypatch.setattr(NativeOptimizer, "_values", values)


def decays_gradients(monkeypatch: Any) -> None:
    def make(self: Any, factor: float) -> Any:
        self._is_decoupled = False
        return own(self, factor)

    own = NativeOptimizer.make
    monkeypatch.setattr(NativeOptimizer, "make", make)


def keeps_slots_to_itself(monkeypatch: Any) -> None:
    monkeypatch.setattr(NativeOptimizer, "take", lambda self, arrays, used: None)


def keeps_weights_that_were_loaded_from_the_device(monkeypatch: Any) -> None:
    def write(self: Any, tensors: Any) -> None:
        self._sync()
        self._twin.write(tensors)

    monkeypatch.setattr(OnnxDevice, "write", write)


def applies_each_micro_batch(monkeypatch: Any) -> None:
    def train(shape: Any, reduction: Any, micro_step: Any, apply: Any, **others: Any) -> None:
        def step(position: Any) -> Any:
            gradients = micro_step(position)
            apply(gradients)
            return {name: 0.0 * gradient for name, gradient in gradients.items()}

        own(shape, reduction, step, apply, **others)

    own = device.train
    monkeypatch.setattr("unified_ipu_onnx.emulated.popart.session.train", train)


UPDATE, SCHEDULE = testing.UpdateLawSuite, testing.ScheduleSuite
FAULTS = {
    "averages accumulated gradients": Fault(
        calls(
            replaced("opts.accumulationAndReplicationReductionType", "=popart.ReductionType.Mean")
        ),
        UPDATE,
        "test_l1_2_the_reduction_of_a_loss_does_not_show",
        {"reduction": "none"},
    ),
    "steps at each micro-batch": Fault(
        applies_each_micro_batch,
        UPDATE,
        "test_l1_8_step_counters_move_once_an_update",
    ),
    "leaves clipping out": Fault(
        calls(without("optimizer.clip_norm_settings")),
        UPDATE,
        "test_l1_8_clipping_comes_once_after_the_reduction",
        {"size": 1, "reduction": "mean"},
    ),
    "keeps an old rate": Fault(
        calls(without("session.updateOptimizerFromHost")),
        SCHEDULE,
        "test_l2_11_warm_up_rises_to_the_full_rate",
    ),
    "has the rate inside the velocity": Fault(
        has_the_rate_inside,
        SCHEDULE,
        "test_l1_8_the_rate_stays_outside_the_velocity",
    ),
    "decays gradients instead of weights": Fault(
        decays_gradients,
        testing.OptimizerSuite,
        "test_l5_2_two_updates_worked_out_by_hand",
        {"which": "adamw"},
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
    "saves no slots": Fault(
        keeps_slots_to_itself,
        testing.StateLawSuite,
        "test_l3_1_a_tied_parameter_stays_tied",
    ),
    "keeps weights that were loaded from the device": Fault(
        keeps_weights_that_were_loaded_from_the_device,
        testing.EvaluationSuite,
        "test_evaluation_and_prediction_use_the_newest_weights",
        {"size": 1},
    ),
}


@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_the_kit_notices_a_fault_of_a_device(monkeypatch, tmp_path, fault):
    assert_noticed(FAULTS[fault], OnnxSubject(), monkeypatch, tmp_path)
