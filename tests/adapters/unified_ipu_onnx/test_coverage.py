"""The suites inside the onnx package, which nobody here wrote: right, or refused by name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Dict

import onnx_coverage
import pytest
from onnx_coverage import Case, Outcome, Tally

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

Results = Dict[str, Tally]


@pytest.fixture(scope="module")
def results() -> Results:
    return onnx_coverage.results()


@pytest.mark.parametrize(
    ("suite", "size"),
    [("pytorch-converted", 82), ("pytorch-operator", 35), ("light", 9), ("losses", 104)],
)
def test_every_case_is_native_and_right(results: Results, suite: str, size: int) -> None:
    found = results[suite]
    assert (found.count(Outcome.NATIVE), len(found.outcomes)) == (size, size)


def test_nothing_is_wrong(results: Results) -> None:
    wrong = {
        case: found.notes[case] for found in results.values() for case in found.named(Outcome.WRONG)
    }
    assert wrong == {}
    assert onnx_coverage.misses(results) == []


def test_most_cases_with_floats_in_and_out_are_native(results: Results) -> None:
    found = results["nodes, floats in and out"]
    total, native = len(found.outcomes), found.count(Outcome.NATIVE)
    assert total > 1300
    assert native >= 0.945 * total
    assert native + found.count(Outcome.REFERENCE) >= 0.955 * total
    # Masks of dropout and Bernoulli numbers: their generator is left open.
    assert found.count(Outcome.RANDOM) == 10


def test_what_is_refused_is_named_with_its_node_or_its_type(results: Results) -> None:
    found = results["nodes, all"]
    refused = found.named(Outcome.REFUSED)
    assert refused
    silent = [
        case
        for case in refused
        if not any(
            words in found.notes[case] for words in ("(node '", "tensors of element type", "is no")
        )
    ]
    assert silent == []


def test_a_case_with_another_expected_output_is_wrong() -> None:
    case = _case("test_gemm_default_zero_bias")
    ((inputs, (expected,)),) = case.data
    assert onnx_coverage.run(case) == (Outcome.NATIVE, "")
    shifted = replace(case, data=((inputs, (expected + 0.01,)),))
    outcome, note = onnx_coverage.run(shifted)
    assert outcome is Outcome.WRONG
    assert note == "differs by 0.01"
    cut = replace(case, data=((inputs, (expected[:1],)),))
    assert onnx_coverage.run(cut)[0] is Outcome.WRONG
    retyped = replace(case, data=((inputs, (expected.astype("float64"),)),))
    assert onnx_coverage.run(retyped)[0] is Outcome.WRONG


def test_the_command_fails_when_a_case_is_wrong(results: Results) -> None:
    spoilt = dict(results)
    light = results["light"]
    spoilt["light"] = Tally(
        {**light.outcomes, "light_vgg19": Outcome.WRONG}, {"light_vgg19": "differs by 1"}
    )
    assert onnx_coverage.misses(spoilt) == [
        "light: light_vgg19: differs by 1",
        "light: 8 of 9 native; all must be",
    ]


def test_the_command_fails_below_its_bars(results: Results) -> None:
    spoilt = dict(results)
    name = onnx_coverage.FLOATS_IN_AND_OUT
    outcomes: Dict[str, Any] = dict(results[name].outcomes)
    for case in list(outcomes)[: len(outcomes) // 5]:
        outcomes[case] = Outcome.REFUSED
    spoilt[name] = Tally(outcomes)
    assert len(onnx_coverage.misses(spoilt)) == 1


def _case(name: str) -> Case:
    return next(case for case in onnx_coverage.nodes() if case.name == name)
