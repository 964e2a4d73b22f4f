"""Recurrent layers in all their variants, against onnxruntime: values and slopes."""

from __future__ import annotations

from typing import Any, Dict, List, Tuple

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper

from tests.adapters.unified_ipu_onnx.finite_differences import runtime_of, slope
from tests.adapters.unified_ipu_onnx.graphs import model, value
from unified_ipu.errors import ConfigError
from unified_ipu_onnx.module import GraphModule

STEPS, BATCH, INPUT, HIDDEN = 4, 3, 2, 5
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
OUTPUTS = {"RNN": 2, "GRU": 2, "LSTM": 3}


def bent(name: str, *numbers: float) -> Dict[str, Any]:
    """Settings of a layer of one activation."""
    names = ("activation_alpha", "activation_beta")
    return {"activations": [name], **{key: [n] for key, n in zip(names, numbers)}}


VARIANTS: List[Tuple[str, str, Dict[str, Any]]] = [
    # Those that torch's own kernels compute.
    ("RNN", "bh", {}),
    ("RNN", "bh", {"activations": ["Relu"]}),
    ("GRU", "bh", {"linear_before_reset": 1}),
    ("GRU", "", {"linear_before_reset": 1}),
    ("LSTM", "bhc", {}),
    ("LSTM", "", {}),
    # Those that run step by step.
    ("RNN", "bhl", {}),
    ("RNN", "bh", {"clip": 0.3}),
    ("RNN", "b", bent("ScaledTanh", 0.7, 0.9)),
    ("RNN", "b", bent("LeakyRelu", 0.3)),
    ("RNN", "b", bent("HardSigmoid", 0.3, 0.4)),
    ("RNN", "b", bent("Softsign")),
    ("RNN", "b", bent("Softplus")),
    ("RNN", "b", bent("Elu", 0.8)),
    ("GRU", "bh", {}),
    ("GRU", "bhl", {}),
    ("GRU", "bhl", {"linear_before_reset": 1}),
    ("GRU", "bh", {"clip": 0.4}),
    ("GRU", "bh", {"activations": ["HardSigmoid", "Softsign"], "activation_alpha": [0.3]}),
    ("LSTM", "bhcl", {}),
    ("LSTM", "bhcp", {}),
    ("LSTM", "bhclp", {}),
    ("LSTM", "bhc", {"clip": 0.4}),
    ("LSTM", "bhc", {"input_forget": 1}),
    ("LSTM", "bhc", {"activations": ["Sigmoid", "Tanh", "Relu"]}),
]  # fmt: skip


def layer(
    kind: str, given: str, settings: Dict[str, Any], direction: str
) -> Tuple[Any, Dict[str, Any]]:
    """A model of one layer and its inputs; letters say which optional inputs it has."""
    directions = 2 if direction == "bidirectional" else 1
    rng = np.random.default_rng(3)
    rows = GATES[kind] * HIDDEN
    shapes = {
        "x": (STEPS, BATCH, INPUT),
        "w": (directions, rows, INPUT),
        "r": (directions, rows, HIDDEN),
        "b": (directions, 2 * rows),
        "l": (BATCH,),
        "h": (directions, BATCH, HIDDEN),
        "c": (directions, BATCH, HIDDEN),
        "p": (directions, 3 * HIDDEN),
    }
    feeds: Dict[str, Any] = {
        name: (0.6 * rng.standard_normal(shape)).astype(np.float32)
        for name, shape in shapes.items()
        if name in f"xwr{given}"
    }
    if "l" in feeds:
        feeds["l"] = np.array([4, 1, 3], np.int32)
    settings = dict(settings)
    for name in ("activations", "activation_alpha", "activation_beta"):
        if name in settings:
            settings[name] = settings[name] * directions
    names = [name if name in feeds else "" for name in shapes]
    while not names[-1]:
        names.pop()
    outputs = ["y", "last_h", "last_c"][: OUTPUTS[kind]]
    node = helper.make_node(
        kind, names, outputs, name="layer", hidden_size=HIDDEN, direction=direction, **settings
    )
    inputs = [value(name, list(array.shape)) for name, array in feeds.items() if name != "l"]
    if "l" in feeds:
        inputs.append(helper.make_tensor_value_info("l", TensorProto.INT32, [BATCH]))
    return model([node], inputs, [value(name, None) for name in outputs], {}, opset=14), feeds


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(("kind", "given", "settings"), VARIANTS)
def test_a_layer_gives_the_values_and_slopes_of_onnxruntime(
    kind: str, given: str, settings: Dict[str, Any], direction: str
) -> None:
    proto, feeds = layer(kind, given, settings, direction)
    engine = runtime_of(proto)
    module = GraphModule.from_model(proto)
    inputs = {name: torch.from_numpy(array.copy()) for name, array in feeds.items()}
    trained = [name for name in feeds if name != "l"]
    for name in trained:
        inputs[name].requires_grad_()
    ours = list(module(**inputs).values())
    theirs = engine(feeds)
    for own, other in zip(ours, theirs):
        np.testing.assert_allclose(own.detach().numpy(), other, rtol=1e-5, atol=1e-6)
    if "clip" in settings or "HardSigmoid" in settings.get("activations", ()):
        # Their kinks lie closer than a step in single precision is long; the values are right, so
        # their own slopes in double precision are the truth.
        doubles = [inputs[name].detach().double() for name in trained]
        assert torch.autograd.gradcheck(
            lambda *given: tuple(module(**{**inputs, **dict(zip(trained, given))}).values()),
            [tensor.requires_grad_() for tensor in doubles],
            fast_mode=True,
        )
        return
    rng = np.random.default_rng(4)
    cotangents = [rng.standard_normal(output.shape) for output in theirs]
    total = sum((o.double() * torch.from_numpy(c)).sum() for o, c in zip(ours, cotangents))
    gradients = torch.autograd.grad(total, [inputs[name] for name in trained])
    for name, gradient in zip(trained, gradients):
        direct = rng.choice([-1.0, 1.0], feeds[name].shape)
        expected = slope(engine, feeds, {name: direct}, cotangents, step=2e-3)
        found = float((gradient.double().numpy() * direct).sum())
        assert found == pytest.approx(expected, rel=3e-3, abs=3e-3), name


def test_batches_may_come_first() -> None:
    proto, feeds = layer("LSTM", "bhc", {}, "bidirectional")
    turned, _ = layer("LSTM", "bhc", {"layout": 1}, "bidirectional")
    first = {name: torch.from_numpy(array) for name, array in feeds.items()}
    second = dict(first)
    for name in "xhc":
        second[name] = first[name].transpose(0, 1)
    y, h, c = GraphModule.from_model(proto)(**first).values()
    y_turned, h_turned, c_turned = GraphModule.from_model(turned)(**second).values()
    assert torch.equal(y_turned, y.permute(2, 0, 1, 3))
    assert torch.equal(h_turned, h.transpose(0, 1))
    assert torch.equal(c_turned, c.transpose(0, 1))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"direction": "sideways"}, "direction 'sideways' is none of forward"),
        ({"activations": ["Tanh", "Relu"]}, "it lists 2 activations; expected 1"),
        ({"activations": ["Sine"]}, "activation 'Sine' is none of relu, tanh"),
    ],
)
def test_settings_that_do_not_exist_are_refused(settings: Dict[str, Any], message: str) -> None:
    direction = settings.pop("direction", "forward")
    proto, _ = layer("RNN", "", settings, direction)
    with pytest.raises(ConfigError, match=message):
        GraphModule.from_model(proto)
