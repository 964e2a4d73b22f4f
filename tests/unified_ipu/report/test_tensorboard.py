from __future__ import annotations

import importlib.util
import json
import logging
import math
import struct
import subprocess
import sys

import pytest

from unified_ipu.adapter import Record
from unified_ipu.report import EpochSummary, FitContext, TensorBoard
from unified_ipu.report.event_file import EventFile, _checksum


def context(*, is_first=True):
    return FitContext(rank=0, is_first=is_first, epochs=1, samples_per_epoch=8, program=None)


def record(update):
    return Record(
        update=update,
        epoch=0,
        samples=4,
        loss_sum=6.0 + update,
        weight=4.0,
        lr=0.5,
        grad_norm=2.0,
        skipped=0,
        updates=1,
        metric_sums={"hits": (1.0, 4.0)},
    )


def summary():
    return EpochSummary(
        epoch=0,
        epochs=1,
        samples=8,
        updates=2,
        skipped=1,
        loss=1.625,
        metrics={"hits": 0.25},
        certificate="",
        validation={"loss": 3.0, "accuracy": 0.75},
        seconds=1.0,
    )


def write(folder):
    callback, fit = TensorBoard(folder), context()
    callback.on_fit_start(fit)
    for update in range(2):
        callback.on_call_end(fit, record(update))
    callback.on_epoch_end(fit, summary())
    callback.on_fit_end(fit, None)


READ = """
import json, sys
import tensorflow as tf
found = []
for event in tf.compat.v1.train.summary_iterator(sys.argv[1]):
    values = {value.tag: value.simple_value for value in event.summary.value}
    found.append([event.file_version, event.step, event.wall_time, values])
print(json.dumps(found))
"""


@pytest.mark.slow
def test_tensorflow_reads_what_was_written(tmp_path):
    if importlib.util.find_spec("tensorflow") is None:
        pytest.skip("needs tensorflow")
    write(tmp_path)
    (path,) = tmp_path.iterdir()
    done = subprocess.run(
        [sys.executable, "-c", READ, str(path)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    head, first, second, epoch = json.loads(done.stdout)
    assert head[0] == "brain.Event:2"
    assert abs(head[2] - path.stat().st_mtime) < 60
    for number, (_, step, _, values) in enumerate((first, second)):
        assert step == number + 1
        assert values.pop("train/samples_per_second") > 0
        assert values == {
            "train/loss": (6.0 + number) / 4,
            "train/learning_rate": 0.5,
            "train/gradient_norm": 2.0,
            "train/hits": 0.25,
        }
    assert epoch[1] == 2
    assert epoch[3] == {
        "epoch/loss": 1.625,
        "epoch/skipped_updates": 1.0,
        "epoch/hits": 0.25,
        "validation/loss": 3.0,
        "validation/accuracy": 0.75,
    }


def test_the_checksum_is_that_of_the_published_examples():
    # RFC 3720, B.4: CRC-32C of 32 bytes of zeros, of ones, and of 0 to 31.
    for data, crc in (
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
    ):
        masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
        assert _checksum(data) == struct.pack("<I", masked)


def test_values_that_a_float32_cannot_hold_are_written(tmp_path):
    file = EventFile(tmp_path)
    file.add(1 << 40, {"a": math.nan, "b": math.inf, "c": 1e300, "d": -1e300})
    file.close()
    (path,) = tmp_path.iterdir()
    assert path.read_bytes().count(struct.pack("<f", math.inf)) == 2
    assert path.read_bytes().count(struct.pack("<f", -math.inf)) == 1


def test_only_rank_0_writes(tmp_path):
    callback, fit = TensorBoard(tmp_path / "run"), context(is_first=False)
    callback.on_fit_start(fit)
    callback.on_call_end(fit, record(0))
    callback.on_epoch_end(fit, summary())
    callback.on_fit_end(fit, None)
    assert not (tmp_path / "run").exists()


def test_two_fits_write_two_files(tmp_path):
    write(tmp_path)
    write(tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_folder_that_cannot_be_made_is_an_error_before_training(tmp_path):
    (tmp_path / "run").write_text("a file")
    with pytest.raises(OSError, match="run"):
        TensorBoard(tmp_path / "run").on_fit_start(context())


def test_a_disk_that_is_full_does_not_end_the_training(tmp_path, caplog):
    class Full:
        def write(self, data=b""):
            raise OSError(28, "No space left on device")

        close = flush = write

    callback, fit = TensorBoard(tmp_path), context()
    callback.on_fit_start(fit)
    assert callback._file is not None
    log = callback._file._file
    log.close()
    log._file = Full()  # type: ignore[assignment]  # a disk that is full
    with caplog.at_level(logging.WARNING):
        for update in range(3):
            callback.on_call_end(fit, record(update))
    callback.on_fit_end(fit, None)
    assert [line.message.count("No space left") for line in caplog.records] == [1]
