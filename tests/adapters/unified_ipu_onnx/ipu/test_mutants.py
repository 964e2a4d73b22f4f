"""Each native setting of the PopART lowering, got wrong once: refused, or not the host's numbers.

PopART counts the elements that it is fed, so a wrong number of updates, micro-batches or replicas
is an error. Settings of memory, partials, seeds and buffers change no number here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import unified_ipu as ui
from tests.adapters.mutated_calls import applied, replaced, without
from tests.adapters.unified_ipu_onnx.ipu.device_runs import DEVICE, HOST, change, data, trained
from unified_ipu.errors import CapabilityError
from unified_ipu_onnx.emulated import popart
from unified_ipu_onnx.lower import lower

LIMIT = 1e-4
SHAPE = {
    "batch__global_batch_size": 16,
    "batch__updates_per_call": 3,
    "ipu__replicas_per_process": 2,
}
PLAIN: Any = {
    "settings": SHAPE,
    "epochs": 2,
    "schedule": lambda update: 1.0 / (1.0 + update),
}
CLIPPED: Any = {
    "settings": {**SHAPE, "update__clip_norm": 0.05},
    "optimizer": ui.optim.SGD(lr=0.5),
}
ROWS = data(40)  # updates of 16, 16 and 8 rows: one call


def distance(found: Any, expected: Any) -> float:
    losses = np.abs(np.array(found["losses"]) / np.array(expected["losses"]) - 1.0).max()
    return max(change(found["weights"], expected["weights"]), float(losses))


@pytest.fixture(scope="module")
def hosts() -> Any:
    return {"plain": trained(HOST, ROWS, **PLAIN), "clipped": trained(HOST, ROWS, **CLIPPED)}


@pytest.mark.parametrize(("name", "job"), [("plain", PLAIN), ("clipped", CLIPPED)])
def test_l5_without_a_mutant_the_device_is_the_host(hosts, name, job):
    assert distance(trained(DEVICE, ROWS, **job), hosts[name]) < LIMIT / 100


OTHER_NUMBERS = {
    "mean_for_sum": replaced(
        "opts.accumulationAndReplicationReductionType", "=popart.ReductionType.Mean"
    ),
    "rates_never_sent": without("session.updateOptimizerFromHost"),
}


@pytest.mark.parametrize("name", list(OTHER_NUMBERS))
def test_l5_a_setting_that_is_wrong_changes_the_numbers(hosts, monkeypatch, name):
    monkeypatch.setattr("unified_ipu_onnx.adapter.lower", applied(OTHER_NUMBERS[name], lower))
    assert distance(trained(DEVICE, ROWS, **PLAIN), hosts["plain"]) > LIMIT


def test_l5_without_clipping_the_numbers_are_others(hosts, monkeypatch):
    mutant = without("optimizer.clip_norm_settings")
    monkeypatch.setattr("unified_ipu_onnx.adapter.lower", applied(mutant, lower))
    assert distance(trained(DEVICE, ROWS, **CLIPPED), hosts["clipped"]) > LIMIT


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("popart.DataFlow.batchesPerStep", 1),
        ("popart.DataFlow.batchesPerStep", 6),
        ("opts.accumulationFactor", 2),
        ("opts.accumulationFactor", 8),
        ("opts.enableGradientAccumulation", False),
        ("opts.replicatedGraphCount", 1),
        ("opts.enableReplicatedGraphs", False),
    ],
)
def test_counts_that_are_wrong_are_refused(monkeypatch, name, value):
    monkeypatch.setattr("unified_ipu_onnx.adapter.lower", applied(replaced(name, value), lower))
    # When the program is compiled, or when the arrays of a call are counted.
    with pytest.raises((CapabilityError, popart.popart_exception)):
        trained(DEVICE, ROWS, **PLAIN)


@pytest.mark.parametrize("kind", ["Final", "Sum"])
def test_losses_of_some_updates_only_are_refused(monkeypatch, kind):
    mutant = replaced("popart.DataFlow.anchorReturnType", f'=popart.AnchorReturnType("{kind}")')
    monkeypatch.setattr("unified_ipu_onnx.adapter.lower", applied(mutant, lower))
    with pytest.raises(ValueError, match="cannot reshape"):
        trained(DEVICE, ROWS, **PLAIN)
