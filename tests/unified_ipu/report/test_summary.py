from __future__ import annotations

import pytest

from unified_ipu.report import EpochSummary, Summary


def summary_of(*, updates=4, skipped=1, **counts):
    epoch = EpochSummary(
        epoch=0,
        epochs=1,
        samples=20,
        updates=updates,
        skipped=skipped,
        loss=0.5,
        metrics={},
        certificate="20 of 20 samples, each once",
        validation={},
        seconds=2.0,
    )
    return Summary(
        epochs=(epoch,),
        num_replicas=2,
        target="cpu",
        seconds=2.0,
        phases={"compute": 1.5, "other": 0.5},
        counts=counts,
    )


def line(summary, name):
    (found,) = [text for text in str(summary).splitlines() if text.split("  ")[0] == name]
    return found[len(name) :].strip()


def test_bytes_copied_are_told_by_update_and_copies_by_reason():
    summary = summary_of(bytes_copied=1000, copied_because_read_only=3)
    assert summary.copied_per_update == 200
    assert line(summary, "copied") == "200 bytes an update"
    assert line(summary, "copied because read only") == "3"
    assert "bytes copied" not in str(summary)


@pytest.mark.parametrize("summary", [summary_of(), summary_of(updates=0, skipped=0)])
def test_no_copy_is_said_too(summary):
    assert line(summary, "copied") == "0 bytes an update"
