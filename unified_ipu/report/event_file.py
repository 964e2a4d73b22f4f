"""Scalars in the format that TensorBoard reads, written without TensorBoard or TensorFlow.

A file is a sequence of TFRecords, each one protocol buffer ``Event``. Of the protocol buffers only
a few fields are needed, so they are encoded here: importing TensorFlow beside a CUDA build of torch
can end in a crash, and a package for this alone cannot be installed beside every SDK.

Source: record format: ``tensorflow/core/lib/io/record_writer.cc``; messages: ``event.proto`` and
``summary.proto`` of TensorFlow 2.21. Held by reading the files back with TensorFlow in the tests.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from itertools import count
from pathlib import Path
from typing import List, Mapping, Optional

from unified_ipu.report.log_file import LogFile

_FLUSH_SECONDS = 5.0
_POLYNOMIAL = 0x82F63B78  # CRC-32C (Castagnoli), reflected
_MASK = 0xA282EAD8  # added so that the checksum of data that holds checksums stays good
_numbers = count()  # two files of one process and second get different names


def _crc_table() -> List[int]:
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ (_POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return table


_TABLE = _crc_table()


class EventFile:
    """One event file, with a name of its own.

    Args:
        folder: A run: TensorBoard shows all event files of a folder as one.
    """

    def __init__(self, folder: Path) -> None:
        name = f"{time.time():010.0f}.{socket.gethostname()}.{os.getpid()}.{next(_numbers)}"
        self._file = LogFile(folder / f"events.out.tfevents.{name}")
        self._flushed = time.monotonic()
        self._write(_event(_text(3, "brain.Event:2")))  # the version comes first in every file
        self._file.flush()

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Write one value for each tag.

        Args:
            step: Shown on the horizontal axis, at least 0.
            values: ``{tag: value}``; float32 in the file.
        """
        entries = b"".join(
            _message(1, _text(1, tag) + b"\x15" + struct.pack("<f", _float32(value)))
            for tag, value in values.items()
        )
        self._write(_event(_message(5, entries), step=step))
        if time.monotonic() - self._flushed > _FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Let TensorBoard see what was written."""
        self._file.flush()
        self._flushed = time.monotonic()

    def close(self) -> None:
        """Flush and close."""
        self._file.close()

    def _write(self, data: bytes) -> None:
        length = struct.pack("<Q", len(data))
        self._file.write(length + _checksum(length) + data + _checksum(data))


def _event(content: bytes, *, step: Optional[int] = None) -> bytes:
    number = b"" if step is None else b"\x10" + _varint(step)
    return b"\x09" + struct.pack("<d", time.time()) + number + content


def _text(field: int, text: str) -> bytes:
    return _message(field, text.encode("utf-8"))


def _message(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    digits = bytearray()
    while number > 0x7F:  # noqa: PLR2004 - seven bits a byte
        digits.append(number & 0x7F | 0x80)
        number >>= 7
    digits.append(number)
    return bytes(digits)


def _float32(value: float) -> float:
    # struct refuses what is too large for a float32; a log shows it as infinite.
    largest = 3.4028234663852886e38
    if value != value or abs(value) <= largest:  # noqa: PLR0124 - only nan differs from itself
        return value
    return float("inf") if value > 0 else float("-inf")


def _checksum(data: bytes) -> bytes:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ _TABLE[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    rotated = (crc >> 15 | crc << 17) & 0xFFFFFFFF
    return struct.pack("<I", (rotated + _MASK) & 0xFFFFFFFF)
