"""GPUs without a framework."""

from __future__ import annotations

import pytest

from unified_ipu.launch.devices import usable_gpus


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, 4),
        ({"CUDA_VISIBLE_DEVICES": "0,2"}, 2),
        ({"CUDA_VISIBLE_DEVICES": " 1 , 3"}, 2),
        ({"CUDA_VISIBLE_DEVICES": "0,9,1"}, 1),
        ({"CUDA_VISIBLE_DEVICES": "0,-1,1"}, 1),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, 0),
        ({"CUDA_VISIBLE_DEVICES": ""}, 0),
        ({"CUDA_VISIBLE_DEVICES": "GPU-1a,GPU-2b"}, 2),
    ],
)
def test_visible_cards_are_counted(tmp_path, environ, expected):
    for index in range(4):
        (tmp_path / f"0000:{index:02}").mkdir()
    assert usable_gpus(environ, folder=tmp_path) == expected


def test_without_a_driver_there_is_none(tmp_path):
    assert usable_gpus({"CUDA_VISIBLE_DEVICES": "0"}, folder=tmp_path / "absent") == 0
