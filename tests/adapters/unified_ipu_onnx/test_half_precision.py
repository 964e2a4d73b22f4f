"""Graphs in float32 that run in half precision, trained and evaluated by torch under autocast."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

import unified_ipu as ui
from tests.adapters.unified_ipu_onnx import graphs

WEIGHT = {"bfloat16": 1.0 + 2.0**-9, "float16": 1.0 + 2.0**-12}
"""A number that forward sees as 1."""


def session(compute, **changes):
    plan = ui.Plan().replace({"precision.compute": compute, **changes})
    return ui.Session(plan, argv=[])


def column(*values):
    return np.array(values, np.float32).reshape(-1, 1)


@pytest.mark.parametrize("compute", WEIGHT)
def test_forward_and_evaluation_round_and_the_initializer_does_not(compute):
    weight = WEIGHT[compute]
    proto = graphs.linear([[weight]])
    with session(compute) as opened:
        program = opened.compile(
            proto,
            loss=ui.losses.mean_squared_error(),
            optimizer=ui.optim.SGD(lr=2.0**-16),
        )
        loader = opened.loader((column(1, 1), column(0, 0)), train=False)
        assert program.evaluate(loader)["loss"] == 1.0
        found = program.predict(loader)
        assert (found.dtype, found.tolist()) == (np.float32, [[1.0], [1.0]])
        assert program.step((column(1, 1), column(0, 0))).loss == 1.0
    assert graphs.held(proto)["w"].dtype == np.float32
    assert graphs.held(proto)["w"].item() == np.float32(weight - 2.0**-15)


@pytest.mark.parametrize("compute", WEIGHT)
def test_a_graph_with_its_own_loss_trains(compute):
    """A small network of usual operators, its loss among them."""
    random = np.random.default_rng(0)
    values = {
        "w1": random.normal(size=(4, 1, 3, 3)) * 0.3,
        "gain": np.ones(4),
        "shift": np.zeros(4),
        "mean": np.zeros(4),
        "variance": np.ones(4),
        "w2": random.normal(size=(36, 3)) * 0.2,
        "b2": np.zeros(3),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["c"]),
        helper.make_node(
            "BatchNormalization", ["c", "gain", "shift", "mean", "variance"], ["n"], momentum=0.9
        ),
        helper.make_node("Relu", ["n"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Gemm", ["f", "w2", "b2"], ["logits"]),
        helper.make_node("SoftmaxCrossEntropyLoss", ["logits", "labels"], ["loss"]),
    ]
    inputs = [graphs.value("x", ["rows", 1, 8, 8]), graphs.value("labels", ["rows"], "int64")]
    outputs = [graphs.value("logits", ["rows", 3]), graphs.value("loss", [])]
    held = {name: value.astype(np.float32) for name, value in values.items()}
    images = random.normal(size=(12, 1, 8, 8)).astype(np.float32)
    labels = np.arange(12) % 3
    curves = {}
    for kind in ("float32", compute):
        proto = graphs.model(nodes, inputs, outputs, held)
        scale = "none" if kind == "float32" else "dynamic"
        with session(kind, **{"precision.loss_scale": scale}) as opened:
            program = opened.compile(proto, loss="loss", optimizer=ui.optim.SGD(lr=0.2))
            records = [program.step((images, labels)) for _ in range(12)]
            assert {record.skipped for record in records} == {0}
            curves[kind] = [record.loss for record in records]
            logits = program.predict(opened.loader((images, labels), train=False))
        assert logits.dtype == np.float32
    assert curves["float32"][-1] < 0.7 * curves["float32"][0]
    np.testing.assert_allclose(curves[compute], curves["float32"], rtol=0.03)
    assert curves[compute] != curves["float32"]
