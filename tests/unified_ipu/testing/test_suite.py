"""The parts of the kit that suites stand on."""

from __future__ import annotations

import numpy as np
import pytest

from unified_ipu.testing import AdapterSuite, Model
from unified_ipu.testing.ranks import Raised, outcome_of
from unified_ipu.testing.suite import all_raise, relative_error


def test_names_and_layout_go_to_the_framework_and_back():
    model = Model(None, {"weight": "layer.w", "bias": "layer.b"}, frozenset({"weight"}))
    weight, bias = np.arange(6.0).reshape(2, 3), np.zeros(3)
    native = model.to_native({"weight": weight, "bias": bias})
    assert native["layer.w"].tolist() == weight.T.tolist()
    back = model.canonical(native)
    assert back["weight"].tolist() == weight.tolist()
    native["layer.b"][0] = 7.0
    assert bias[0] == back["bias"][0] == 0.0, "both ways copy"


def test_an_outcome_is_the_result_or_the_error():
    assert outcome_of(lambda: 3) == 3
    raised = outcome_of(lambda: {"other": 1}["key"])
    assert raised.kinds[:2] == ["KeyError", "LookupError"]
    assert "key" in raised.message


class Ranks:
    def __init__(self, *results):
        self._results = list(results)

    def run(self, scenario, size=1, **kwargs):
        return self._results


def test_all_ranks_must_raise_the_kind_that_is_expected():
    good, other = Raised(["DataError", "Exception"], "a"), Raised(["KeyError", "Exception"], "b")
    assert all_raise(Ranks(good, good), print, 2, "DataError") == ["a", "a"]
    with pytest.raises(AssertionError, match="rank 1: KeyError: b"):
        all_raise(Ranks(good, other), print, 2, "DataError")
    with pytest.raises(AssertionError, match="rank 0 raised nothing"):
        all_raise(Ranks(None, good), print, 2, "DataError")


def test_the_relative_error_is_of_all_arrays_as_one_vector():
    expected = {"a": np.array([3.0, 0.0]), "b": np.array([4.0])}
    got = {"a": np.array([3.0, 0.3]), "b": np.array([4.4])}
    assert relative_error(got, expected) == pytest.approx(0.1)
    assert relative_error({"a": np.zeros(2)}, {"a": np.zeros(2)}) == 0.0


SUITE = """
import pytest
from unified_ipu import testing
from unified_ipu.adapter import Capability, Support
from unified_ipu.testing import suite
from unified_ipu.testing.suite import requires


class Adapter:
    support = {Capability.RANDOM_LAYERS: Support.FALLBACK, Capability.BUFFERS: Support.NOT_WRITTEN}


suite.load_adapter = lambda name: Adapter()


class Subject:
    adapter = "mine"


class TestSkips(testing.AdapterSuite):
    @pytest.fixture
    def subject(self):
        return Subject()

    @requires(Capability.BUFFERS)
    def test_not_declared(self):
        raise AssertionError

    @requires(Capability.RANDOM_LAYERS, Capability.ONNX_EXPORT)
    def test_left_out(self):
        raise AssertionError

    @requires(Capability.RANDOM_LAYERS)
    def test_declared(self):
        pass


class TestForgotten(testing.AdapterSuite):
    def test_without_a_subject(self, ranks):
        pass
"""


def test_skips_come_from_what_is_declared_and_a_forgotten_fixture_is_named(pytester):
    pytester.makeconftest('pytest_plugins = ["unified_ipu.testing"]')
    pytester.makepyfile(SUITE)
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-rs")
    result.assert_outcomes(passed=1, skipped=2, errors=1)
    result.stdout.fnmatch_lines(["*mine declares buffers as not_written*"])
    result.stdout.fnmatch_lines(["*mine declares onnx_export as not_written*"])
    result.stdout.fnmatch_lines(["*override the fixture `subject`*"])


def test_a_suite_is_not_collected_where_it_is_imported():
    assert not AdapterSuite.__name__.startswith("Test")
