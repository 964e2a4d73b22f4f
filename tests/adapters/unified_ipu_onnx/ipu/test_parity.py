"""The device makes the updates of the host: samples, W, rates exactly, weights to rounding (L5)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Dict, Tuple

import numpy as np
import onnx
import pytest
import torch
from onnx import helper

from tests.adapters.unified_ipu_onnx import graphs
from tests.adapters.unified_ipu_onnx.ipu.device_runs import DEVICE, HOST, change, data, mlp, trained
from tests.unified_ipu.session.small_runs import run
from unified_ipu import losses, optim
from unified_ipu_onnx.lower import lower

pytestmark = pytest.mark.timeout(120)


def check(batch, *, within=2e-6, settings=None, **compiled):
    host = trained(HOST, batch, settings=settings or {}, **compiled)
    device = trained(DEVICE, batch, settings=settings or {}, **compiled)
    assert device["counts"] == host["counts"]
    np.testing.assert_allclose(device["losses"], host["losses"], rtol=1e-5, atol=1e-7)
    assert change(device["weights"], host["weights"]) < within
    return device


@pytest.mark.parametrize(
    ("rows", "replicas", "updates"), [(16, 1, 1), (8, 1, 1), (2, 4, 1), (2, 2, 1), (1, 2, 2)]
)
@pytest.mark.parametrize(("reduction", "after"), [("mean", 187.0), ("sum", 2992.0)])
def test_a_mean_loss_gives_187_however_the_batch_is_split(
    rows, replicas, updates, reduction, after
):
    # Under PopART's Sum a mean loss gives 187, 748, 1496 or 2992, by the split.
    numbers = np.arange(1, 17, dtype=np.float32).reshape(-1, 1)
    settings = {
        "batch__global_batch_size": 16,
        "batch__micro_batch_size": rows,
        "batch__updates_per_call": updates,
        "ipu__replicas_per_process": replicas,
        "update__reduction": reduction,
    }
    found = trained(
        DEVICE,
        (numbers, numbers),
        model=lambda: graphs.linear([[0.0]]),
        epochs=1,
        settings=settings,
        loss=losses.mean_squared_error(),
        optimizer=optim.SGD(lr=1.0),
    )
    assert found["weights"]["w"].item() == pytest.approx(after, rel=1e-6)
    assert found["losses"] == pytest.approx([93.5], rel=1e-6)


SPLITS: Tuple[Dict[str, Any], ...] = (
    {},
    {"batch__updates_per_call": 3},  # 5 updates: one call of 3, one of 2
    {"ipu__replicas_per_process": 2, "batch__updates_per_call": 2},
    {"batch__micro_batch_size": 8},
)


@pytest.mark.parametrize("settings", SPLITS)
def test_every_split_gives_the_hosts_updates_with_a_ragged_end(settings):
    check(data(37), settings=settings, epochs=2)


OPTIMIZERS = (
    optim.SGD(lr=0.1, weight_decay=0.1),
    optim.SGD(lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    optim.Adam(lr=0.01, betas=(0.8, 0.9), eps=1e-3, weight_decay=0.1),
    optim.AdamW(lr=0.01, weight_decay=0.5),
)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=repr)
def test_optimizers_have_pytorchs_arithmetic(optimizer):
    check(data(37), optimizer=optimizer, within=1e-5)


def _floats(size=24):
    x, _ = data(size)
    return x, np.random.default_rng(5).random((size, 3)).astype(np.float32)


CLASSES, FLOATS = data(21), _floats(21)
IGNORING = (CLASSES[0], np.where(CLASSES[1] == 2, -1, CLASSES[1]))
WEIGHTED = (*CLASSES, np.linspace(0.5, 2.0, 21).astype(np.float32))
LOSSES = (
    (losses.softmax_cross_entropy(class_weights=[1.0, 0.5, 3.0]), CLASSES),
    (losses.softmax_cross_entropy(ignore_index=-1, class_weights=[1.0, 0.5, 3.0]), IGNORING),
    (losses.softmax_cross_entropy(reduction="sum"), CLASSES),
    (losses.softmax_cross_entropy(reduction="none"), CLASSES),
    (losses.softmax_cross_entropy(), WEIGHTED),
    (losses.negative_log_likelihood(), CLASSES),
    (losses.sigmoid_cross_entropy(), FLOATS),
    (losses.mean_squared_error(), FLOATS),
    (losses.mean_squared_error(), (*FLOATS, WEIGHTED[2])),
    (losses.mean_absolute_error(), FLOATS),
    (losses.huber(delta=0.5), FLOATS),
    (torch.nn.CrossEntropyLoss(torch.tensor([1.0, 2.0, 0.0])), CLASSES),
    (torch.nn.functional.mse_loss, FLOATS),
)


@pytest.mark.parametrize(("loss", "batch"), LOSSES)
def test_losses_are_those_of_the_host_with_padding_and_weights(loss, batch):
    check(batch, loss=loss, optimizer=optim.SGD(lr=0.1))


def test_weight_counts_units_of_the_users_own():
    x, y = _floats()
    check(
        (x, y),
        loss=losses.mean_squared_error(),
        weight=lambda batch: 2.0 * len(batch[1]),
        optimizer=optim.SGD(lr=0.1),
    )


def sequence_model():
    """Logits ``[rows, 3, 5]`` of ``x [rows, 5]``: classes on axis 1."""
    w = np.linspace(-1.0, 1.0, 3, dtype=np.float32).reshape(1, 3, 1)
    return graphs.model(
        [
            helper.make_node("Unsqueeze", ["x"], ["wide"], axes=[1]),
            helper.make_node("Mul", ["wide", "w"], ["y"]),
        ],
        [graphs.value("x", ["rows", 5])],
        [graphs.value("y", ["rows", 3, 5])],
        {"w": w},
        opset=11,
    )


def test_a_row_may_have_several_targets_some_of_them_ignored():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(19, 5)).astype(np.float32)
    y = rng.integers(-1, 3, (19, 5))
    y[:8] = -1  # a whole update without weight
    loss = losses.softmax_cross_entropy(ignore_index=-1, class_weights=[1.0, 2.0, 0.5])
    found = check((x, y), loss=loss, model=sequence_model, settings={"batch__updates_per_call": 2})
    assert [updates for *_, updates in found["counts"]] == [1, 1]


def images_model():
    """A convolution, a pool and a product, beside a second input that is added."""
    rng = np.random.default_rng(3)
    held = {"k": rng.normal(size=(2, 1, 3, 3)), "w": rng.normal(size=(8, 3))}
    return graphs.model(
        [
            helper.make_node("Conv", ["x", "k"], ["c"], kernel_shape=[3, 3]),
            helper.make_node("Relu", ["c"], ["r"]),
            helper.make_node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
            helper.make_node("Flatten", ["p"], ["f"]),
            helper.make_node("MatMul", ["f", "w"], ["m"]),
            helper.make_node("Add", ["m", "more"], ["y"]),
        ],
        [graphs.value("x", ["rows", 1, 6, 6]), graphs.value("more", ["rows", 3])],
        [graphs.value("y", ["rows", 3])],
        {name: value.astype(np.float32) for name, value in held.items()},
        opset=11,
    )


def test_images_and_several_inputs_in_their_order():
    rng = np.random.default_rng(0)
    x, more = rng.normal(size=(21, 1, 6, 6)), rng.normal(size=(21, 3))  # float64: sent as float32
    batch = ((x.astype(np.float32), more.astype(np.float32)), data(21)[1])
    found = check(batch, model=images_model)
    wide = trained(DEVICE, ((x, more), data(21)[1]), model=images_model)
    assert change(wide["weights"], found["weights"]) < 1e-6


def loss_model(reduction):
    """A graph that computes its own squared error of ``x w`` and ``t``."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["y"]),
        helper.make_node("Sub", ["y", "t"], ["d"]),
        helper.make_node("Mul", ["d", "d"], ["each"]),
    ]
    if reduction == "none":
        nodes.append(helper.make_node("ReduceSum", ["each"], ["loss"], axes=[1], keepdims=0))
    else:
        kind = {"mean": "ReduceMean", "sum": "ReduceSum"}[reduction]
        nodes.append(helper.make_node(kind, ["each"], ["loss"], keepdims=0))
    return graphs.model(
        nodes,
        [graphs.value("x", ["rows", 4]), graphs.value("t", ["rows", 3])],
        [graphs.value("loss", ["rows"] if reduction == "none" else []), graphs.value("y", None)],
        {"w": np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)},
        opset=11,
    )


@pytest.mark.parametrize(("reduction", "size"), [("mean", 24), ("sum", 24), ("none", 21)])
def test_a_graph_may_compute_its_own_loss(reduction, size):
    check(
        _floats(size),
        model=lambda: loss_model(reduction),
        loss="loss",
        loss_reduction=reduction,
        optimizer=optim.SGD(lr=0.02),
        settings={"ipu__replicas_per_process": 2},
    )


def test_rates_are_those_of_the_start_of_a_call():
    found = check(
        data(),
        schedule=lambda update: 1.0 / (1 + update) ** 2,
        settings={"batch__updates_per_call": 2, "update__warmup_updates": 3},
    )
    assert [lr for _, _, lr, _ in found["counts"]] == pytest.approx([0.1 / 3, 0.1 / 9])


def test_what_is_not_trained_stays_as_it_is():
    x = data()
    found = check(x, trainable=["w2", "b2"])
    first = trained(DEVICE, x, epochs=0)["weights"]
    assert (found["weights"]["w1"] == first["w1"]).all()
    assert (found["weights"]["w2"] != first["w2"]).any()


def unused_model():
    """The loss reads ``y``; ``spare`` leads to another output."""
    model = mlp()
    model.graph.initializer.append(
        onnx.numpy_helper.from_array(np.ones((3, 2), np.float32), "spare")
    )
    model.graph.node.append(helper.make_node("MatMul", ["y", "spare"], ["other"]))
    model.graph.output.append(graphs.value("other", ["rows", 2]))
    return model


@pytest.mark.parametrize("optimizer", [optim.Adam(lr=0.01, eps=1e-3), optim.SGD(0.1, momentum=0.5)])
def test_a_weight_that_the_loss_does_not_reach_is_not_moved_and_gets_no_slot(optimizer):
    loss = losses.softmax_cross_entropy(output="y")
    found = check(data(), model=unused_model, loss=loss, optimizer=optimizer, within=1e-5)
    assert (found["weights"]["spare"] == 1.0).all()
    host = trained(HOST, data(), model=unused_model, loss=loss, optimizer=optimizer)
    assert found["slots"] == host["slots"]
    assert not any(name.startswith("spare") for name in found["slots"])


def test_clipping_is_by_the_norm_of_all_gradients():
    settings = {"update__clip_norm": 0.05, "ipu__replicas_per_process": 2}
    check(data(), settings=settings, optimizer=optim.SGD(lr=1.0))
    check(data(), settings=settings, optimizer=optim.Adam(lr=0.01, eps=1e-3), within=1e-5)


def test_a_loss_scale_changes_nothing_in_float32():
    plain = trained(DEVICE, data())["weights"]
    scaled = trained(DEVICE, data(), settings={"precision__loss_scale": 1024.0})["weights"]
    assert change(scaled, plain) < 1e-6


def test_parameter_groups_have_values_of_their_own():
    def optimizer(module):
        own = {name: n for n, name in module.initializer_names.items()}
        p = dict(module.named_parameters())
        return torch.optim.Adam(
            [
                {"params": [p[own["w1"]], p[own["b1"]]], "lr": 0.05},
                {"params": [p[own["w2"]]], "betas": (0.5, 0.6), "weight_decay": 0.2},
            ],
            lr=0.01,
            eps=1e-3,
        )

    found = check(data(), optimizer=optimizer, within=1e-5)
    assert found["counts"][0][2] == 0.05


def test_a_model_of_a_newer_operator_set_is_converted():
    check(data(), model=lambda: mlp(opset=17))


WRONG = (
    ("opts.accumulationAndReplicationReductionType", "=popart.ReductionType.Mean"),
    ("session.updateOptimizerFromHost", None),
)


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_a_wrong_lowering_gives_wrong_numbers(monkeypatch, name, value):
    def wrong(plan, target):
        found = lower(plan, target)
        calls = [replace(c, value=value) if c.name == name else c for c in found.calls]
        return replace(found, calls=tuple(c for c in calls if c.value is not None))

    settings = {"batch__updates_per_call": 2}
    compiled: Dict[str, Any] = {"schedule": lambda update: 1.0 / (1 + update), "settings": settings}
    right = trained(DEVICE, data(), **compiled)["weights"]
    monkeypatch.setattr("unified_ipu_onnx.adapter.lower", wrong)
    assert change(trained(DEVICE, data(), **compiled)["weights"], right) > 1e-2


def test_several_processes_reduce_together():
    x, y = data(37)

    def body(session):
        program = session.compile(
            mlp(),
            loss=losses.softmax_cross_entropy(),
            optimizer=optim.SGD(lr=0.1, momentum=0.9),
        )
        loader = session.loader((x, y))
        records = [program.step(call) for call in loader]
        return program.weights(), [record.weight for record in records]

    shape = {
        "batch__global_batch_size": 16,
        "batch__micro_batch_size": 2,
        "batch__remainder": "pad",
        "data__shuffle": False,
    }
    both = {"mesh__data": 4, "ipu__replicas_per_process": 2}
    results = run(2, body, target="ipu-emulated", **both, **shape)
    (alone,) = run(1, body, target="cpu", **shape)
    for weights, counted in results:
        assert counted == alone[1]
        assert change(weights, alone[0]) < 2e-6
