"""Branches and loops: which way they go, what they see, and what they hand on."""

from __future__ import annotations

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
from unified_ipu.errors import ConfigError
from unified_ipu_onnx.module import GraphModule

X = torch.tensor([[1.0, -2.0]])
BOOL, INT = TensorProto.BOOL, TensorProto.INT64


def choose(then, other, **rest):
    nodes = [node("If", ["flag"], ["y"], then_branch=then, else_branch=other)]
    return model(nodes, ["x", info("flag", [], BOOL)], ["y"], **rest)


def test_the_branch_that_is_taken_gets_the_gradient():
    given = choose(
        branch([node("Mul", ["x", "w"], ["p"])], ["p"]),
        branch([node("Add", ["x", "v"], ["q"])], ["q"]),
        initializers=held(w=[3.0], v=[5.0]),
    )
    module = GraphModule.from_model(checked(given))
    y = module(X, torch.tensor(True))
    y.sum().backward()
    assert y.tolist() == [[3.0, -6.0]]
    assert gradients(module)["w"] == [-1.0]
    assert module.get_parameter("v").grad is None
    assert module(X, torch.tensor([False])).tolist() == [[6.0, 3.0]]


def test_a_branch_that_is_known_is_put_in_place_and_the_other_may_be_anything():
    given = choose(
        branch([node("Gone", ["x"], ["p"], domain="mine")], ["p"]),
        branch([node("Neg", ["x"], ["q"])], ["q"]),
        initializers=held(flag=np.array(False)), domains=["mine"],
    )  # fmt: skip
    module = GraphModule.from_model(given)
    assert module(X).tolist() == [[-1.0, 2.0]]
    assert module.computed_names() == ("x", "y")


def test_what_one_branch_works_out_is_not_taken_for_known_in_the_other():
    # Both, and the graph behind them, need the same tensor as numbers.
    to_shape = [node("Reshape", ["x", "shape"], ["p"])]
    nodes = [
        node("If", ["flag"], ["h"], then_branch=branch(to_shape, ["p"]),
             else_branch=branch(to_shape, ["p"])),
        node("Reshape", ["h", "shape"], ["y"]),
    ]  # fmt: skip
    given = model(nodes, ["x", info("flag", [], BOOL), info("shape", [2], INT)], ["y"])
    module = GraphModule.from_model(given)
    for flag in (True, False):
        y = module(X, torch.tensor(flag), torch.tensor([2, 1]))
        assert y.tolist() == [[1.0], [-2.0]]


def test_values_from_outside_are_there_as_long_as_a_branch_may_read_them():
    nodes = [
        node("Exp", ["x"], ["e"]),
        node("Neg", ["e"], ["n"]),
        node("If", ["flag"], ["y"], then_branch=branch([node("Add", ["e", "n"], ["p"])], ["p"]),
             else_branch=branch([node("Identity", ["e"], ["q"])], ["q"])),
    ]  # fmt: skip
    module = GraphModule.from_model(model(nodes, ["x", info("flag", [], BOOL)], ["y"]))
    assert module(X, torch.tensor(True)).tolist() == [[0.0, 0.0]]
    assert torch.equal(module(X, torch.tensor(False)), X.exp())


def loop(body_nodes, body_outputs, inputs, outputs, **rest):
    """A loop whose body has the counter ``i``, the flag ``go`` and the value ``a``."""
    body = branch(body_nodes, body_outputs, [info("i", [], INT), info("go", [], BOOL), "a"])
    nodes = [*rest.pop("before", []), node("Loop", inputs, outputs, name="turn", body=body)]
    return model(nodes, rest.pop("feeds"), rest.pop("results"), **rest)


KEEP = node("Identity", ["go"], ["on"])
FLAG = info("on", [], BOOL)


def powers():
    return loop(
        [KEEP, node("Mul", ["a", "w"], ["b"]), node("Identity", ["b"], ["each"])],
        [FLAG, "b", "each"],
        ["count", "", "x"],
        ["y", "all"],
        feeds=["x", info("count", [], INT)],
        results=["y", info("all", ["K", "N", "M"])],
        initializers=held(w=[2.0]),
    )


def test_a_loop_hands_values_on_and_stacks_what_each_turn_gives():
    module = GraphModule.from_model(checked(powers()))
    found = module(X, torch.tensor(3))
    assert found["y"].tolist() == [[8.0, -16.0]]
    assert found["all"].tolist() == [[[2.0, -4.0]], [[4.0, -8.0]], [[8.0, -16.0]]]
    found["y"].sum().backward()  # -w^3, so -3 w^2
    assert gradients(module)["w"] == [-12.0]


def test_a_loop_of_no_turn_hands_on_what_it_got_and_has_nothing_to_stack():
    with pytest.raises(ConfigError, match=r"'turn' \(Loop.*its body was run no time"):
        GraphModule.from_model(powers())(X, torch.tensor(0))
    given = loop(
        [KEEP, node("Neg", ["a"], ["b"])], [FLAG, "b"], ["count", "", "x"], ["y"],
        feeds=["x", info("count", [], INT)], results=["y"],
    )  # fmt: skip
    module = GraphModule.from_model(given)
    assert module(X, torch.tensor(0)).tolist() == X.tolist()


def test_a_loop_ends_when_its_condition_says_so():
    body = [
        node("Add", ["a", "a"], ["b"]),
        node("ReduceMax", ["b"], ["top"], keepdims=0),
        node("Less", ["top", "limit"], ["on"]),
    ]
    given = loop(
        body, [FLAG, "b"], ["", "start", "x"], ["y"],
        feeds=["x", info("start", [], BOOL)], results=["y"], initializers=held(limit=30.0),
    )  # fmt: skip
    module = GraphModule.from_model(given)
    assert module(X, torch.tensor(True)).tolist() == [[32.0, -64.0]]
    assert module(X, torch.tensor(False)).tolist() == X.tolist()


def test_a_loop_counts_its_turns_and_sees_what_is_around_it():
    body = [KEEP, node("Cast", ["i"], ["f"], to=1), node("Mul", ["f", "e"], ["g"]),
            node("Add", ["a", "g"], ["b"])]  # fmt: skip
    given = loop(
        body, [FLAG, "b"], ["count", "", "x"], ["y"],
        before=[node("Neg", ["x"], ["e"])],
        feeds=["x"], results=["y"], initializers=held(count=np.array([4])),
    )  # fmt: skip
    assert GraphModule.from_model(given)(X).tolist() == [[-5.0, 10.0]]  # x - (0+1+2+3) x


def test_loops_stand_in_loops():
    inner = branch(
        [node("Identity", ["go2"], ["on2"]), node("Add", ["c", "a"], ["d"])],
        [info("on2", [], BOOL), "d"], [info("j", [], INT), info("go2", [], BOOL), "c"],
    )  # fmt: skip
    given = loop(
        [KEEP, node("Loop", ["count", "", "a"], ["b"], body=inner)],
        [FLAG, "b"], ["count", "", "x"], ["y"],
        feeds=["x"], results=["y"], initializers=held(count=np.array(2)),
    )  # fmt: skip
    assert GraphModule.from_model(given)(X).tolist() == [[9.0, -18.0]]


@pytest.mark.parametrize("backward", [0, 1])
def test_a_scan_runs_along_an_axis_and_stacks_its_results(backward):
    body = branch(
        [node("Add", ["s", "v"], ["t"]), node("Mul", ["t", "w"], ["o"])],
        [info("t", [2]), info("o", [2])], [info("s", [2]), info("v", [2])],
    )  # fmt: skip
    scan = node(
        "Scan", ["s0", "x"], ["last", "all"], body=body, num_scan_inputs=1, scan_input_axes=[1],
        scan_input_directions=[backward], scan_output_axes=[1], scan_output_directions=[backward],
    )  # fmt: skip
    given = model(
        [scan], [info("s0", [2]), info("x", [2, 3])], [info("last", [2]), info("all", [2, 3])],
        held(w=[10.0]),
    )  # fmt: skip
    module = GraphModule.from_model(checked(given))
    x = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], np.float32)
    found = module(torch.zeros(2), torch.from_numpy(x))
    sums = x[:, ::-1].cumsum(1)[:, ::-1] if backward else x.cumsum(1)
    assert found["last"].tolist() == [6.0, 15.0]
    assert np.array_equal(found["all"].detach().numpy(), 10 * sums)
    assert not found["last"].requires_grad
    found["all"].sum().backward()
    assert gradients(module)["w"] == [float(sums.sum())]
