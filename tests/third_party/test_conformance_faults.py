"""Each suite fails on a sample adapter with a fault planted in it: the suites see something."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Dict, Set
from xml.etree import ElementTree as ET

import pytest

from unified_ipu import testing

HERE = Path(__file__).parent

# Suite, the test that must notice, and what replaces a part of ``NumpyReplica``.
FAULTS = {
    "every micro-batch counts as one": (
        "UpdateLawSuite",
        "test_l1_3_token_losses_are_divided_by_all_tokens",
        """
        original = NumpyReplica.finish_update
        def finish_update(self):
            return replace(original(self), weight=float(self._weight > 0.0))
        monkeypatch.setattr(NumpyReplica, "finish_update", finish_update)
        """,
    ),
    "what is not finite is taken for 0": (
        "UpdateDecisionSuite",
        "test_l1_7_alone_it_is_the_same_error",
        """
        original = NumpyReplica._accumulate
        def accumulate(self, gradients):
            original(self, {n: np.nan_to_num(g, posinf=0.0) for n, g in gradients.items()})
        monkeypatch.setattr(NumpyReplica, "_accumulate", accumulate)
        """,
    ),
    "the factor of the learning rate is forgotten": (
        "UpdateOracleSuite",
        "test_l5_3_clipping_warm_up_and_scaling_equal_the_oracle",
        """
        original = NumpyReplica.apply
        def apply(self, *, lr_factor, **rest):
            original(self, lr_factor=1.0, **rest)
        monkeypatch.setattr(NumpyReplica, "apply", apply)
        """,
    ),
    "the last row of a micro-batch is lost": (
        "DataLawSuite",
        "test_l5_1_samples_weights_and_rates_are_equal_in_every_world",
        """
        original = NumpyReplica.forward_backward
        def forward_backward(self, micro, **rest):
            x, y = micro.tree
            weight = micro.sample_weight
            short = replace(
                micro,
                tree=(x[:-1], y[:-1]),
                rows=micro.rows - 1,
                sample_weight=None if weight is None else weight[:-1],
            )
            original(self, short if micro.rows > 2 else micro, **rest)
        monkeypatch.setattr(NumpyReplica, "forward_backward", forward_backward)
        """,
    ),
    "masks come from a generator that goes on": (
        "RandomNumbersSuite",
        "test_l3_2_programs_draw_from_keys_of_their_own",
        """
        original = NumpyReplica.forward_backward
        def forward_backward(self, micro, *, seed, **rest):
            self.draws = getattr(self, "draws", 0) + 1
            original(self, micro, seed=self.draws, **rest)
        monkeypatch.setattr(NumpyReplica, "forward_backward", forward_backward)
        """,
    ),
    "weights are handed out as views": (
        "WeightsSuite",
        "test_weights_go_in_and_come_out_as_copies",
        """
        def read(self, names):
            return {name: self._find(name) for name in names}
        monkeypatch.setattr(NumpyReplica, "read", read)
        """,
    ),
    "slots of a later state stay": (
        "StateLawSuite",
        "test_l3_1_weights_slots_and_counters_come_back[adam-0]",
        """
        monkeypatch.setattr(NumpyReplica, "forget_slots", lambda self: None)
        """,
    ),
    "padding counts in evaluation": (
        "EvaluationSuite",
        "test_l6_1_each_sample_counts_once[1-True]",
        """
        original = NumpyReplica.evaluate
        def evaluate(self, micro, metrics, *, seed):
            return original(self, replace(micro, sample_weight=None), metrics, seed=seed)
        monkeypatch.setattr(NumpyReplica, "evaluate", evaluate)
        """,
    ),
    "an opaque mean takes padding in": (
        "BadInputSuite",
        "test_l2_9_a_loss_that_returns_one_number_refuses_padding",
        """
        original = NumpyReplica.forward_backward
        def forward_backward(self, micro, **rest):
            tree = micro.tree[:2] if isinstance(micro.tree, tuple) else micro.tree
            original(self, replace(micro, sample_weight=None, tree=tree), **rest)
        monkeypatch.setattr(NumpyReplica, "forward_backward", forward_backward)
        """,
    ),
}

HEAD = """\

import sys
from dataclasses import replace

import numpy as np
import pytest

sys.path[:0] = {path!r}

from numpy_subject import NumpySubject
from unified_ipu import testing
from unified_ipu_numpy import NumpyReplica


class Fixtures:
    @pytest.fixture
    def subject(self):
        return NumpySubject()

    @pytest.fixture
    def ranks(self, subject):
        return testing.ThreadRanks(subject)
"""

CLASS = """

class Test{number}(Fixtures, testing.{suite}):
    @pytest.fixture(autouse=True)
    def fault(self, monkeypatch):
{fault}
"""


@pytest.fixture(scope="module")
def failures(tmp_path_factory: pytest.TempPathFactory) -> Dict[str, Set[str]]:
    """Names of the failed tests by fault, of one inner run with all faults."""
    folder = tmp_path_factory.mktemp("faults")
    text = HEAD.format(path=[str(HERE / "unified_ipu_numpy_sample"), str(HERE)])
    for number, (suite, _, fault) in enumerate(FAULTS.values()):
        text += CLASS.format(number=number, suite=suite, fault=fault)
    (folder / "conftest.py").write_text('pytest_plugins = ["unified_ipu.testing"]\n')
    (folder / "test_faults.py").write_text(text)
    (folder / "pytest.ini").write_text("[pytest]\n")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--junitxml=report.xml",
    ]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 1, done.stdout + done.stderr
    found: Dict[str, Set[str]] = {fault: set() for fault in FAULTS}
    for case in ET.parse(folder / "report.xml").iter("testcase"):  # noqa: S314  # ours
        assert case.find("error") is None, ET.tostring(case).decode()
        fault = list(FAULTS)[int(case.attrib["classname"].rpartition("Test")[2])]
        failure = case.find("failure")
        if failure is not None and "assert" in failure.attrib["message"].lower():
            found[fault].add(case.attrib["name"])
    return found


@pytest.mark.parametrize("fault", FAULTS)
def test_a_suite_fails_on_the_fault_planted_for_it(
    failures: Dict[str, Set[str]], fault: str
) -> None:
    _, killer, _ = FAULTS[fault]
    assert killer in failures[fault]


def test_every_suite_has_a_fault() -> None:
    suites = {name for name in testing.__all__ if name.endswith("Suite")} - {"AdapterSuite"}
    assert {suite for suite, *_ in FAULTS.values()} == suites
