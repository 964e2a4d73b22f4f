"""Weights in branches: a device computes gradients of all that its graph has a way to."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.adapters.unified_ipu_onnx.emulated.sessions import read
from unified_ipu.device import connect_fabric
from unified_ipu_onnx.emulated import popart

NAMES = ("taken", "other", "elsewhere")


def chosen() -> bytes:
    """``loss = x * (flag ? taken : other)``; ``elsewhere`` is read by no way to the loss."""

    def branch(name):
        node = helper.make_node("Identity", [name], [f"{name}.out"])
        out = helper.make_tensor_value_info(f"{name}.out", TensorProto.FLOAT, [1])
        return helper.make_graph([node], name, [], [out])

    branches = {"then_branch": branch("taken"), "else_branch": branch("other")}
    graph = helper.make_graph(
        [
            helper.make_node("If", ["flag"], ["weight"], **branches),
            helper.make_node("Mul", ["x", "weight"], ["product"]),
            helper.make_node("ReduceSum", ["product"], ["loss"], keepdims=0),
            helper.make_node("Mul", ["x", "elsewhere"], ["aside"]),
        ],
        "chosen",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [1]),
            helper.make_tensor_value_info("flag", TensorProto.BOOL, []),
        ],
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
            for name in ("loss", "aside")
        ],
        [numpy_helper.from_array(np.ones(1, np.float32), name) for name in NAMES],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)], ir_version=4)
    return bytes(model.SerializeToString())


def after_one_update(decay: float = 0.0, **options):
    """Weights after an update with x = 2 that takes the first branch."""
    settings = popart.SessionOptions()
    for name, value in options.items():
        setattr(settings, name, value)
    session = popart.TrainingSession(
        fnModel=chosen(),
        dataFlow=popart.DataFlow(1, {"aside": popart.AnchorReturnType("All")}),
        loss="loss",
        optimizer=popart.SGD(
            {"defaultLearningRate": (1.0, False), "defaultWeightDecay": (decay, False)}
        ),
        deviceInfo=popart.DeviceManager().acquireAvailableDevice(1),
        userOptions=settings,
    )
    session.prepareDevice()
    session.weightsFromHost()
    feeds = {"x": np.array([2.0], np.float32), "flag": np.array(True)}
    session.run(popart.PyStepIO(feeds, session.initAnchorArrays()))
    found = read(session, **dict.fromkeys(NAMES, (1,)))
    return {name: float(value[0]) for name, value in found.items()}


def test_the_branch_that_was_not_taken_has_a_gradient_of_zero_that_decay_acts_on():
    assert after_one_update(0.25) == {"taken": -1.25, "other": 0.75, "elsewhere": 1.0}


class OtherBranch:
    """Links to a process that took the other branch, with x = 16."""

    rank, size = 0, 2

    def __init__(self):
        self.theirs = [0.0, 16.0]  # in the order of the graph's weights

    def sum(self, array, name=""):
        return np.asarray(array) + np.float32(self.theirs.pop(0))


def test_processes_that_took_other_branches_reduce_the_same_tensors():
    links = OtherBranch()
    connect_fabric(links)
    try:
        found = after_one_update(
            enableDistributedReplicatedGraphs=True, globalReplicationFactor=2, globalReplicaOffset=0
        )
    finally:
        connect_fabric(None)
    assert links.theirs == []
    assert found == pytest.approx({"taken": -1.0, "other": -15.0, "elsewhere": 1.0})
