"""Dataset objects and pipelines in the rank's own process, beside a torch model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.timeout(120), pytest.mark.slow]

SCRIPT = Path(__file__).with_name("beside.py")
FRESH = (  # each needs a process in which TensorFlow has not run yet
    "growth_is_set_on_every_gpu_before_the_first_operation",
    "threads_are_shared_between_ranks_before_the_first_operation",
)
CASES = {
    "what_torch_writes_never_reaches_the_dataset": "O-B3",
    "text_in_a_step_is_refused_by_the_name_of_its_column": "O-B5",
    "tensors_and_their_views_can_be_stepped_with": "O-B3",
    "text_in_a_dataset_is_refused_by_the_name_of_its_column": "O-B5",
}
NAMES = [
    line[len("def check_") :].partition("(")[0]
    for line in SCRIPT.read_text(encoding="utf-8").splitlines()
    if line.startswith("def check_")
]
LAST = "settings_that_come_too_late_are_a_warning"  # it leaves devices behind that are not there
SHARED = [name for name in NAMES if name not in {*FRESH, LAST}]


def run(*names):
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *names],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def results():
    return run(*SHARED, LAST)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.case(CASES[name])] if name in CASES else [])
        for name in SHARED
    ],
)
def test_beside_a_model(results, name):
    assert results[name] is None, results[name]


@pytest.mark.case("O-P4")
def test_settings_that_come_too_late_are_a_warning(results):
    assert results[LAST] is None, results[LAST]


@pytest.mark.case("O-P4")
@pytest.mark.parametrize("name", FRESH)
def test_settings_are_made_before_the_first_operation(name):
    assert run(name) == {name: None}
