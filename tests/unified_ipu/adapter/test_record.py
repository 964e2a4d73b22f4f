from __future__ import annotations

import json
import math

from unified_ipu.adapter import Record


def test_loss_and_metrics_are_sums_over_weights():
    record = Record(
        update=3,
        epoch=0,
        samples=4,
        loss_sum=6.0,
        weight=4.0,
        lr=0.1,
        grad_norm=1.0,
        skipped=0,
        updates=1,
        metric_sums={"accuracy": (3.0, 4.0), "empty": (0.0, 0.0)},
    )
    assert record.loss == 1.5
    assert record.metrics["accuracy"] == 0.75
    assert math.isnan(record.metrics["empty"])


def test_a_record_of_nothing_is_strict_json():
    record = Record(
        update=0,
        epoch=0,
        samples=0,
        loss_sum=0.0,
        weight=0.0,
        lr=0.1,
        grad_norm=math.nan,
        skipped=1,
        updates=0,
    )
    values = json.loads(json.dumps(record.to_dict(), allow_nan=False))
    assert values["loss"] is None
    assert values["grad_norm"] is None
    assert values["skipped"] == 1
