"""Updates completed for a device, and micro-batches grouped for its inference program."""

from __future__ import annotations

from typing import Any, List

import numpy as np
import pytest

from unified_ipu.adapter import Measure, MicroBatch, Update
from unified_ipu.engine.device_feed import DeviceFeed, padded, repeated
from unified_ipu.engine.device_inference import DeviceInference
from unified_ipu.errors import ConfigError
from unified_ipu.events import PhaseClock
from unified_ipu.plan import DeviceBatch

BATCH = DeviceBatch(
    micro_batch_size=3,
    updates_per_call=2,
    accumulation=2,
    local_replicas=2,
    processes=1,
    stages=1,
    ipus_per_replica=1,
)


class Counting:
    """A device that weighs rows by their value, and remembers what it was asked."""

    def __init__(self, *, weighs_rows: bool = True, at_once: int = 2) -> None:
        self.weighs_rows, self.micro_batches_at_once = weighs_rows, at_once
        self.groups: List[List[List[float]]] = []

    def measure(self, micro: MicroBatch) -> Measure:
        factors = np.asarray(micro.tree, np.float64)
        if micro.sample_weight is not None:
            factors = factors * (np.asarray(micro.sample_weight) != 0)
        return Measure(float(factors.sum()), factors if self.weighs_rows else 1.0)

    def infer(self, micro_batches: Any) -> List[Any]:
        self.groups.append([micro.tree.tolist() for micro in micro_batches])
        return [micro.tree * 10 for micro in micro_batches]

    def score(self, micro: MicroBatch, result: Any, metrics: Any) -> Any:
        return {"loss": (float(result.sum()), float(micro.rows))}

    def outputs(self, result: Any) -> Any:
        return {"rows": result, "constant": np.ones(2)}


def micro(index: int, *values: float) -> MicroBatch:
    ids = np.arange(len(values), dtype=np.int64)
    return MicroBatch(index, np.array(values, np.float32), len(values), None, ids)


def feed(device: Any) -> DeviceFeed:
    return DeviceFeed(device, BATCH)


def test_short_and_missing_micro_batches_repeat_rows_that_are_there():
    weighed = feed(Counting()).weigh(Update(7, [micro(0, 1, 2, 3), micro(1, 4, 5)], 5))
    assert [each.tree.tolist() for each in weighed.micro_batches] == [
        [1, 2, 3],
        [4, 5, 4],
        [1, 2, 3],
        [1, 2, 3],
    ]
    assert np.asarray(weighed.micro_batches[1].ids).tolist() == [0, 1, -1]
    assert weighed.weights.tolist() == [6, 9, 0, 0]
    assert weighed.samples == 5
    update = weighed.update(30.0, "mean")
    expected = np.array([[1, 2, 3], [4, 5, 0], [0] * 3, [0] * 3]) / 30.0
    np.testing.assert_allclose(update.coefficients, expected, rtol=1e-15)
    assert update.micro_weights.tolist() == [6, 9, 0, 0]
    assert weighed.update(30.0, "sum").coefficients.tolist() == (expected * 30.0).tolist()


def test_what_weighs_nothing_is_replaced_by_rows_that_do():
    weighed = feed(Counting()).weigh(Update(0, [micro(0, 0, 0, 0), micro(1, 1, 2, 3)], 6))
    assert weighed.micro_batches[0].tree.tolist() == [1, 2, 3]
    assert np.asarray(weighed.micro_batches[0].ids).tolist() == [-1, -1, -1]
    assert weighed.weights.tolist() == [0, 6, 0, 0]
    assert weighed.samples == 6


def test_a_process_without_rows_feeds_one_of_an_earlier_update():
    fed = feed(Counting())
    nothing = fed.weigh(Update(0, [], 0))
    assert nothing.micro_batches == ()
    assert "never had one" in nothing.problem
    fed.weigh(Update(1, [micro(0, 8, 9)], 2))
    weighed = fed.weigh(Update(2, [], 0))
    assert [each.tree.tolist() for each in weighed.micro_batches] == [[8, 8, 8]] * 4
    assert weighed.weights.tolist() == [0, 0, 0, 0]
    assert not weighed.problem


def test_a_loss_of_one_number_has_one_coefficient_a_micro_batch_and_no_padding():
    fed = feed(Counting(weighs_rows=False))
    weighed = fed.weigh(Update(0, [micro(0, 1, 2, 3)], 3))
    assert weighed.factors.tolist() == [1, 0, 0, 0]
    assert "has rows of padding" in fed.weigh(Update(1, [micro(0, 1)], 1)).problem


def test_more_micro_batches_than_fit_are_refused_with_the_numbers():
    with pytest.raises(ConfigError, match=r"got 5 micro-batches.*2 x 2 replicas = 4"):
        feed(Counting()).weigh(Update(0, [micro(k, 1) for k in range(5)], 5))


def test_padding_keeps_weights_and_structure():
    tree = {"x": (np.arange(2), [np.arange(2) + 5])}
    assert repeated(tree, 5)["x"][0].tolist() == [0, 1, 0, 1, 0]
    assert repeated(tree, 5)["x"][1][0].tolist() == [5, 6, 5, 6, 5]
    weighted = MicroBatch(0, np.arange(2), 2, np.array([1, 0], np.float32))
    full = padded(weighted, 4)
    assert full.sample_weight is not None
    assert full.sample_weight.tolist() == [1, 0, 0, 0]
    assert padded(full, 4) is full
    with pytest.raises(ConfigError, match="a device takes 1 to 2"):
        padded(full, 2)


def test_l6_6_micro_batches_run_in_groups_and_are_answered_one_by_one():
    device: Any = Counting()
    inference = DeviceInference(device, 2, PhaseClock())
    given = [micro(0, 1, 2), micro(1, 3, 4), micro(2, 5)]
    found = []
    for each in inference.in_groups(given):
        loss = inference.evaluate(each, {})["loss"]
        outputs = inference.predict(each)
        found.append((loss, outputs["rows"].tolist(), outputs["constant"].tolist()))
    assert device.groups == [[[1, 2], [3, 4]], [[5, 5], [5, 5]]]
    assert found == [
        ((30.0, 2.0), [10, 20], [1, 1]),
        ((70.0, 2.0), [30, 40], [1, 1]),
        ((100.0, 2.0), [50], [1]),
    ]


def test_a_micro_batch_out_of_turn_runs_alone_and_larger_ones_make_all_larger():
    device: Any = Counting()
    inference = DeviceInference(device, 1, PhaseClock())
    assert inference.predict(micro(0, 1, 2, 3))["rows"].tolist() == [10, 20, 30]
    assert inference.predict(micro(0, 7))["rows"].tolist() == [70]
    assert device.groups == [[[1, 2, 3]] * 2, [[7, 7, 7]] * 2]
