from __future__ import annotations

import pytest

from unified_ipu.data.worker_environment import worker_environment

OURS = "glibc.cpu.x86_non_temporal_threshold=4194304"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, OURS),
        ({"GLIBC_TUNABLES": ""}, OURS),
        (
            {"GLIBC_TUNABLES": "glibc.malloc.check=1"},
            f"glibc.malloc.check=1:{OURS}",
        ),
        (
            {"GLIBC_TUNABLES": "glibc.cpu.x86_non_temporal_threshold=99999"},
            "glibc.cpu.x86_non_temporal_threshold=99999",
        ),
    ],
)
def test_large_copies_go_past_the_caches_unless_the_user_has_decided(given, expected):
    assert worker_environment(given)["GLIBC_TUNABLES"] == expected


def test_tensorflow_is_quiet_unless_the_user_has_decided():
    assert worker_environment({"A": "b"})["TF_CPP_MIN_LOG_LEVEL"] == "2"
    assert worker_environment({"TF_CPP_MIN_LOG_LEVEL": "0"})["TF_CPP_MIN_LOG_LEVEL"] == "0"
