from __future__ import annotations

import math

import pytest

from unified_ipu.errors import ConfigError
from unified_ipu.report import EarlyStop, EpochSummary, FitContext


def context():
    return FitContext(rank=0, is_first=True, epochs=99, samples_per_epoch=1, program=None)


def epoch(number, **validation):
    return EpochSummary(
        epoch=number,
        epochs=99,
        samples=1,
        updates=1,
        skipped=0,
        loss=0.0,
        metrics={},
        certificate="",
        validation=validation,
        seconds=0.0,
    )


def epochs_until_stop(callback, losses):
    """Return how many epochs ran, None if it never asked."""
    fit = context()
    for number, loss in enumerate(losses):
        callback.on_epoch_end(fit, epoch(number, loss=loss, accuracy=1.0))
        if fit.requests:
            return number + 1
    return None


@pytest.mark.parametrize(
    ("settings", "losses", "ran"),
    [
        ({}, [5, 4, 3, 2, 1, 0], None),
        ({"patience": 1}, [5, 4, 4], 3),
        ({"patience": 2}, [5, 4, 4, 4.5], 4),
        ({"patience": 2}, [5, 6, 4, 6, 3, 6, 6], 7),  # each improvement begins anew
        ({"patience": 2, "mode": "max"}, [1, 2, 1, 2], 4),
        ({"patience": 2, "min_change": 0.5}, [5, 4.6, 4.4, 4.2, 4.0], 5),  # 4.4 is the last best
        ({"patience": 2}, [math.nan, math.nan, 1], 2),
        ({"patience": 2}, [math.nan, 5, math.nan, math.nan], 4),
        ({"patience": 1}, [math.inf, 5, 6], 3),
    ],
)
def test_it_asks_once_patience_is_at_its_end(settings, losses, ran):
    assert epochs_until_stop(EarlyStop(**settings), losses) == ran


def test_the_reason_names_the_best_epoch():
    fit, stop = context(), EarlyStop("accuracy", mode="max", patience=1)
    stop.on_epoch_end(fit, epoch(0, accuracy=0.75))
    stop.on_epoch_end(fit, epoch(1, accuracy=0.5))
    assert fit.requests == ["validation accuracy no better for 1 epoch, since 0.75 in epoch 1"]


def test_the_first_reason_is_kept():
    fit = context()
    fit.stop("one")
    fit.stop("two")
    assert fit.requests == ["one"]


def test_a_metric_that_is_not_evaluated_is_refused_with_those_that_are():
    with pytest.raises(ConfigError, match=r"'accuracy' was not evaluated; the fit has loss, error"):
        EarlyStop("accuracy").on_epoch_end(context(), epoch(0, loss=1.0, error=2.0))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"mode": "least"}, "mode='least'"),
        ({"patience": 0}, "patience=0"),
        ({"patience": True}, "patience=True"),
        ({"min_change": -1.0}, "min_change=-1.0"),
        ({"min_change": math.nan}, "min_change=nan"),
    ],
)
def test_what_cannot_be_meant_is_refused(settings, words):
    with pytest.raises(ConfigError, match=words):
        EarlyStop(**settings)
