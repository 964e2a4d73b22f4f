from __future__ import annotations

import operator
from typing import Any, List

import pytest

from unified_ipu.device import CallShape, Outputs, OutputSelection
from unified_ipu.errors import ConfigError


def run(selection: OutputSelection) -> List[Any]:
    """Each micro-batch returns the number of its slice."""
    outputs = Outputs(selection, operator.add)
    for iteration in range(selection.shape.iterations):
        for position in selection.shape.update(iteration):
            outputs.take(position, [position.slice])
    return outputs.blocks()[0]


@pytest.mark.case("O-I3")
@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("all", [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]),
        ("final", [9]),
        ("every_n", [4, 9]),
        ("sum", [45]),
    ],
)
def test_ten_iterations_return_what_their_mode_says(mode: str, expected: List[int]) -> None:
    assert run(OutputSelection(CallShape(iterations=10), mode, period=5)) == expected


@pytest.mark.parametrize(
    ("mode", "axes", "expected"),
    [
        ("all", (2, 2, 3), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]),
        ("every_n", (1, 2, 3), [6, 7, 8, 9, 10, 11]),
        ("final", (3,), [9, 10, 11]),
        ("sum", (3,), [18, 22, 26]),
    ],
)
def test_blocks_lie_iteration_then_step_then_replica(
    mode: str, axes: tuple, expected: List[int]
) -> None:
    selection = OutputSelection(CallShape(2, 2, 3), mode, period=2)
    assert selection.axes == axes
    assert selection.blocks == len(expected)
    assert run(selection) == expected


def test_anchor_axes_are_those_of_the_published_example() -> None:
    # batches per step 8, accumulation 4, replicas 2: All (8, 4, 2), EveryN(4) (2, 4, 2), Final (2)
    shape = CallShape(8, 4, 2)
    assert OutputSelection(shape, "all").axes == (8, 4, 2)
    assert OutputSelection(shape, "every_n", 4).axes == (2, 4, 2)
    assert OutputSelection(shape, "final").axes == (2,)


def test_a_period_that_does_not_divide_the_iterations_is_refused() -> None:
    with pytest.raises(ConfigError, match="every 3 iterations do not divide 10"):
        OutputSelection(CallShape(iterations=10), "every_n", 3)


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(ConfigError, match="'last'"):
        OutputSelection(CallShape(), "last")


def test_a_model_that_returns_another_number_of_values_later_is_refused() -> None:
    outputs = Outputs(OutputSelection(CallShape(iterations=2)), operator.add)
    first, second = (next(iter(CallShape(iterations=2).update(d))) for d in range(2))
    outputs.take(first, [1, 2])
    with pytest.raises(ConfigError, match="returned 1 values for a micro-batch and 2 before"):
        outputs.take(second, [1])
