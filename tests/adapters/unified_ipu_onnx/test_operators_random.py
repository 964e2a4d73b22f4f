"""Random numbers in a graph: drawn by torch's generator, of the kind that the node says."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from onnx import TensorProto, helper

from tests.adapters.unified_ipu_onnx.graphs import model, value
from unified_ipu_onnx.module import GraphModule


def drawing(op_type: str, inputs: Any = (), given: Any = None, **settings: Any) -> GraphModule:
    node = helper.make_node(op_type, list(inputs), ["y"], name="draw", **settings)
    formal = [value(name, given) for name in inputs]
    return GraphModule.from_model(model([node], formal, [value("y", None)], {}, opset=17))


@pytest.mark.parametrize(
    ("op_type", "settings", "mean", "deviation"),
    [
        ("RandomNormal", {"mean": 2.0, "scale": 3.0}, 2.0, 3.0),
        ("RandomUniform", {"low": -1.0, "high": 5.0}, 2.0, 6.0 / 12.0**0.5),
    ],
)
def test_numbers_have_the_mean_and_deviation_of_the_node(
    op_type: str, settings: Any, mean: float, deviation: float
) -> None:
    torch.manual_seed(1)
    made = drawing(op_type, shape=[100, 1000], **settings)()
    like = drawing(f"{op_type}Like", ["x"], [100, 1000], **settings)(torch.zeros(100, 1000))
    for numbers in (made, like):
        assert numbers.shape == (100, 1000)
        # 100,000 numbers: five standard errors of the mean, and about as much for the deviation.
        assert abs(float(numbers.mean()) - mean) < 5 * deviation / 100_000**0.5
        assert abs(float(numbers.std()) / deviation - 1) < 0.02


def test_the_seed_of_the_generator_counts_and_that_of_the_file_does_not() -> None:
    module = drawing("RandomNormalLike", ["x"], [8], seed=3.0).train()
    x = torch.zeros(8)
    torch.manual_seed(1)
    first, second = module(x), module(x)
    torch.manual_seed(1)
    again = module(x)
    assert torch.equal(first, again)
    assert not torch.equal(first, second)
    assert module.drawing == ("draw",)


def test_the_type_is_that_of_the_attribute_or_of_the_input() -> None:
    halves = torch.full((4,), 0.5)
    wanted = drawing("RandomUniformLike", ["x"], [4], dtype=TensorProto.DOUBLE)
    assert wanted(halves).dtype == torch.float64
    assert drawing("RandomUniformLike", ["x"], [4])(halves).dtype == torch.float32
    assert drawing("Bernoulli", ["x"], [4], dtype=TensorProto.BOOL)(halves).dtype == torch.bool


def test_bernoulli_follows_its_probabilities() -> None:
    torch.manual_seed(2)
    module = drawing("Bernoulli", ["x"], [3])
    shares = torch.tensor([0.0, 0.3, 1.0]).repeat_interleave(10_000)
    drawn = module(shares).reshape(3, -1).mean(1)
    assert drawn[0] == 0.0
    assert abs(float(drawn[1]) - 0.3) < 5 * (0.3 * 0.7 / 10_000) ** 0.5
    assert drawn[2] == 1.0


def test_multinomial_follows_its_logarithms() -> None:
    torch.manual_seed(3)
    module = drawing("Multinomial", ["x"], [1, 3], sample_size=20_000)
    drawn = module(torch.log(torch.tensor([[0.2, 0.3, 0.5]])))
    assert drawn.dtype == torch.int32
    shares = torch.bincount(drawn.reshape(-1).long(), minlength=3) / 20_000
    torch.testing.assert_close(shares, torch.tensor([0.2, 0.3, 0.5]), rtol=0, atol=0.018)


def test_gradients_pass_by_the_noise() -> None:
    """The way of a variational encoder: mean + deviation x noise."""
    nodes = [
        helper.make_node("RandomNormalLike", ["x"], ["noise"]),
        helper.make_node("Mul", ["s", "noise"], ["spread"]),
        helper.make_node("Add", ["x", "spread"], ["y"]),
    ]
    proto = model(nodes, [value("x", [5]), value("s", [5])], [value("y", [5])], {}, opset=17)
    x, s = torch.zeros(5, requires_grad=True), torch.full((5,), 2.0, requires_grad=True)
    y = GraphModule.from_model(proto)(x, s)
    y.sum().backward()
    assert x.grad is not None
    assert s.grad is not None
    assert x.grad.tolist() == [1.0] * 5
    torch.testing.assert_close(s.grad, y.detach() / 2.0)
