"""A graph as a module: its inputs, outputs, values, copies, devices and refusals."""

from __future__ import annotations

import copy
import pickle
import weakref

import numpy as np
import pytest
import torch
from onnx import TensorProto

from tests.adapters.unified_ipu_onnx.written_graphs import (
    branch,
    checked,
    gradients,
    held,
    info,
    model,
    node,
)
from unified_ipu.errors import CapabilityError, ConfigError, DataError
from unified_ipu_onnx.module import GraphModule

X = torch.tensor([[1.0, -2.0]])
Y = torch.tensor([[10.0, 20.0]])


def difference():
    return model([node("Sub", ["a", "b"], ["c"])], ["a", "b"], ["c"])


def perceptron():
    return model(
        [
            node("Gemm", ["x", "w", "b"], ["h"], name="first"),
            node("Relu", ["h"], ["r"]),
            node("MatMul", ["r", "v"], ["y"], name="second"),
        ],
        ["x"], ["y"],
        held(w=[[1.0, 2.0], [3.0, 4.0]], b=[0.5, 20.0], v=[[1.0], [1.0]]),
    )  # fmt: skip


def test_inputs_are_taken_by_position_or_by_name():
    module = GraphModule.from_model(difference())
    assert module(X, Y).tolist() == [[-9.0, -22.0]]
    assert module(b=X, a=Y).tolist() == [[9.0, 22.0]]
    assert module(X, b=Y).tolist() == [[-9.0, -22.0]]


@pytest.mark.parametrize(
    ("args", "kwargs"), [((X,), {}), ((X, Y, Y), {}), ((X,), {"a": Y}), ((X, Y), {"d": Y})]
)
def test_wrong_inputs_are_refused_with_the_right_ones(args, kwargs):
    module = GraphModule.from_model(difference())
    with pytest.raises(ConfigError, match=r"the graph has the inputs \['a', 'b'\], got"):
        module(*args, **kwargs)


def test_several_outputs_come_as_a_dict_in_the_order_of_the_graph():
    nodes = [node("Add", ["x", "x"], ["sum"]), node("Neg", ["x"], ["minus"])]
    module = GraphModule.from_model(model(nodes, ["x"], ["minus", "sum"]))
    found = module(X)
    assert list(found) == ["minus", "sum"]
    assert found["sum"].tolist() == [[2.0, -4.0]]


def test_outputs_may_be_inputs_weights_and_constants():
    nodes = [node("Identity", ["x"], ["same"]), node("Constant", [], ["c"], value_float=3.0)]
    given = model(nodes, ["x"], ["same", "c", "w"], held(w=[7.0]))
    found = GraphModule.from_model(given)(X)
    assert [found[name].tolist() for name in ("same", "c", "w")] == [X.tolist(), 3.0, [7.0]]


def test_a_perceptron_computes_and_learns_as_by_hand():
    module = GraphModule.from_model(checked(perceptron()))
    y = module(X)  # h = [1 - 6 + 0.5, 2 - 8 + 20] = [-4.5, 14]
    assert y.tolist() == [[14.0]]
    y.sum().backward()
    assert gradients(module) == {
        "w": [[0.0, 1.0], [0.0, -2.0]],
        "b": [0.0, 1.0],
        "v": [[0.0], [14.0]],
    }


def test_any_value_of_the_main_graph_can_be_asked_for():
    module = GraphModule.from_model(perceptron())
    found = module.run({"x": X}, ["r", "y", "x"])
    assert found["r"].tolist() == [[0.0, 14.0]]
    assert found["y"].tolist() == [[14.0]]
    assert [name for name in module.computed_names() if name in "hry"] == ["h", "r", "y"]
    with pytest.raises(ConfigError, match="the graph computes no value 'q'"):
        module.run({"x": X}, ["q"])


def test_a_shape_that_is_asked_for_comes_as_a_tensor():
    nodes = [node("Shape", ["x"], ["s"]), node("ConstantOfShape", ["s"], ["y"])]
    module = GraphModule.from_model(model(nodes, ["x"], ["y"]))
    found = module.run({"x": X}, ["s"])["s"]
    assert found.dtype == torch.int64
    assert found.tolist() == [1, 2]


def test_names_of_initializers_are_those_of_the_parameters_as_far_as_torch_allows():
    given = model(
        [node("Add", ["x", "a.b"], ["h"]), node("Add", ["h", "forward"], ["y"])],
        ["x"], ["y"], held(**{"a.b": [1.0], "forward": [2.0]}),
    )  # fmt: skip
    module = GraphModule.from_model(given)
    assert module.initializer_names == {"a%2Eb": "a.b", "%66orward": "forward"}
    assert module(X).tolist() == [[4.0, 1.0]]


@pytest.mark.parametrize("name", ["frozen", "_steps", "initializer_names", "constant.2", "%"])
def test_an_initializer_may_have_any_name(name):
    given = model([node("Add", ["x", name], ["y"])], ["x"], ["y"], held(**{name: [1.0]}))
    module = GraphModule.from_model(given)
    assert list(module.initializer_names.values()) == [name]
    assert module(X).tolist() == [[2.0, -1.0]]


def test_constants_are_no_state_but_move_along():
    given = model(
        [node("Mul", ["x", "c"], ["h"]), node("Gather", ["h", "i"], ["y"], axis=1)],
        ["x"], ["y"], [*held(i=np.array([1, 0]))], opset=13,
    )  # fmt: skip
    given.graph.node.insert(0, node("Constant", [], ["c"], value_floats=[2.0, 3.0]))
    module = GraphModule.from_model(given)
    assert module.state_dict() == {}
    assert module(X).tolist() == [[-6.0, 2.0]]
    moved = module.to("meta")
    assert moved(X.to("meta")).device.type == "meta"


def test_a_module_in_another_type_computes_in_it():
    module = GraphModule.from_model(perceptron()).double()
    assert module(X.double()).dtype == torch.float64


def test_a_copy_has_weights_and_a_mode_of_its_own():
    given = model([node("Dropout", ["h"], ["y"])], ["x"], ["y"], held(w=[[1.0, 1.0]]))
    given.graph.node.insert(0, node("Add", ["x", "w"], ["h"]))
    module = GraphModule.from_model(given)
    twin = copy.deepcopy(module)
    with torch.no_grad():
        twin.get_parameter("w").fill_(5.0)
    module.train()
    twin.eval()
    assert twin(X).tolist() == [[6.0, 3.0]]
    assert all(v in {0.0, 4.0, -2.0} for v in module(X).flatten().tolist())
    assert twin(X).tolist() == [[6.0, 3.0]]


def test_a_module_works_under_functional_calls():
    module = GraphModule.from_model(perceptron())
    state = {name: torch.zeros_like(value) for name, value in module.state_dict().items()}
    assert torch.func.functional_call(module, state, (X,)).tolist() == [[0.0]]


def test_every_unsupported_node_is_listed_at_construction():
    given = model(
        [
            node("Gone", ["x"], ["a"], name="here", domain="mine"),
            node("Relu", ["a"], ["b"]),
            node("Lost", ["b"], ["y"], name="there", domain="other"),
        ],
        ["x"], ["y"], held(w=[1.0]), domains=["mine", "other"],
    )  # fmt: skip
    given.graph.node.append(node("NoSuch", ["w"], ["z"]))
    given.graph.output.append(info("z"))
    with pytest.raises(CapabilityError) as caught:
        GraphModule.from_model(given)
    text = str(caught.value)
    assert "3 node(s) of the graph are not supported" in text
    assert "Gone (node 'here', domain mine, operator set 1)" in text
    assert "Lost (node 'there', domain other, operator set 1)" in text
    assert "NoSuch (node 'z', domain ai.onnx, operator set 13)" in text


def test_an_unsupported_node_in_a_branch_or_of_a_type_is_listed_too():
    then = branch([node("Gone", ["x"], ["p"], domain="mine")], ["p"])
    other = branch([node("Neg", ["x"], ["q"])], ["q"])
    given = model(
        [
            node("If", ["flag"], ["h"], name="choose", then_branch=then, else_branch=other),
            node("Cast", ["h"], ["y"], name="narrow", to=TensorProto.FLOAT8E5M2),
        ],
        ["x", info("flag", [], TensorProto.BOOL)], [info("y", None, TensorProto.FLOAT8E5M2)],
        domains=["mine"], opset=19,
    )  # fmt: skip
    with pytest.raises(
        CapabilityError, match=r"Gone \(node 'choose/p'.*Cast \(node 'narrow'.*E5M2"
    ):
        GraphModule.from_model(given)


def test_constants_that_are_no_numbers_are_listed_too():
    given = model([node("Constant", [], ["y"], value_string="a")], [], [info("y", [], 8)])
    with pytest.raises(CapabilityError, match=r"Constant \(node 'y'.*kind \['value_string'\]"):
        GraphModule.from_model(given)


def test_inputs_of_a_type_that_torch_lacks_are_refused_by_name():
    given = model([node("Identity", ["x"], ["y"])], [info("x", [1], TensorProto.STRING)], ["y"])
    with pytest.raises(CapabilityError, match="input 'x': tensors of element type STRING"):
        GraphModule.from_model(given)


def test_a_graph_that_reads_what_nothing_gives_is_refused_with_both_names():
    with pytest.raises(ConfigError, match=r"node 'y' \(Neg\) reads 'q', which no input"):
        GraphModule.from_model(model([node("Neg", ["q"], ["y"])], ["x"], ["y"]))
    with pytest.raises(ConfigError, match="lists the output 'z', which nothing"):
        GraphModule.from_model(model([node("Neg", ["x"], ["y"])], ["x"], ["z"]))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (node("Relu", ["x"], ["y", "z"]), r"node 'y' \(Relu\) lists 2 outputs, .* has 1 to 1"),
        (node("Cast", ["x"], ["y"]), r"node 'y' \(Cast\) is not what the standard says: .*'to'"),
        (node("Attention", ["x"], ["y"]), r"\(Attention\) lists 1 inputs, its operator has 3 to 6"),
        (node("Transpose", ["x"], ["y"], perm="no"), r"node 'y' \(Transpose\) is not what"),
    ],
    ids=["too many outputs", "no attribute", "too few inputs", "attribute of another kind"],
)
def test_a_node_that_breaks_the_rules_of_its_operator_is_named(wrong, message):
    given = model([wrong], ["x"], ["y"], opset=23, ir_version=10)
    with pytest.raises(ConfigError, match=message):
        GraphModule.from_model(given)


def test_a_node_that_cannot_run_is_named_with_the_shapes_it_was_given():
    module = GraphModule.from_model(perceptron())
    with pytest.raises(
        DataError, match=r"node 'first' \(Gemm\): .*shapes \[\[1, 3\], \[2, 2\]"
    ) as c:
        module(torch.zeros(1, 3))
    assert (vars(c.value)["label"], vars(c.value)["op_type"]) == ("first", "Gemm")
    assert str(pickle.loads(pickle.dumps(c.value))) == str(c.value)  # noqa: S301  our own


def test_running_out_of_memory_is_not_blamed_on_a_node():
    nodes = [node("ConstantOfShape", ["s"], ["y"])]
    module = GraphModule.from_model(model(nodes, [info("s", [1], TensorProto.INT64)], ["y"]))
    with pytest.raises(RuntimeError, match="can't allocate memory"):
        module(torch.tensor([2**55]))


def test_results_are_freed_after_their_last_use():
    nodes = [node("Relu", [f"v{i}"], [f"v{i + 1}"]) for i in range(20)]
    module = GraphModule.from_model(model(nodes, ["v0"], ["v20"]))
    alive = []

    class Watched(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            result = super().__torch_function__(function, types, args, kwargs or {})
            if function is torch.relu:
                alive.append(sum(1 for kept in made if kept() is not None))
                made.append(weakref.ref(result))
            return result

    made = []
    with torch.no_grad():
        module(torch.ones(2).as_subclass(Watched))
    assert len(alive) == 20
    assert max(alive) <= 2


def test_what_depends_on_no_input_is_computed_once():
    nodes = [
        node("Transpose", ["c"], ["t"]),
        node("Exp", ["t"], ["e"]),
        node("Add", ["x", "e"], ["y"]),
    ]
    given = model(nodes, ["x"], ["y"])
    given.graph.node.insert(0, node("Constant", [], ["c"], value_floats=[0.0, 0.0]))
    module = GraphModule.from_model(given)
    assert module.computed_names() == ("x", "e", "y")
    assert module(X).tolist() == [[2.0, -1.0]]


def test_what_depends_on_a_weight_is_computed_every_time():
    nodes = [node("Transpose", ["w"], ["t"]), node("Add", ["x", "t"], ["y"])]
    module = GraphModule.from_model(model(nodes, ["x"], ["y"], held(w=[1.0, 1.0])))
    with torch.no_grad():
        module.get_parameter("w").fill_(3.0)
    assert module(X).tolist() == [[4.0, 1.0]]


def test_a_node_that_is_computed_natively_is_not_reported_as_a_fallback():
    nodes = [
        node("Unique", ["x"], ["u"], name="once", sorted=1),
        node("Add", ["u", "w"], ["y"]),
    ]
    module = GraphModule.from_model(model(nodes, ["x"], ["y"], held(w=[1.0])))
    assert list(module.fallbacks) == []
    assert module(torch.tensor([3.0, 1.0, 3.0])).tolist() == [2.0, 4.0]
    module(torch.tensor([3.0, 1.0, 3.0])).sum().backward()
    assert gradients(module)["w"] == [2.0]
