"""Norms, and what batch statistics leave behind."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from onnx import TensorProto

from tests.adapters.unified_ipu_onnx.written_graphs import (
    checked,
    gradients,
    held,
    info,
    model,
    node,
)
from unified_ipu.errors import CapabilityError
from unified_ipu_onnx.module import GraphModule

DOUBLE = TensorProto.DOUBLE
RNG = np.random.default_rng(0)


def normalised(x, axes, epsilon=1e-5):
    mean = x.mean(axes, keepdims=True)
    return (x - mean) / np.sqrt(x.var(axes, keepdims=True) + epsilon)


def batch_norm(outputs=("y",), *, opset=15, momentum=0.75, **attributes):
    state = {"mean": np.array([1.0, -1.0]), "var": np.array([2.0, 3.0])}
    weights = {"scale": np.array([2.0, 0.5]), "bias": np.array([0.5, 1.0])}
    made = model(
        [node("BatchNormalization", ["x", "scale", "bias", "mean", "var"], list(outputs),
              momentum=momentum, **attributes)],
        [info("x", ["N", 2, 3], DOUBLE)],
        [info(name, None, DOUBLE) for name in outputs if name],
        held(**weights, **state), opset=opset,
    )  # fmt: skip
    return GraphModule.from_model(made)


def column(values):
    return np.array(values).reshape(2, 1)


def test_a_trained_batch_norm_takes_the_statistics_of_the_batch_and_moves_its_own():
    module, x = batch_norm().train(), RNG.standard_normal((4, 2, 3))
    y = module(torch.from_numpy(x)).detach().numpy()
    assert np.allclose(y, normalised(x, (0, 2)) * column([2, 0.5]) + column([0.5, 1]), atol=1e-12)
    mean = 0.75 * np.array([1.0, -1.0]) + 0.25 * x.mean((0, 2))
    var = 0.75 * np.array([2.0, 3.0]) + 0.25 * x.var((0, 2))
    assert np.allclose(module.get_buffer("mean").numpy(), mean, rtol=1e-12)
    assert np.allclose(module.get_buffer("var").numpy(), var, rtol=1e-11)


def test_an_evaluated_batch_norm_takes_its_own_statistics_and_keeps_them():
    module, x = batch_norm(training_mode=1).eval(), RNG.standard_normal((4, 2, 3))
    y = module(torch.from_numpy(x)).detach().numpy()
    scaled = (x - column([1, -1])) / np.sqrt(column([2, 3]) + 1e-5)
    assert np.allclose(y, scaled * column([2, 0.5]) + column([0.5, 1]), atol=1e-12)
    assert module.get_buffer("mean").tolist() == [1.0, -1.0]


def test_the_gradient_of_a_trained_batch_norm_is_the_difference_quotient():
    module, x = batch_norm().train(), torch.from_numpy(RNG.standard_normal((4, 2, 3)))
    pull = torch.from_numpy(RNG.standard_normal((4, 2, 3)))
    (module(x) * pull).sum().backward()
    found = gradients(module)
    for name in ("scale", "bias"):
        parameter = module.get_parameter(name)
        for index in range(2):
            sides = []
            for step in (1e-6, -1e-6):
                with torch.no_grad():
                    parameter[index] += step
                    sides.append(float((module(x) * pull).sum()))
                    parameter[index] -= step
            assert found[name][index] == pytest.approx((sides[0] - sides[1]) / 2e-6, rel=1e-6)


def test_statistics_that_are_asked_for_are_those_that_are_kept():
    module, x = batch_norm(("y", "new_mean", "new_var"), training_mode=1).train(), None
    x = torch.from_numpy(RNG.standard_normal((4, 2, 3)))
    found = module(x)
    assert torch.equal(found["new_mean"], module.get_buffer("mean"))
    assert torch.equal(found["new_var"], module.get_buffer("var"))


def test_old_batch_norms_give_the_statistics_of_the_batch_too():
    module = batch_norm(("y", "m", "v", "saved_mean", "saved_var"), opset=9).train()
    x = RNG.standard_normal((4, 2, 3))
    found = module(torch.from_numpy(x))
    assert np.allclose(found["saved_mean"].numpy(), x.mean((0, 2)))
    assert np.allclose(found["saved_var"].numpy(), x.var((0, 2)))


def test_a_batch_without_spread_leaves_a_variance_that_is_not_negative():
    module = batch_norm(momentum=0.0).train()
    module(torch.full((4, 2, 3), 7.0, dtype=torch.float64))
    assert module.get_buffer("var").min() >= 0.0
    assert module.get_buffer("var").max() < 1e-15


def test_one_element_a_channel_is_allowed_as_the_standard_allows_it():
    module = batch_norm(momentum=0.0).train()
    one = torch.full((1, 2, 1), 7.0, dtype=torch.float64)
    assert module(one).flatten().tolist() == [0.5, 1.0]


def test_statistics_for_every_element_are_refused():
    with pytest.raises(CapabilityError, match=r"BatchNormalization \(node 'y'.*: spatial = 0"):
        batch_norm(opset=7, spatial=0)


def test_statistics_that_are_computed_or_fed_are_not_written_to():
    nodes = [node("BatchNormalization", ["x", "s", "b", "m", "v"], ["y"], momentum=0.5)]
    given = model(
        nodes, [info("x", [2, 2]), info("m", [2]), info("v", [2])], ["y"],
        held(s=[1.0, 1.0], b=[0.0, 0.0]),
    )  # fmt: skip
    module = GraphModule.from_model(checked(given)).train()
    mean = torch.zeros(2)
    module(torch.ones(2, 2), mean, torch.ones(2))
    assert mean.tolist() == [0.0, 0.0]
    assert module.running_statistics == ()


def run(kind, x, weights, *, opset=21, outputs=("y",), **attributes):
    made = model(
        [node(kind, ["x", *weights], list(outputs), **attributes)],
        [info("x", list(x.shape), DOUBLE)], [info(name, None, DOUBLE) for name in outputs],
        held(**{name: np.asarray(value, np.float64) for name, value in weights.items()}),
        opset=opset,
    )  # fmt: skip
    with torch.no_grad():
        found = GraphModule.from_model(made).train()(torch.from_numpy(x))
    return {k: v.numpy() for k, v in found.items()} if len(outputs) > 1 else found.numpy()


def test_instances_and_groups():
    x = RNG.standard_normal((2, 4, 3, 2))
    weights = {"s": [1.0, 2.0, 3.0, 4.0], "b": [0.0, 1.0, 0.0, -1.0]}
    wide = {k: np.array(v).reshape(1, 4, 1, 1) for k, v in weights.items()}
    plain = normalised(x, (2, 3)) * wide["s"] + wide["b"]
    assert np.allclose(run("InstanceNormalization", x, weights), plain)
    grouped = normalised(x.reshape(2, 2, 12), 2).reshape(x.shape)
    found = run("GroupNormalization", x, weights, num_groups=2)
    assert np.allclose(found, grouped * wide["s"] + wide["b"])
    # In operator set 18 there is one scale a group.
    found = run("GroupNormalization", x, {"s": [1.0, 3.0], "b": [0.0, 1.0]}, opset=18, num_groups=2)
    wide = {"s": np.array([1, 1, 3, 3.0]), "b": np.array([0, 0, 1, 1.0])}
    assert np.allclose(found, grouped * wide["s"].reshape(4, 1, 1) + wide["b"].reshape(4, 1, 1))


@pytest.mark.parametrize("axis", [-1, 1])
@pytest.mark.parametrize("wants", [False, True])
def test_layers(axis, wants):
    x = RNG.standard_normal((2, 3, 4))
    axes = tuple(range(axis % 3, 3))
    weights = {"s": RNG.standard_normal(x.shape[axis:]), "b": RNG.standard_normal(x.shape[axis:])}
    outputs = ("y", "m", "i") if wants else ("y",)
    found = run("LayerNormalization", x, weights, axis=axis, outputs=outputs, stash_type=11)
    found = found if wants else {"y": found}
    assert np.allclose(found["y"], normalised(x, axes) * weights["s"] + weights["b"])
    if wants:
        assert np.allclose(found["m"], x.mean(axes, keepdims=True))
        assert np.allclose(found["i"], 1 / np.sqrt(x.var(axes, keepdims=True) + 1e-5))


def test_layers_whose_scale_is_broadcast_and_root_mean_squares():
    x = RNG.standard_normal((2, 3, 4))
    found = run("LayerNormalization", x, {"s": [[2.0], [3.0], [4.0]]}, axis=1)
    assert np.allclose(found, normalised(x, (1, 2)) * np.array([[2.0], [3.0], [4.0]]), atol=1e-6)
    found = run("RMSNormalization", x, {"s": [1.0, 2.0, 3.0, 4.0]}, opset=23)
    root = np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5)
    assert np.allclose(found, x / root * np.array([1.0, 2.0, 3.0, 4.0]), atol=1e-6)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_neighbouring_channels_reach_further_up_than_down(size):
    x = RNG.standard_normal((1, 5, 2))
    found = run("LRN", x, {}, size=size, alpha=0.5, beta=0.75, bias=2.0)
    for c in range(5):
        near = x[:, max(0, c - (size - 1) // 2) : c + size // 2 + 1] ** 2
        expected = x[:, c] / (2.0 + 0.5 / size * near.sum(1)) ** 0.75
        assert np.allclose(found[:, c], expected)


def test_a_norm_of_a_type_that_torch_lacks_is_refused_with_its_node():
    with pytest.raises(CapabilityError, match=r"LayerNormalization \(node 'y'.*FLOAT8E5M2"):
        run("LayerNormalization", np.zeros((1, 2)), {"s": [1.0, 1.0]}, stash_type=19)
