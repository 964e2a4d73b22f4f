"""Faults planted into the device: tests of the conformance kit, which hold without them, fail.

One process alone, as the test's own, so that a fault is a patch; the kit's ranks are elsewhere.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Callable, Dict, List, Tuple

import numpy as np
import pytest

from tests.adapters.mutated_calls import applied, replaced, without
from unified_ipu import device, testing
from unified_ipu.testing.ranks import rank_of
from unified_ipu.world import World
from unified_ipu_onnx.conformance import OnnxSubject
from unified_ipu_onnx.ipu import counting
from unified_ipu_onnx.ipu.optimizers import NativeOptimizer
from unified_ipu_onnx.ipu.twin import HostTwin
from unified_ipu_onnx.lower import lower

pytestmark = pytest.mark.timeout(120)


class Here:
    """The one rank of a scenario in this process."""

    target, dtype = "ipu-emulated", "float32"

    def run(self, scenario: Callable[..., Any], size: int = 1, **arguments: Any) -> List[Any]:
        assert size == 1
        rank = rank_of(OnnxSubject(), World(0, 0, 1, 1), target=self.target)
        return [scenario(rank, **arguments)]


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
FAULTS: Dict[str, Tuple[Any, Any, str, Dict[str, Any]]] = {
    "averages accumulated gradients": (
        calls(
            replaced("opts.accumulationAndReplicationReductionType", "=popart.ReductionType.Mean")
        ),
        UPDATE,
        "test_l1_2_the_reduction_of_a_loss_does_not_show",
        {"reduction": "none"},
    ),
    "steps at each micro-batch": (
        applies_each_micro_batch,
        UPDATE,
        "test_l1_8_step_counters_move_once_an_update",
        {},
    ),
    "leaves clipping out": (
        calls(without("optimizer.clip_norm_settings")),
        UPDATE,
        "test_l1_8_clipping_comes_once_after_the_reduction",
        {"size": 1, "reduction": "mean"},
    ),
    "keeps an old rate": (
        calls(without("session.updateOptimizerFromHost")),
        SCHEDULE,
        "test_l2_11_warm_up_rises_to_the_full_rate",
        {},
    ),
    "has the rate inside the velocity": (
        has_the_rate_inside,
        SCHEDULE,
        "test_l1_8_the_rate_stays_outside_the_velocity",
        {},
    ),
    "decays gradients instead of weights": (
        decays_gradients,
        testing.OptimizerSuite,
        "test_l5_2_two_updates_worked_out_by_hand",
        {"which": "adamw"},
    ),
    "counts padding": (
        counts_padding,
        testing.DataLawSuite,
        "test_l2_9_padding_is_counted_and_does_not_count",
        {"size": 1},
    ),
    "scores padding": (
        scores_padding,
        testing.EvaluationSuite,
        "test_l6_1_each_sample_counts_once",
        {"size": 1, "pad": True},
    ),
    "saves no slots": (
        keeps_slots_to_itself,
        testing.StateLawSuite,
        "test_l3_1_a_tied_parameter_stays_tied",
        {},
    ),
}


@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_the_kit_sees_a_fault_of_a_device(monkeypatch, tmp_path, fault):
    plant, suite, name, arguments = FAULTS[fault]
    arguments = {**arguments, "ranks": Here()}
    test = getattr(suite(), name)
    needs_folder = "tmp_path" in test.__code__.co_varnames[: test.__code__.co_argcount]
    folders = [{"tmp_path": tmp_path / word} if needs_folder else {} for word in ("held", "failed")]
    test(**arguments, **folders[0])
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        test(**arguments, **folders[1])
