from __future__ import annotations

import pytest

from unified_ipu.report import EpochSummary, Summary


def epoch(number, certificate, **rest):
    values = {"samples": 10, "updates": 3, "skipped": 0, "loss": 0.5, "metrics": {}, "seconds": 1.0}
    return EpochSummary(
        epoch=number, epochs=2, certificate=certificate, validation={}, **{**values, **rest}
    )


def summary(*epochs, **rest):
    values = {"num_replicas": 2, "target": "cpu", "seconds": 4.0, "counts": {}}
    phases = {"compute": 3.0, "data": 1.0}
    return Summary(epochs=epochs, **{**values, "phases": phases, **rest})


def lines(text):
    """Split the printed table into names and values."""
    return {line[:12].split()[0]: line.split(None, 1)[1] for line in str(text).splitlines()}


def test_equal_certificates_are_printed_once_and_others_by_epoch():
    same = summary(epoch(0, "10 of 10"), epoch(1, "10 of 10"))
    assert lines(same)["samples"] == "20; in each epoch 10 of 10"
    other = summary(epoch(0, "10 of 10"), epoch(1, "4 of 10", samples=4))
    assert lines(other)["samples"] == "14; epoch 1: 10 of 10; epoch 2: 4 of 10"


def test_a_run_that_was_finished_says_so():
    assert lines(summary())["samples"] == "0; nothing was left to train"
    assert lines(summary())["trained"] == "0 epochs on 2 replicas, target cpu"


def test_the_shares_of_the_time_add_up_to_one():
    found = summary(phases={"compute": 3.0, "data": 1.0, "writing": 4.0}).shares()
    assert found == {"data": 0.125, "compute": 0.375, "writing": 0.5}
    assert lines(summary())["where"] == "data 25%, compute 75%"


@pytest.mark.parametrize(("stopped", "is_there"), [("", False), ("no time left", True)])
def test_the_reason_of_an_early_end_is_printed(stopped, is_there):
    assert lines(summary(stopped=stopped)).get("stopped") == (stopped if is_there else None)


def test_an_epochs_line_holds_what_happened_in_it():
    text = str(epoch(1, "10 of 10", skipped=2, metrics={"hits": 0.25}))
    assert text == "epoch 2/2: loss 0.5000, hits 0.2500, 2 updates skipped, 10 of 10, 1.0 s"


def test_a_log_of_an_epoch_has_none_where_a_number_is_not_finite():
    values = epoch(0, "10 of 10", loss=float("nan"), metrics={"hits": float("inf")}).to_dict()
    assert values["loss"] is None
    assert values["metrics"] == {"hits": None}
    assert values["certificate"] == "10 of 10"
