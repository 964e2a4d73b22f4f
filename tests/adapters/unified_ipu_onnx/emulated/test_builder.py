"""Building graphs, the losses of PopART, and what it does not run."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

from unified_ipu_onnx.emulated import popart


def computed(build, feeds, *, gradient_of=None):
    """Anchors of a graph of inputs by name; ``build`` returns the value to look at."""
    builder = popart.Builder()
    names = [builder.addInputTensor(popart.TensorInfo(v), n) for n, v in feeds.items()]
    value = build(builder, *names)
    device = popart.DeviceManager().createCpuDevice()
    session: Any
    if gradient_of is None:
        session = popart.InferenceSession(
            builder.getModelProto(), popart.DataFlow(1, [value]), device
        )
    else:
        value = builder.aiGraphcore.identityloss([value], popart.ReductionType.Sum)
        session = popart.TrainingSession(
            builder.getModelProto(),
            popart.DataFlow(1, [value, f"Gradient___{gradient_of}"]),
            value,
            popart.SGD({}),
            device,
        )
    session.prepareDevice()
    session.weightsFromHost()
    anchors = session.initAnchorArrays()
    session.run(popart.PyStepIO(feeds, anchors), "a debug name")
    return anchors[value], anchors.get(f"Gradient___{gradient_of}")


PROBABILITIES = np.array([[0.5, 0.25, 0.25], [0.0, 1.0, 0.0]], np.float32)
LABELS = np.array([1, 0], np.int32)


@pytest.mark.parametrize(
    ("reduction", "expected"),
    [
        (popart.ReductionType.NoReduction, [np.log(4.0), 7 * np.log(10.0)]),
        (popart.ReductionType.Sum, np.log(4.0) + 7 * np.log(10.0)),
        (popart.ReductionType.Mean, (np.log(4.0) + 7 * np.log(10.0)) / 2),
    ],
)
def test_the_likelihood_takes_probabilities_and_bounds_them_below(reduction, expected):
    def build(builder, p, y):
        return builder.aiGraphcore.nllloss([p, y], reduction)

    found, _ = computed(build, {"p": PROBABILITIES, "y": LABELS})
    np.testing.assert_allclose(found, np.array(expected), rtol=1e-6)


def test_the_gradient_passes_where_the_probability_is_bounded():
    def build(builder, p, y):
        return builder.aiGraphcore.nllloss([p, y], popart.ReductionType.Sum)

    _, gradient = computed(build, {"p": PROBABILITIES, "y": LABELS}, gradient_of="p")
    expected = np.array([[0.0, -4.0, 0.0], [-1e7, 0.0, 0.0]])
    np.testing.assert_allclose(gradient, expected, rtol=1e-6)


def test_an_ignored_label_counts_neither_above_nor_below():
    def build(builder, p, y):
        return builder.aiGraphcore.nllloss([p, y], ignoreIndex=0)

    assert computed(build, {"p": PROBABILITIES, "y": LABELS})[0] == pytest.approx(np.log(4.0))
    zeros = {"p": PROBABILITIES, "y": np.zeros(2, np.int32)}
    assert computed(build, zeros)[0] == 0.0


def test_logarithms_are_taken_as_they_are():
    scores = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([0, 2, 1, 1])

    def build(builder, x, y):
        logs = builder.aiOnnxOpset11.logsoftmax([x], axis=1)
        return builder.aiGraphcore.nllloss([logs, y], inputIsLogProbability=True)

    feeds = {"x": scores.numpy(), "y": labels.numpy().astype(np.int32)}
    expected = torch.nn.functional.cross_entropy(scores, labels).item()
    assert computed(build, feeds)[0] == pytest.approx(expected, rel=1e-6)


def test_the_absolute_loss_is_a_factor_times_the_mean():
    def build(builder, x):
        return builder.aiGraphcore.l1loss([x], 0.5)

    feeds = {"x": np.array([1, -2, 0, 5], np.float32)}
    value, gradient = computed(build, feeds, gradient_of="x")
    assert value.item() == 1.0
    assert gradient.tolist() == [0.125, -0.125, 0.0, 0.125]


def test_attributes_come_by_position_or_name_with_a_debug_name_behind():
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    by_position, _ = computed(lambda b, n: b.aiOnnx.reducesum([n], [1], 0, "name"), {"x": x})
    by_name, _ = computed(lambda b, n: b.aiOnnx.reducesum([n], axes=[1], keepdims=0), {"x": x})
    assert by_position.tolist() == by_name.tolist() == [3.0, 12.0]
    cast, _ = computed(lambda b, n: b.aiOnnx.cast([n], "INT32"), {"x": x})
    assert cast.dtype == np.int32
    half, _ = computed(lambda b, n: b.aiOnnx.split([n], 3, axis=1)[2], {"x": x})
    assert half.tolist() == [[2.0], [5.0]]


def test_names_shapes_and_types_are_those_of_the_sdk():
    builder = popart.Builder(opsets={"ai.onnx": 9, "ai.graphcore": 1})
    x = builder.addInputTensor("FLOAT", [4, 3])
    again = builder.addInputTensor(popart.TensorInfo(np.zeros((4, 3), np.float16)))
    with builder.nameScope("layer"), builder.virtualGraph(1), builder.pipelineStage(1):
        y = builder.aiOnnx.relu([x], "act")
    z = builder.aiOnnx.relu([x])
    assert (x, again, y, z) == ("input", "input/1", "layer/act/Relu:0", "Relu:0")
    assert builder.getTensorShape(y) == [4, 3]
    assert builder.getTensorDtypeString(again) == "float16"
    model = onnx.load_from_string(builder.getModelProto())
    assert [(e.domain, e.version) for e in model.opset_import] == [("", 9)]
    assert {a.name: a.i for a in model.graph.node[0].attribute} == {
        "__ipu_number": 1,
        "__pipeline_stage": 1,
    }


def test_attributes_of_nodes_can_be_set_read_and_taken_away():
    builder = popart.Builder()
    x = builder.addInputTensor("FLOAT", [2])
    y = builder.aiOnnx.relu([x])
    values = {
        "Int64": 3, "Float": 0.5, "String": "text",
        "Int64Vector": [1, 2], "FloatVector": [0.5, 1.5], "StringVector": ["a", "b"],
    }  # fmt: skip
    for name, value in values.items():
        builder.addNodeAttribute(name, value, {y})
        assert getattr(builder, f"get{name}NodeAttribute")(name, {y}) == value
    assert builder.getAllNodeAttributeNames({y}) == list(values)
    builder.removeNodeAttribute("String", {y})
    assert not builder.nodeHasAttribute("String", {y})
    builder.setAvailableMemoryProportion(y, 0.25)
    builder.setPartialsType(y, "half")
    assert builder.getPartialsType(y) == "half"
    for act, words in (
        (lambda: builder.addNodeAttribute("Float", 1.0, {y}), "Node already has attribute Float."),
        (lambda: builder.getInt64NodeAttribute("Float", {y}), "has another type"),
        (lambda: builder.getInt64NodeAttribute("None", {y}), "does not have an attribute None."),
        (lambda: builder.removeNodeAttribute("None", {y}), "Cannot remove attribute None"),
        (lambda: builder.getAllNodeAttributeNames({"z"}), "Could not find a node"),
        (lambda: builder.setAvailableMemoryProportion(y, 2.0), "must be in"),
    ):
        with pytest.raises(popart.popart_exception, match=words):
            act()


def test_a_model_can_be_built_on():
    node = helper.make_node("Relu", ["x"], ["y"])
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)], ir_version=6)
    builder = popart.Builder(model.SerializeToString())
    z = builder.aiOnnxOpset11.neg(["y"])
    assert builder.getTensorShape(z) == [2]
    with pytest.raises(popart.popart_exception, match="already defined as 11"):
        popart.Builder(model.SerializeToString()).aiOnnxOpset9.neg(["y"])


def _newer():
    graph = helper.make_graph([], "g", [], [])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]).SerializeToString()


@pytest.mark.parametrize(
    ("act", "kind", "words"),
    [
        (lambda b: b.aiOnnxOpset12, popart.popart_exception, "no operator set 12"),
        (lambda b: b.aiOnnx.relu(["nowhere"]), popart.popart_exception, "Unknown tensor"),
        (lambda b: b.aiOnnx.gathernd(["x", "x"]), AttributeError, "gathernd"),
        (lambda b: b.aiOnnx.relu(["x", "x"]), popart.popart_exception, "number of inputs 2"),
        (lambda b: b.aiOnnx.relu(["x"], alpha=1.0), TypeError, "unexpected argument 'alpha'"),
        (lambda b: b.aiOnnx.rnn(["x", "x", "x"], 3), popart.popart_exception, "number of outputs"),
        (lambda b: b.addUntypedInputTensor(), popart.popart_exception, "top-level graph"),
        (
            lambda b: popart.InferenceSession(
                b.getModelProto(), popart.DataFlow(1, []), popart.DeviceManager().createCpuDevice()
            ),
            popart.popart_exception,
            "must specify an anchor",
        ),
        (lambda b: b.aiOnnx.cast(["x"]), TypeError, "missing argument 'to'"),
        (lambda b: b.aiGraphcore.lstm(["x"]), popart.popart_exception, "aiGraphcore.lstm"),
        (lambda b: b.customOp("Mine", 1, "me", [], {}), popart.popart_exception, "customOp 'Mine'"),
        (lambda b: b.createSubgraphBuilder(), popart.popart_exception, "createSubgraphBuilder"),
        (lambda b: popart.Builder(opsets={"ai.onnx": 9}), KeyError, "ai.graphcore"),
        (lambda b: popart.Builder(_newer()), popart.popart_exception, "operator set 17"),
        (lambda b: popart.PyStepIOCallback(), popart.popart_exception, "PyStepIOCallback"),
        (lambda b: popart.GraphTransformer, popart.popart_exception, "GraphTransformer"),
        (lambda b: popart.NoSuchName, AttributeError, "NoSuchName"),
        (lambda b: popart.TensorInfo("FLOAT32", [1]), popart.popart_exception, "FLOAT32"),
        (lambda b: popart.TensorInfo([1]), TypeError, "Can not create TensorInfo"),
    ],
)
def test_what_is_unknown_or_not_emulated_is_refused(act, kind, words):
    builder = popart.Builder()
    builder.addInputTensor("FLOAT", [2], "x")
    with pytest.raises(kind, match=words):
        act(builder)


def _session(*nodes, kind=TensorProto.FLOAT, shape=(2,), outputs=("y",), held=()):
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info("x", kind, list(shape))],
        [helper.make_tensor_value_info(n, kind, None) for n in outputs],
        list(held),
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)], ir_version=6)
    session = popart.InferenceSession(
        model.SerializeToString(),
        popart.DataFlow(1, list(outputs)),
        popart.DeviceManager().createCpuDevice(),
    )
    session.prepareDevice()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kind": TensorProto.DOUBLE}, "input 'x' is DOUBLE"),
        ({"kind": TensorProto.INT64}, "input 'x' is INT64"),
        ({"shape": ("rows",)}, "the shape of input 'x' is not static"),
        ({"op": "Det"}, "No class for ai.onnx.Det:11"),
        (
            {"held": [helper.make_tensor("w", TensorProto.DOUBLE, [1], [1.0])]},
            "weight 'w' is DOUBLE",
        ),
    ],
)
def test_models_that_no_device_takes_are_refused(options, words):
    node = helper.make_node(options.pop("op", "Relu"), ["x"], ["y"])
    with pytest.raises(popart.popart_exception, match=words):
        _session(node, **options)


def test_training_with_batch_statistics_is_refused():
    builder = popart.Builder()
    x = builder.addInputTensor("FLOAT", [4, 1], "x")
    ones = [builder.addInitializedInputTensor(np.ones(1, np.float32)) for _ in range(4)]
    y = builder.aiOnnxOpset9.batchnormalization([x, *ones], 1)[0]
    loss = builder.aiGraphcore.identityloss([y])
    device = popart.DeviceManager().createCpuDevice()
    flow = popart.DataFlow(1, [])
    with pytest.raises(popart.popart_exception, match="batch statistics"):
        popart.TrainingSession(builder.getModelProto(), flow, loss, popart.SGD({}), device)


def test_masks_are_new_in_every_run_and_come_again_with_the_seed():
    builder = popart.Builder()
    x = builder.addInputTensor("FLOAT", [64], "x")
    w = builder.addInitializedInputTensor(np.ones(64, np.float32), "w")
    y = builder.aiOnnxOpset10.dropout([builder.aiOnnxOpset10.mul([x, w])], 1, 0.5)[0]
    loss = builder.aiGraphcore.identityloss([y])
    device = popart.DeviceManager().createCpuDevice()
    flow = popart.DataFlow(2, [y])
    session = popart.TrainingSession(
        builder.getModelProto(), flow, loss, popart.ConstSGD(0.0), device
    )
    session.prepareDevice()
    session.weightsFromHost()
    runs = []
    for seed in (7, None, 7):
        if seed is not None:
            session.setRandomSeed(seed)
        anchors = session.initAnchorArrays()
        session.run(popart.PyStepIO({"x": np.ones((2, 64), np.float32)}, anchors))
        runs.append(anchors[y].copy())
    assert (runs[0] == runs[2]).all()
    assert (runs[0] != runs[1]).any()
    assert (runs[0][0] != runs[0][1]).any()
    assert set(np.unique(runs[0])) == {0.0, 2.0}
