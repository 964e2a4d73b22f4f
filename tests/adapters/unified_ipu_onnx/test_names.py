"""ONNX names survive being names of torch parameters."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, strategies

from unified_ipu_onnx.names import escape, unescape


@pytest.mark.parametrize("name", ["w", "layer/w:0", "onnx::MatMul_10", "-1", "gewicht_ü", " "])
def test_a_name_that_torch_takes_stays(name):
    assert escape(name) == name


@pytest.mark.parametrize(
    ("name", "escaped"),
    [("", "%"), ("a.b", "a%2Eb"), ("100%", "100%25"), ("%", "%25"), ("%2E", "%252E")],
)
def test_what_torch_refuses_is_written_in_percent(name, escaped):
    assert escape(name) == escaped
    assert unescape(escaped) == name


def test_a_name_that_the_module_has_already_is_changed():
    assert escape("training", {"training"}) == "%74raining"
    assert unescape("%74raining") == "training"


@given(strategies.lists(strategies.text(max_size=6), unique=True, max_size=6))
def test_any_names_can_be_held_side_by_side_and_come_back(names):
    module = torch.nn.Module()
    for name in names:
        module.register_parameter(escape(name, dir(module)), torch.nn.Parameter(torch.zeros(1)))
    assert [unescape(name) for name, _ in module.named_parameters()] == names
