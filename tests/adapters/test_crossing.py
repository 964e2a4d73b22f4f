"""Tensors that cross between frameworks; in processes of their own, where none may be killed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.timeout(120), pytest.mark.slow]

SCRIPT = Path(__file__).with_name("crossings.py")
FATAL = (
    "text_is_refused_by_name",
    "handles_and_variants_are_refused",
    "unaligned_memory_is_copied_before_tensorflow_gets_it",
)
CASES = {
    "booleans_keep_type_and_values": "O-B1",
    "strided_views_are_made_contiguous": "O-B2",
    "a_constant_is_not_changed_by_what_torch_does": "O-B3",
}
NAMES = [
    line[len("def check_") :].partition("(")[0]
    for line in SCRIPT.read_text(encoding="utf-8").splitlines()
    if line.startswith("def check_")
]


def run(*names):
    return subprocess.run(
        [sys.executable, str(SCRIPT), *names],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )


@pytest.fixture(scope="module")
def results():
    done = run(*[name for name in NAMES if name not in FATAL])
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.case(CASES[name])] if name in CASES else [])
        for name in NAMES
        if name not in FATAL
    ],
)
def test_crossing(results, name):
    assert results[name] is None, results[name]


def test_what_would_end_the_process_without_the_guard():
    done = run(*FATAL)
    assert done.returncode == 0, done.stderr  # -6 is an abort
    assert json.loads(done.stdout) == dict.fromkeys(FATAL)
