"""What a data process is told at its start."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest

from unified_ipu.data.worker_start import pack, read_start, unpack, write_start
from unified_ipu.errors import ConfigError, DataError


@pytest.mark.parametrize("size", [0, 10, 1 << 20])
def test_plan_and_objects_arrive_whatever_their_size(size):
    values = np.arange(size, dtype=np.uint8)
    reading, writing = os.pipe()

    def write():
        rest = memoryview(write_start({"name": "words"}, pack(values)))
        while rest:
            rest = rest[os.write(writing, rest) :]
        os.close(writing)

    writer = threading.Thread(target=write)
    writer.start()
    config, packed = read_start(reading)
    writer.join()
    os.close(reading)
    assert config["name"] == "words"
    assert np.array_equal(unpack(packed), values)


def test_without_objects_nothing_is_packed():
    reading, writing = os.pipe()
    os.write(writing, write_start({"name": "words"}, b""))
    assert read_start(reading)[1] == b""
    os.close(writing)
    with pytest.raises(ConfigError, match="started by a loader"):
        read_start(reading)
    os.close(reading)


def test_a_class_that_is_only_in_the_script_is_refused_with_advice():
    with pytest.raises(DataError, match=r"cannot be loaded .*module beside the script"):
        unpack(b"c__main__\nNoSuchDataset\n.")


def test_what_cannot_be_packed_is_refused_with_advice():
    with pytest.raises(DataError, match=r'"module:function".*data\.workers = 0'):
        pack(threading.Lock())
