"""Arguments of a call: bound like Python's own, compared with those of compilation."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch

from unified_ipu_torch.emulated import poptorch
from unified_ipu_torch.emulated.poptorch.args import ArgsParser
from unified_ipu_torch.emulated.poptorch.structures import flatten, rebuild

A, B, C = (torch.full((2,), float(value)) for value in (1, 2, 3))


class Pair(NamedTuple):
    first: Any
    second: Any


class Box:
    """A container of a user's own."""

    def __init__(self, content):
        self.content = content


class BoxParser(poptorch.ICustomArgParser):
    def yieldTensors(self, struct):  # noqa: N802
        yield struct.content

    def reconstruct(self, original_structure, tensor_iterator):
        return Box(next(tensor_iterator))


@pytest.fixture
def boxes():
    poptorch.registerCustomArgParser(Box, BoxParser())
    yield
    poptorch.registerCustomArgParser(Box, None)


def bind(function, *args, **kwargs):
    return ArgsParser(function)(args, kwargs)


def test_arguments_are_put_in_the_order_of_the_signature():
    def forward(x, y, scale=2.0):
        return x, y, scale

    found = bind(forward, A, y=B)
    assert [found.args[0] is A, found.args[1] is B, found.args[2]] == [True, True, 2.0]
    assert found.arg_names == ["x", "y", "scale"]


def test_variadic_arguments_keep_their_names():
    def forward(x, *rest, y, **named):
        return x, rest, y, named

    found = bind(forward, A, B, C, y=A, z=B)
    assert found.arg_names == ["x", "*rest[0]", "*rest[1]"]
    assert sorted(found.kwargs) == ["y", "z"]


@pytest.mark.parametrize(
    ("args", "kwargs", "kind", "words"),
    [
        ((), {"y": A}, poptorch.Error, "Mandatory parameter x missing"),
        ((A, B, C), {}, AssertionError, "Too many arguments provided"),
        ((A,), {"z": B}, AssertionError, "z is not a valid parameter"),
        ((A,), {"x": B}, AssertionError, "x was passed more than once"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_runs(args, kwargs, kind, words):
    def forward(x, y=None):
        return x, y

    with pytest.raises(kind, match=words):
        bind(forward, *args, **kwargs)


def test_modules_and_builtins_are_understood():
    assert bind(torch.nn.Linear(2, 2), A).arg_names == ["input"]
    assert bind(torch.add, A, B).arg_names == ["*args[0]", "*args[1]"]
    with pytest.raises(TypeError, match="Module or a callable"):
        ArgsParser(3)


def test_strided_tensors_are_made_contiguous():
    strided = torch.arange(6.0).reshape(2, 3).t()
    (found,) = bind(lambda x: x, strided).args
    assert found.is_contiguous()
    assert torch.equal(found, strided)


@pytest.mark.parametrize(
    ("later", "words"),
    [
        ((A.double(),), "Data type mismatch for x: expected torch.float32 but got torch.float64"),
        ((torch.ones(3),), r"Shape mismatch for x: expected torch\.Size\(\[2\]\)"),
        (((A,),), "Type mismatch for x"),
    ],
)
def test_another_tensor_than_compiled_for_is_refused_by_name(later, words):
    with pytest.raises(poptorch.Error, match=words):
        bind(lambda x: x, A).validateInputs(bind(lambda x: x, *later))


@pytest.mark.parametrize(
    ("compiled", "later", "words"),
    [
        ({"x": A}, {"z": A}, r"Unexpected arguments: z\. Missing arguments: x\."),
        ({"x": A}, {}, r"Missing arguments: x\."),
        ((A, (B, 5)), (A, (B, 3)), r"Value mismatch for x\[1\]\[1\]: expected 5 but got 3"),
        ((A, B), (A,), "Length mismatch for x: expected 2 elements but got 1"),
        (3, 4, "Value mismatch for x: expected 3 but got 4"),
    ],
)
def test_another_structure_than_compiled_for_is_refused(compiled, later, words):
    with pytest.raises(poptorch.Error, match=words):
        bind(lambda x: x, compiled).validateInputs(bind(lambda x: x, later))


def test_the_number_of_arguments_is_part_of_the_program():
    def forward(*values):
        return values

    with pytest.raises(poptorch.Error, match="expected 2 arguments but got 1"):
        bind(forward, A, B).validateInputs(bind(forward, A))


def test_structures_are_taken_apart_and_put_together(boxes):
    structure = {"a": [A, Pair(B, 7)], "b": Box(C)}
    tensors = flatten(structure)
    assert [one is two for one, two in zip(tensors, (A, B, C))] == [True] * 3
    again = rebuild(structure, [C, A, B])
    assert again["a"][1] == Pair(A, 7)
    assert again["b"].content is B


def test_the_order_of_keys_is_that_of_the_compiled_call():
    first = bind(lambda x: x, {"p": A, "q": B})
    later = bind(lambda x: x, {"q": B, "p": A})
    assert [one is two for one, two in zip(later.flatten(first), (A, B))] == [True, True]


def test_a_parser_is_of_the_sdks_class():
    with pytest.raises(poptorch.Error, match="ICustomArgParser"):
        poptorch.registerCustomArgParser(Box, object())  # type: ignore[arg-type]  # on purpose
