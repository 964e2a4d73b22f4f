"""Each native setting of the Keras lowering, got wrong once: the numbers are not the host's then.

The emulation sees native settings only, never the plan, so it computes what IPU Keras would.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Dict

import numpy as np
import pytest

import unified_ipu as ui
from tests.adapters.mutated_calls import applied, replaced, without
from tests.adapters.unified_ipu_tensorflow.ipu.sessions import (
    HOST,
    Case,
    device,
    distance,
    keras,
    mlp,
    numbers,
)
from unified_ipu_tensorflow import lower as lowering
from unified_ipu_tensorflow.lower_ipu import lower_for_ipu

pytestmark = pytest.mark.timeout(300)

CASE = Case(numbers(128), 2, optimizer=lambda: ui.optim.SGD(0.1))
SETTINGS: Dict[str, Any] = {"update.warmup_updates": 4, "data.shuffle": False}
CLIPPED: Dict[str, Any] = {**SETTINGS, "update.clip_norm": 0.5}
ACCUMULATION = "model.set_gradient_accumulation_options"
REPLICAS = "model.set_replication_options"


@pytest.fixture(scope="module")
def hosts():
    plans = [device(**settings) for settings in (SETTINGS, CLIPPED)]
    plans = [{k: v for k, v in plan.items() if not k.startswith("ipu.")} for plan in plans]
    return [CASE.train({**plan, **HOST}) for plan in plans]


def mutate(monkeypatch: Any, mutant: Any) -> None:
    monkeypatch.setattr(lowering, "lower_for_ipu", applied(mutant, lower_for_ipu))


def accumulated(text: str) -> str:
    rest = "offload_weight_update_variables=False, replicated_optimizer_state_sharding=False"
    return f"={text}, {rest}"


MUTANTS = {
    "mean_over_micro_batches": replaced(
        ACCUMULATION,
        accumulated(
            "gradient_accumulation_steps_per_replica=4, "
            "gradient_accumulation_reduction_method='mean'"
        ),
    ),
    "half_the_accumulation": replaced(
        ACCUMULATION,
        accumulated(
            "gradient_accumulation_steps_per_replica=2, "
            "gradient_accumulation_reduction_method='sum'"
        ),
    ),
    "no_accumulation": without(ACCUMULATION),
    "mean_over_rows": replaced("loss.reduction", "sum_over_batch_size"),
    "one_replica": replaced("config.auto_select_ipus", 1),
    "stale_rate": without("optimizer.learning_rate.assign"),
    "coefficients_twice": replaced("sample_weight", "=coefficients * 2.0"),
}


@pytest.mark.parametrize("index", [0, 1])
def test_l5_without_a_mutant_the_device_is_the_host(hosts, index):
    found = CASE.train(device(**(SETTINGS, CLIPPED)[index]))
    assert distance(found.weights, hosts[index].weights) < 1e-5
    assert np.allclose(found.losses, hosts[index].losses, rtol=1e-5)


@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_a_wrong_setting_gives_other_weights(monkeypatch, hosts, name):
    mutate(monkeypatch, MUTANTS[name])
    assert distance(CASE.train(device(**SETTINGS)).weights, hosts[0].weights) > 1e-3


def test_without_clipping_weights_are_others(monkeypatch, hosts):
    mutate(monkeypatch, without("optimizer.global_clipnorm"))
    assert distance(CASE.train(device(**CLIPPED)).weights, hosts[1].weights) > 1e-3


def test_replicas_that_are_not_summed_give_another_loss(monkeypatch, hosts):
    value = "=replicated_metric_reduction_method='NONE'"
    mutate(monkeypatch, replaced(REPLICAS, value))
    found = CASE.train(device(**SETTINGS)).losses[0]
    assert abs(found / hosts[0].losses[0] - 1.0) > 0.1


def sums_outputs(found: Any) -> Any:
    """Let inference keep what training says of replicas."""
    training = next(call.value for call in found.calls if call.name == REPLICAS)
    calls = [
        replace(call, value=training) if call.name == REPLICAS else call for call in found.calls
    ]
    return replace(found, calls=tuple(calls))


def test_outputs_that_are_summed_over_replicas_are_other_outputs(monkeypatch):
    x, y = numbers(16)
    found = []
    for is_changed in (False, True):
        if is_changed:
            mutate(monkeypatch, sums_outputs)
        with ui.Session(ui.Plan().replace(device())) as session:
            program = session.compile(mlp, loss=keras.losses.MeanSquaredError())
            found.append(program.predict(session.loader((x, y), train=False)))
    assert np.allclose(found[0], mlp()(x).numpy(), rtol=1e-4, atol=1e-5)
    assert not np.allclose(found[1], found[0], rtol=0.1)
