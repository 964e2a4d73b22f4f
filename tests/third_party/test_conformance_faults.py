"""The kit sees something: each suite fails on a planted fault, and on each mutant of the engine.

Faults are planted in the sample adapter. Only the tests that must notice are run, in one inner run.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Set
from xml.etree import ElementTree as ET

import pytest

from tests.mutants import MUTANTS, Mutant
from unified_ipu import testing
from unified_ipu.testing.clauses import NO_CLAUSE, clauses_of

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
    "the axes of a slot are ignored": (
        "WeightsSuite",
        "test_l5_2_ranks_may_keep_a_tensor_with_other_axes",
        """
        original = NumpyReplica.bind
        def bind(self, slots, gradients):
            original(self, [replace(slot, permutation=None) for slot in slots], gradients)
        monkeypatch.setattr(NumpyReplica, "bind", bind)
        """,
    ),
    "axes of gradients are left as they are": (
        "WeightsSuite",
        "test_l5_2_ranks_may_keep_a_tensor_with_other_axes",
        """
        original = NumpyReplica.bind
        def bind(self, slots, gradients):
            original(self, [replace(slot, permutation=None) for slot in slots], gradients)
        monkeypatch.setattr(NumpyReplica, "bind", bind)
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
    "ranks round in their own way": (
        "AgreementSuite",
        "test_l4_8_every_rank_has_the_same_bits_after_every_update[float64-2]",
        """
        build, apply = NumpyAdapter.build, NumpyReplica.apply
        def build_and_tell(self, job, plan, place):
            replica = build(self, job, plan, place)
            replica.rank = place.rank
            return replica
        def applied(self, *, lr_factor, **rest):
            apply(self, lr_factor=lr_factor * (1.0 + 1e-12 * self.rank), **rest)
        monkeypatch.setattr(NumpyAdapter, "build", build_and_tell)
        monkeypatch.setattr(NumpyReplica, "apply", applied)
        """,
    ),
    "the user's arrays are changed": (
        "AgreementSuite",
        "test_l4_6_an_array_that_lies_oddly_is_read_right_or_refused[strided]",
        """
        original = NumpyReplica.forward_backward
        def forward_backward(self, micro, **rest):
            original(self, micro, **rest)
            micro.tree[0][...] = 0.0
        monkeypatch.setattr(NumpyReplica, "forward_backward", forward_backward)
        """,
    ),
    "what is known not to count is run": (
        "UpdateDecisionSuite",
        "test_l1_5_a_rank_whose_targets_are_all_ignored_does_not_count",
        """
        original = NumpyReplica.weight_before
        def weight_before(self, micro):
            return original(self, micro) or None
        def accumulate(self, gradients):
            for name, gradient in gradients.items():
                self._views[name] += gradient
        monkeypatch.setattr(NumpyReplica, "weight_before", weight_before)
        score = NumpyReplica._score
        def scored(self, micro, rng):
            value, backward, weight, metrics, outputs = score(self, micro, rng)
            return value, backward, weight or 1e-300, metrics, outputs
        monkeypatch.setattr(NumpyReplica, "_score", scored)
        """,
    ),
    "each program trains a copy of the model": (
        "ConcurrencySuite",
        "test_two_programs_play_against_each_other_on_one_model[1]",
        """
        original = NumpyReplica.__init__
        def initialise(self, job):
            original(self, replace(job, model=copy.deepcopy(job.model)))
        monkeypatch.setattr(NumpyReplica, "__init__", initialise)
        """,
    ),
    "a mean over elements is taken for one over rows": (
        "LossSuite",
        "test_l1_2_each_loss_of_ui_losses_equals_the_oracle_in_every_world[huber]",
        """
        def units(self, targets):
            return np.ones(np.shape(targets)) / np.shape(targets)[-1]
        monkeypatch.setattr(ElementLoss, "units", units)
        """,
    ),
    "what no rank used decays": (
        "UpdateLawSuite",
        "test_l1_10_what_some_micro_batches_use_is_reduced_and_the_unused_stays[2]",
        """
        original = NumpyReplica.apply
        def apply(self, *, used, **rest):
            original(self, used=[True for _ in used], **rest)
        monkeypatch.setattr(NumpyReplica, "apply", apply)
        """,
    ),
    "an objective returns its mean": (
        "UpdateDecisionSuite",
        "test_l1_11_a_penalty_weighs_the_same_however_the_update_is_split[1]",
        """
        original = NumpyReplica._objective_score
        def score(self, micro, rng):
            value, backward, weight, metrics, outputs = original(self, micro, rng)
            return value / weight, lambda scale: backward(scale / weight), 1.0, metrics, outputs
        monkeypatch.setattr(NumpyReplica, "_objective_score", score)
        """,
    ),
    "rows of the batch before are kept": (
        "DataLawSuite",
        "test_l2_1_the_model_sees_every_sample_once_an_epoch[12-4-2-1-1]",
        """
        original = NumpyReplica.forward_backward
        def forward_backward(self, micro, **rest):
            kept = getattr(self, "kept", micro.tree)
            self.kept = tuple(np.array(leaf) for leaf in micro.tree)
            original(self, replace(micro, tree=kept), **rest)
        monkeypatch.setattr(NumpyReplica, "forward_backward", forward_backward)
        """,
    ),
    "slots are handed out in float32": (
        "StateLawSuite",
        "test_l3_6_a_run_that_changes_its_world_is_the_same_to_rounding[sgd]",
        """
        original = NumpyReplica.read
        def read(self, names):
            found = original(self, names)
            for name in names:
                if "/" in name:
                    found[name] = found[name].astype(np.float32).astype(found[name].dtype)
            return found
        monkeypatch.setattr(NumpyReplica, "read", read)
        """,
    ),
    "the counter of steps begins anew": (
        "StateLawSuite",
        "test_l3_5_a_run_in_parts_equals_an_unbroken_one_bit_for_bit[adam-1]",
        """
        original = NumpyReplica.write
        def write(self, tensors):
            kept = {n: np.zeros_like(v) if n[-5:] == "/step" else v for n, v in tensors.items()}
            original(self, kept)
        monkeypatch.setattr(NumpyReplica, "write", write)
        """,
    ),
    "masks are drawn in evaluation": (
        "RandomNumbersSuite",
        "test_l6_7_evaluation_draws_nothing_and_leaves_generators_alone[1]",
        """
        def predict(self, micro, *, seed):
            return self.model.forward(micro.tree[0], np.random.default_rng(seed))[0]
        monkeypatch.setattr(NumpyReplica, "predict", predict)
        """,
    ),
    "predictions are rounded": (
        "EvaluationSuite",
        "test_l6_2_ranks_without_rows_get_the_same_results[float64]",
        """
        original = NumpyReplica.predict
        def predict(self, micro, *, seed):
            return original(self, micro, seed=seed).astype(np.float32)
        monkeypatch.setattr(NumpyReplica, "predict", predict)
        """,
    ),
    "each micro-batch of evaluation counts as one": (
        "EvaluationSuite",
        "test_l6_3_the_loss_is_divided_by_all_that_counts",
        """
        original = NumpyReplica.evaluate
        def evaluate(self, micro, metrics, *, seed):
            found = original(self, micro, metrics, seed=seed)
            return {n: (total / count, 1.0) for n, (total, count) in found.items() if count}
        monkeypatch.setattr(NumpyReplica, "evaluate", evaluate)
        """,
    ),
    "the first velocity is dampened": (
        "OptimizerSuite",
        "test_l5_2_two_updates_worked_out_by_hand[dampening]",
        """
        original = unified_ipu_numpy.step
        def step(optimizer, p, g, slots, lr):
            if getattr(optimizer, "momentum", 0.0) and not slots:
                slots["momentum_buffer"] = np.zeros_like(p)
            original(optimizer, p, g, slots, lr)
        monkeypatch.setattr(unified_ipu_numpy, "step", step)
        """,
    ),
    "the rate is part of the velocity": (
        "ScheduleSuite",
        "test_l1_8_the_rate_stays_outside_the_velocity",
        """
        original = unified_ipu_numpy.step
        def step(optimizer, p, g, slots, lr):
            original(optimizer, p, g * lr, slots, 1.0)
        monkeypatch.setattr(unified_ipu_numpy, "step", step)
        """,
    ),
    "an overflow is hidden from the decision": (
        "PrecisionSuite",
        "test_l1_7_an_overflow_on_one_rank_skips_the_update_on_all",
        """
        original = NumpyReplica.finish_update
        def finish_update(self):
            for view in (self._views or {}).values():
                view[~np.isfinite(view)] = 0.0
            return original(self)
        monkeypatch.setattr(NumpyReplica, "finish_update", finish_update)
        """,
    ),
    "dS is scaled by another number than was asked": (
        "PrecisionSuite",
        "test_l1_8_a_loss_scale_does_not_show[2]",
        """
        original = NumpyReplica.forward_backward
        def forward_backward(self, micro, *, scale, seed, ready):
            scale = scale * 1.0001 if scale > 1.0 else scale
            original(self, micro, scale=scale, seed=seed, ready=ready)
        monkeypatch.setattr(NumpyReplica, "forward_backward", forward_backward)
        """,
    ),
    "a precision is taken for granted": (
        "PrecisionSuite",
        "test_l5_5_every_setting_is_lowered_or_refused_by_name[precision.compute-bfloat16]",
        """
        def lower(self, plan, target):
            return Lowering("numpy", target)
        monkeypatch.setattr(NumpyAdapter, "lower", lower)
        """,
    ),
}

HEAD = """\

import copy
import sys
from dataclasses import replace

import numpy as np
import pytest

sys.path[:0] = {path!r}

import unified_ipu_numpy
from mutants import MUTANTS
from unified_ipu_numpy_conformance import NumpySubject
from unified_ipu import testing
from unified_ipu.adapter import Lowering
from unified_ipu_numpy import NumpyAdapter, NumpyReplica
from unified_ipu_numpy_models import ElementLoss


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


# How a killer may fail: a fault that no longer fits the code it patches ends in a TypeError.
NOTICED = ("assert", "AssertionError", "NumericsError", "DataError")

MUTATED = """

class TestMutant{number}(Fixtures, testing.{suite}):
    @pytest.fixture(autouse=True)
    def mutant(self):
        with MUTANTS[{number}].patch():
            yield
"""


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> Set[str]:
    """Tests that noticed their fault, as ``Class::test``, in one inner run of all killers."""
    folder = tmp_path_factory.mktemp("faults")
    search = [HERE / "unified_ipu_numpy_sample", HERE, HERE.parent]
    text = HEAD.format(path=[str(path) for path in search])
    chosen = []
    for number, (suite, killer, fault) in enumerate(FAULTS.values()):
        text += CLASS.format(number=number, suite=suite, fault=fault)
        chosen.append(f"test_faults.py::Test{number}::{killer}")
    for number, mutant in enumerate(MUTANTS):
        suite, killer = mutant.conformance
        text += MUTATED.format(number=number, suite=suite)
        chosen.append(f"test_faults.py::TestMutant{number}::{killer}")
    (folder / "conftest.py").write_text('pytest_plugins = ["unified_ipu.testing"]\n')
    (folder / "test_faults.py").write_text(text)
    (folder / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "--junitxml=report.xml", *chosen],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    found = set()
    for case in ET.parse(folder / "report.xml").iter("testcase"):  # noqa: S314  # ours
        assert case.find("error") is None, ET.tostring(case).decode()
        failure = case.find("failure")
        message = "" if failure is None else failure.attrib["message"]
        if any(word in message for word in NOTICED):
            found.add(f"{case.attrib['classname'].rpartition('.')[2]}::{case.attrib['name']}")
    return found


@pytest.mark.parametrize("fault", FAULTS)
def test_a_suite_fails_on_the_fault_planted_for_it(failed: Set[str], fault: str) -> None:
    number = list(FAULTS).index(fault)
    assert f"Test{number}::{FAULTS[fault][1]}" in failed


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_a_clause_of_the_kit_kills_each_mutant_of_the_engine(
    failed: Set[str], mutant: Mutant
) -> None:
    _, killer = mutant.conformance
    assert clauses_of(killer) != (NO_CLAUSE,)
    assert f"TestMutant{MUTANTS.index(mutant)}::{killer}" in failed


def test_every_suite_has_a_fault() -> None:
    suites = {name for name in testing.__all__ if name.endswith("Suite")} - {"AdapterSuite"}
    assert {suite for suite, *_ in FAULTS.values()} == suites
