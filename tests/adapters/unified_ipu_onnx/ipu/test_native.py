"""What of a lowering reaches PopART's own objects, and which newer models it can read."""

from __future__ import annotations

import sys
import types

import numpy as np
import onnx
import pytest
from onnx import helper

import unified_ipu as ui
from tests.adapters.unified_ipu_onnx import graphs
from tests.adapters.unified_ipu_onnx.ipu.device_runs import mlp
from unified_ipu.errors import CapabilityError
from unified_ipu_onnx.emulated import popart
from unified_ipu_onnx.ipu.opsets import to_older
from unified_ipu_onnx.ipu.programs import Native
from unified_ipu_onnx.lower_ipu import INFERENCE, TRAINING, lower_for_ipu

SETTINGS = {
    "batch.global_batch_size": 16,
    "batch.micro_batch_size": 2,
    "batch.remainder": "pad",
    "mesh.data": 4,
    "ipu.replicas_per_process": 2,
}


def native(process=0, popdist=None, **settings):
    changes = {name.replace("__", "."): value for name, value in settings.items()}
    plan = ui.Plan().replace({**SETTINGS, **changes})
    return Native(popart, lower_for_ipu(plan, "ipu-emulated"), process, popdist)


def test_options_are_those_of_the_lowering_by_process():
    options = native(process=1, ipu__io_tiles=32).options(TRAINING)
    assert options.accumulationFactor == 2
    assert options.enableGradientAccumulation is True
    assert (options.replicatedGraphCount, options.globalReplicationFactor) == (2, 4)
    assert options.globalReplicaOffset == 2
    assert options.numIOTiles == 32
    assert options.convolutionOptions == {"partialsType": "float"}


def test_inference_has_options_of_its_own():
    found = native()
    options = found.options(INFERENCE)
    assert options.enableGradientAccumulation is False
    assert options.constantWeights is False
    assert options.enableDistributedReplicatedGraphs is False
    assert found.at_once(INFERENCE) == 2
    assert found.at_once(TRAINING) == 4


def test_the_device_has_as_many_ipus_as_the_replicas_need():
    assert native().device.numIpus == 2
    assert native(ipu__ipus_per_replica=4).device.numIpus == 8


def test_under_poprun_popdist_says_which_replicas_are_here(monkeypatch):
    def configure(options):
        options.enableDistributedReplicatedGraphs = True
        options.globalReplicationFactor, options.globalReplicaOffset = 8, 6

    module = types.SimpleNamespace(configureSessionOptions=configure)
    monkeypatch.setitem(sys.modules, "some_popdist", types.SimpleNamespace())
    monkeypatch.setitem(sys.modules, "some_popdist.popart", module)
    options = native(popdist=types.SimpleNamespace(__name__="some_popdist")).options(TRAINING)
    assert (options.globalReplicationFactor, options.globalReplicaOffset) == (8, 6)
    assert options.replicatedGraphCount == 1, "popdist's to set"
    assert options.accumulationFactor == 2


def test_memory_shares_are_set_on_products_and_convolutions():
    builder = popart.Builder(graphs_linear())
    native(ipu__available_memory_proportion=0.25).place(builder, proto(builder), TRAINING)
    (node,) = proto(builder).graph.node
    assert {a.name: a.f for a in node.attribute} == {"__available_memory": 0.25}


def graphs_linear():
    return to_older(graphs.linear(np.ones((4, 3)))).SerializeToString()


def proto(builder):
    return onnx.load_from_string(builder.getModelProto())


def test_versions_that_only_take_more_types_are_read_as_older_ones():
    model = mlp(opset=17)
    found = to_older(model)
    assert [entry.version for entry in found.opset_import] == [11]
    assert [entry.version for entry in model.opset_import] == [17]
    assert found.graph == model.graph
    assert to_older(mlp(opset=9)).opset_import[0].version == 9


def with_node(node, opset=17):
    model = mlp(opset=opset)
    model.graph.node.append(node)
    model.graph.output.append(graphs.value(node.output[0], None))
    return model


@pytest.mark.parametrize(
    "node",
    [
        helper.make_node("Softmax", ["y"], ["z"], name="odd"),  # another axis by default
        helper.make_node("ReduceSum", ["y"], ["z"], name="odd"),  # axes are an input
        helper.make_node("LayerNormalization", ["y", "b2"], ["z"], name="odd"),  # too new
    ],
)
def test_nodes_that_mean_something_else_are_named(node):
    with pytest.raises(CapabilityError, match=r"'odd' .*means something else"):
        to_older(with_node(node))


def test_a_default_that_changed_is_no_matter_where_the_value_is_given():
    found = to_older(with_node(helper.make_node("ArgMax", ["y"], ["z"], axis=1)))
    assert found.opset_import[0].version == 11
    with pytest.raises(CapabilityError, match="ArgMax"):
        to_older(with_node(helper.make_node("ArgMax", ["y"], ["z"], select_last_index=1)))
