"""The kit as a command, on the sample numpy adapter as if it were installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from unified_ipu.cli.main import main as cli
from unified_ipu.testing.command import main

THIRD_PARTY = Path(__file__).parents[2] / "third_party"
BROKEN = """
from unified_ipu_numpy_conformance import NumpySubject
from unified_ipu_numpy import NumpyReplica

apply = NumpyReplica.apply


def twice(self, *, lr_factor, **rest):
    apply(self, lr_factor=2.0 * lr_factor, **rest)


NumpyReplica.apply = twice


class Broken(NumpySubject):
    pass
"""


def conformance(folder, *words, module="unified_ipu.testing"):
    (folder / "broken_subject.py").write_text(BROKEN, encoding="utf-8")
    search = [THIRD_PARTY / "unified_ipu_numpy_sample", THIRD_PARTY]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, search))}
    return subprocess.run(
        [sys.executable, "-m", module, *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def row(output, clause):
    (line,) = [line for line in output.splitlines() if line.split()[:1] == [clause]]
    return line.split()[-3:]


@pytest.mark.slow
def test_it_runs_the_kit_and_prints_a_line_a_clause(tmp_path):
    words = ("conformance", "numpy", "--suite", "update-decision", "-k", "l1_6 or l1_9")
    done = conformance(tmp_path, *words, module="unified_ipu.cli.main")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "conformance of numpy on cpu" in done.stdout
    assert row(done.stdout, "L1.6") == ["2", "0", "0"]
    assert row(done.stdout, "L1.9") == ["0", "0", "2"]
    assert row(done.stdout, "tests") == ["2", "0", "2"]
    assert "skipped 2: numpy declares shared_parameters as not_written" in done.stdout
    assert not list(tmp_path.glob(".pytest_cache"))


@pytest.mark.slow
def test_a_failure_shows_its_values_and_in_the_exit_status(tmp_path):
    words = ("--subject", "broken_subject:Broken", "--suite", "ScheduleSuite", "-k", "velocity")
    done = conformance(tmp_path, "numpy", *words)
    assert done.returncode == 1, done.stdout + done.stderr
    assert row(done.stdout, "L1.8") == ["0", "1", "0"]
    assert "-3.5 == -1.75" in done.stdout, "asserts of the kit are explained"


@pytest.mark.slow
@pytest.mark.parametrize("expression", ["nothing_is_called_so", "l1_9"], ids=["none", "skipped"])
def test_a_run_in_which_nothing_passed_is_not_a_success(tmp_path, expression):
    assert conformance(tmp_path, "numpy", "-k", expression).returncode == 5


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["abacus"], ["'abacus'", "installed: ", "numpy"]),
        (["numpy", "--suite", "Nonsense"], ["'Nonsense'", "UpdateLawSuite", "BadInputSuite"]),
        (["numpy", "--target", "ipu"], ["'ipu'", "'numpy' can use cpu"]),
        (["numpy", "--subject", "unified_ipu_numpy_conformance"], ["expected module:Class"]),
        (["numpy", "--subject", "no_such:Subject"], ["cannot be imported", "no_such"]),
        (
            ["numpy", "--subject", "unified_ipu_numpy_conformance:Nothing"],
            ["cannot be imported", "Nothing"],
        ),
        (
            ["torch", "--subject", "unified_ipu_numpy_conformance:NumpySubject"],
            ["'numpy'", "'torch'"],
        ),
    ],
    ids=["adapter", "suite", "target", "no-class", "no-module", "unknown-class", "foreign"],
)
def test_what_is_wrong_is_said_with_what_there_is(capsys, words, said):
    assert main(words) == 2
    error = capsys.readouterr().err
    for text in said:
        assert text in error


def test_an_adapter_without_a_subject_says_how_to_give_one(capsys, monkeypatch):
    monkeypatch.setattr("unified_ipu.testing.subjects.registered", lambda group: {})
    assert main(["numpy"]) == 2
    error = capsys.readouterr().err
    assert "--subject module:Class" in error
    assert "unified_ipu.conformance" in error


def test_without_pytest_the_command_says_what_to_install(capsys, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert cli(["conformance", "numpy"]) == 2
    assert "unified-ipu[test]" in capsys.readouterr().err
