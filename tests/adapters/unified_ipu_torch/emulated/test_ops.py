"""Operators of the emulated PopTorch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from unified_ipu_torch.emulated import poptorch


def wrong(value) -> Any:
    """A value of a type that the function does not take."""
    return value


def module_of(function):
    class Model(torch.nn.Module):
        def forward(self, *args):
            return function(*args)

    return Model()


def run(function, *args):
    return poptorch.inferenceModel(module_of(function))(*args)


def test_a_loop_feeds_its_body_with_what_it_returned():
    def body(x, y):
        return x * y, y + 1

    found = run(lambda x, y: poptorch.for_loop(3, body, [x, y]), torch.ones(1), torch.ones(1))
    assert [value.item() for value in found] == [6.0, 4.0]  # 1 * 1 * 2 * 3


@pytest.mark.parametrize(
    ("inputs", "words"),
    [(torch.ones(1), "Object is not list"), ([torch.ones(1), 5], "index 1 is not torch.tensor")],
)
def test_a_loop_takes_a_list_of_tensors(inputs, words):
    with pytest.raises(ValueError, match=words):
        poptorch.for_loop(2, lambda x: x, inputs)


def test_the_body_of_a_loop_keeps_shapes():
    with pytest.raises(poptorch.Error, match="a loop needs the same"):
        run(lambda x: poptorch.for_loop(2, lambda t: torch.cat([t, t]), [x]), torch.ones(2))


@pytest.mark.parametrize(("value", "expected"), [(1.0, 11.0), (-1.0, -3.0)])
def test_a_branch_is_chosen_by_a_value_of_the_device(value, expected):
    def function(x):
        return poptorch.cond(x > 0, lambda t: t + 10, [x], lambda t: t * 3, [x])[0]

    assert run(function, torch.tensor([value])).item() == expected
    assert module_of(function)(torch.tensor([value])).item() == expected


def test_one_program_takes_both_branches():
    executor = poptorch.inferenceModel(
        module_of(lambda x: poptorch.cond(x > 0, torch.exp, [x], torch.neg, [x])[0])
    )
    assert [executor(torch.tensor([v])).item() for v in (0.0, -2.0)] == [0.0, 2.0]


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("for_loop", lambda x: poptorch.for_loop(2, torch.neg, [x])[0]),
        ("cond", lambda x: poptorch.cond(x.sum() > 0, torch.neg, [x], torch.exp, [x])[0]),
        ("CPU", poptorch.CPU(torch.neg, "op")),
    ],
)
def test_control_flow_and_host_operators_are_for_inference_only(name, function):
    model = module_of(lambda x: poptorch.identity_loss(function(x), reduction="sum"))
    with pytest.raises(poptorch.Error, match="only supported in inference"):
        poptorch.trainingModel(model, optimizer=sgd())(torch.ones(1))
    assert name


def sgd():
    # A program without weights trains nothing; the optimizer still has to hold something.
    return torch.optim.SGD([{"params": []}], lr=0.1)


def test_host_operators_see_values():
    host = poptorch.CPU(lambda x, y: (x * y, x + y), "op")
    executor = poptorch.inferenceModel(module_of(host))
    found = [executor(torch.tensor([2.0]), torch.tensor([v]))[0].item() for v in (3.0, 5.0)]
    assert found == [6.0, 10.0]


def test_slices_with_computed_starts():
    x = torch.arange(10.0)
    found = run(lambda t, i: poptorch.dynamic_slice(t, 0, i, 6, 2), x, torch.tensor([3]))
    assert found.tolist() == [3.0, 5.0, 7.0]
    found = run(
        lambda t, s, i: poptorch.dynamic_update(t, s, 0, i, 2),
        x,
        torch.tensor([-1.0, -2.0]),
        torch.tensor([4]),
    )
    assert found.tolist() == [0.0, 1.0, 2.0, 3.0, -1.0, -2.0, 6.0, 7.0, 8.0, 9.0]
    assert x[4].item() == 4.0
    with pytest.raises(poptorch.Error, match="same dtype"):
        poptorch.dynamic_update(x, torch.ones(2).int(), 0, torch.tensor([1]), 2)
    with pytest.raises(poptorch.Error, match="Size must be an integer"):
        poptorch.dynamic_slice(x, 0, torch.tensor([1]), wrong(2.0), 1)


def test_operators_that_only_matter_to_hardware_return_what_they_are_given():
    x = torch.ones(2, 4)
    assert torch.equal(poptorch.nop(x), x)
    assert torch.equal(poptorch.set_available_memory(x, 0.2), x)
    pair = poptorch.recomputationCheckpoint((x, x + 1))
    assert isinstance(pair, tuple)
    assert torch.equal(pair[1], x + 1)
    assert torch.equal(poptorch.recomputationCheckpoint(x), x)
    mode = poptorch.MatMulSerializationMode.ReducingDim
    assert torch.equal(poptorch.serializedMatMul(x, x.t(), mode, factor=2), x @ x.t())
    with poptorch.MultiConv().planType(poptorch.MultiConvPlanType.Parallel), poptorch.NameScope(
        "a"
    ):
        assert torch.equal(poptorch.nop(x), x)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: poptorch.nop(wrong(3)), poptorch.Error),
        (lambda: poptorch.set_available_memory(torch.ones(1), 2.0), AssertionError),
        (lambda: poptorch.recomputationCheckpoint(torch.ones(1), 3), ValueError),
        (
            lambda: poptorch.serializedMatMul(torch.ones(1, 3), torch.ones(3, 1), wrong("rows")),
            AssertionError,
        ),
        (
            lambda: poptorch.serializedMatMul(
                torch.ones(1, 3), torch.ones(3, 1), poptorch.MatMulSerializationMode.ReducingDim, 2
            ),
            AssertionError,
        ),
        (lambda: poptorch.MultiConv().planType(wrong("parallel")), AssertionError),
        (lambda: poptorch.NameScope(wrong(3)), AssertionError),
        (lambda: poptorch.ctc_beam_search_decoder(torch.ones(1), torch.ones(1)), poptorch.Error),
        (lambda: poptorch.fps(torch.ones(1), [0, 1]), poptorch.Error),
        (lambda: poptorch.ipu_print_tensor(torch.ones(1), float_format="hex"), KeyError),
    ],
)
def test_wrong_arguments_are_refused(call, error):
    with pytest.raises(error):
        call()


def test_a_custom_operator_wants_a_stand_in():
    def function(x):
        return poptorch.custom_op([x], "Cube", "test", 1, [x], {"factor": 2.0})[0]

    with pytest.raises(poptorch.Error, match=r"custom operator test.Cube:1 is compiled C"):
        run(function, torch.ones(2))
    poptorch.register_custom_op("Cube", "test", lambda x, factor: factor * x**3)
    try:
        assert run(function, torch.tensor([2.0])).item() == 16.0
        with pytest.raises(poptorch.Error, match="the examples say"):
            run(
                lambda x: poptorch.custom_op(
                    [x], "Cube", "test", 1, [torch.ones(3)], {"factor": 1.0}
                )[0],
                torch.ones(2),
            )
    finally:
        poptorch.register_custom_op("Cube", "test", None)
    with pytest.raises(ValueError, match="must all be the same"):
        poptorch.custom_op([], "Cube", "test", 1, [], {"values": [1, "a"]})


def test_a_printed_tensor_is_printed_when_it_is_computed_with_its_gradient_in_training(capsys):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(torch.ones(2))

        def forward(self, x):
            y = poptorch.ipu_print_tensor(self.w * x, "y", digits=2)
            return poptorch.identity_loss(y * 3, reduction="sum")

    model = Model()
    executor = poptorch.trainingModel(model)
    executor.compile(torch.ones(2))
    assert capsys.readouterr().err == ""
    executor(torch.tensor([1.0, 2.0]))
    assert capsys.readouterr().err.splitlines() == ["y: (1.0, 2.0)", "y_gradient: (3.0, 3.0)"]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"digits": 3}, "t: (\n (1.00, 2.50)\n (3.00, 4.00)\n)\n"),
        (
            {"separator": " ", "open_bracket": "{", "close_bracket": "}", "digits": 2},
            "t: {\n {1.0 2.5}\n {3.0 4.0}\n}\n",
        ),
        (
            {"float_format": "scientific", "digits": 2},
            "t: (\n (1.0e+00, 2.5e+00)\n (3.0e+00, 4.0e+00)\n)\n",
        ),
        ({"float_format": "none"}, "t: (\n (1.0, 2.5)\n (3.0, 4.0)\n)\n"),
        ({"summarise_threshold": 3, "edge_items": 1, "digits": 1}, "t: (\n (1, 2)\n (3, 4)\n)\n"),
    ],
)
def test_the_form_of_a_printed_tensor_can_be_chosen(settings, expected, capsys):
    x = torch.tensor([[1.0, 2.5], [3.0, 4.0]])
    run(lambda t: poptorch.ipu_print_tensor(t, "t", **settings) + 0, x)
    assert capsys.readouterr().err == expected


def test_long_tensors_show_their_edges(capsys):
    run(
        lambda t: poptorch.ipu_print_tensor(t, "t", summarise_threshold=5, edge_items=2, digits=1),
        torch.arange(9.0),
    )
    assert capsys.readouterr().err == "t: (0, 1, ..., 7, 8)\n"
