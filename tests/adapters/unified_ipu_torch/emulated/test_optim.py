"""The emulated ``poptorch.optim``, and what the device is told of an optimizer."""

from __future__ import annotations

import copy
import logging
import math
from typing import Any

import pytest
import torch

from unified_ipu_torch.emulated import poptorch
from unified_ipu_torch.emulated.poptorch.optimizer_attributes import OptimizerReader
from unified_ipu_torch.emulated.poptorch.optimizer_kinds import OptimizerType

OURS = [poptorch.optim.SGD, poptorch.optim.Adam, poptorch.optim.AdamW, poptorch.optim.RMSprop]
TORCHS = [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop]


@pytest.fixture
def parameters():
    return [torch.nn.Parameter(torch.tensor([3.0, 4.0]))]


def read(optimizer, compiled=None, options=None):
    return OptimizerReader(options or poptorch.Options()).read(optimizer, compiled)


@pytest.mark.parametrize(("ours", "theirs"), list(zip(OURS, TORCHS)))
def test_defaults_and_steps_on_the_host_are_torchs(ours, theirs, parameters):
    other = [torch.nn.Parameter(parameters[0].detach().clone())]
    optimizer, reference = ours(parameters, lr=0.1), theirs(other, lr=0.1)
    for one in (parameters, other):
        one[0].grad = torch.tensor([0.5, -1.0])
    optimizer.step()
    reference.step()
    assert torch.equal(parameters[0], other[0])
    assert (optimizer.loss_scaling, optimizer.accum_type) == (1.0, torch.float32)


@pytest.mark.parametrize("kind", [*OURS, poptorch.optim.LAMB])
def test_what_is_passed_is_variable_and_the_rest_constant(kind, parameters):
    optimizer = kind(parameters, lr=0.1, weight_decay=0.0)
    attributes = optimizer.variable_attrs
    assert not attributes.isConstant("lr")
    assert not attributes.isConstant("weight_decay")
    assert attributes.isConstant("loss_scaling")
    attributes.markAsVariable("loss_scaling")
    attributes.markAsConstant("weight_decay")
    assert (attributes.isConstant("loss_scaling"), attributes.isConstant("weight_decay")) == (
        False,
        True,
    )
    with pytest.raises(AssertionError, match="Unknown attribute speed"):
        attributes.markAsVariable("speed")


def test_sums_are_half_or_float(parameters):
    with pytest.raises(AssertionError, match=r"torch\.float32 or torch\.float16"):
        poptorch.optim.Adam(parameters, accum_type=torch.float64)
    with pytest.raises(AssertionError, match=r"torch\.float32 or torch\.float16"):
        poptorch.optim.SGD(parameters, lr=0.1, velocity_accum_type=torch.bfloat16)


def test_velocity_scaling_belongs_to_combined_accumulators(parameters, caplog):
    optimizer = poptorch.optim.SGD(
        parameters, lr=0.1, use_combined_accum=True, velocity_scaling=4.0
    )
    assert optimizer.param_groups[0]["velocity_scaling"] == 4.0
    assert read(optimizer).kind == OptimizerType.SGD1
    with caplog.at_level(logging.WARNING, logger="poptorch::python"):
        poptorch.optim.SGD(parameters, lr=0.1, velocity_scaling=4.0)
    assert "velocity_scaling value ignored" in caplog.text


def test_lamb_scales_its_update_by_the_norm_of_the_weights(parameters):
    # First step without bias correction: moments (1 - b) g and (1 - b) g^2.
    optimizer = poptorch.optim.LAMB(
        parameters, lr=0.5, betas=(0.9, 0.99), eps=0.0, weight_decay=0.1, bias_correction=False
    )
    parameters[0].grad = torch.tensor([2.0, -1.0])
    optimizer.step()
    ratio = 0.1 / math.sqrt(0.01)  # of the moments, the same for every gradient but its sign
    update = [ratio + 0.1 * 3.0, -ratio + 0.1 * 4.0]
    scale = 0.5 * 5.0 / math.hypot(*update)  # the weights' norm is 5
    expected = [3.0 - scale * update[0], 4.0 - scale * update[1]]
    assert parameters[0].tolist() == pytest.approx(expected, rel=1e-6)


def test_copies_keep_the_extra_settings(parameters):
    optimizer = poptorch.optim.AdamW(
        parameters, lr=0.1, loss_scaling=8.0, max_grad_norm=1.0, accum_type=torch.float16
    )
    again: Any = copy.deepcopy(optimizer)
    assert (again.loss_scaling, again.max_grad_norm, again.accum_type) == (8.0, 1.0, torch.float16)
    assert not again.variable_attrs.isConstant("max_grad_norm")
    assert again.variable_attrs is not optimizer.variable_attrs


def test_only_states_of_a_device_are_loaded(parameters):
    optimizer = poptorch.optim.SGD(parameters, lr=0.1)
    state = optimizer.state_dict()
    assert (state["ipu_state"], state["ipu_param"]) == (None, None)
    assert not optimizer.has_state()
    with pytest.raises(RuntimeError, match="Only IPU optimizer states"):
        optimizer.load_state_dict(torch.optim.SGD(parameters, lr=0.1).state_dict())
    with pytest.raises(RuntimeError, match="empty"):
        optimizer.set_state_dict({})
    optimizer.load_state_dict({**state, "ipu_state": {}, "ipu_param": {}})
    assert optimizer.has_state()
    assert optimizer.ipu_state_is_dirty


def test_the_description_holds_values_and_whether_they_are_constant(parameters):
    found = read(torch.optim.SGD(parameters, lr=0.5, momentum=0.9, nesterov=True))
    assert found.kind == OptimizerType.SGD2
    assert found.groups == (
        {
            "lr": (0.5, False),
            "momentum": (0.9, False),
            "dampening": (0, True),
            "weight_decay": (0, True),
            "nesterov": (True, True),
            "velocity_scaling": (1.0, True),
        },
    )
    assert found.loss_scaling == (1.0, True)
    assert found.parameters[0][0] is parameters[0]


@pytest.mark.parametrize(
    ("optimizer", "decay_constant"),
    [(torch.optim.Adam, 0.0), (torch.optim.AdamW, 0.01), (poptorch.optim.AdamW, None)],
)
def test_each_class_has_its_own_constants(optimizer, decay_constant, parameters):
    found = read(optimizer(parameters, lr=0.1))
    assert found.groups[0]["beta2"] == (0.999, True)
    decay, is_constant = found.groups[0]["weight_decay"]
    assert is_constant
    assert decay_constant is None or decay == decay_constant


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda p: torch.optim.AdamW(p, lr=1.0), OptimizerType.ADAMW),
        (lambda p: torch.optim.Adam(p, lr=1.0), OptimizerType.ADAM),
        (lambda p: poptorch.optim.AdamW(p, bias_correction=False), OptimizerType.ADAMW_NO_BIAS),
        (lambda p: torch.optim.RMSprop(p, centered=True), OptimizerType.RMSPROP_CENTERED),
        (lambda p: poptorch.optim.LAMB(p, bias_correction=False), OptimizerType.LAMB_NO_BIAS),
    ],
)
def test_kinds_are_told_apart(make, kind, parameters):
    assert read(make(parameters)).kind == kind


def test_other_optimizers_are_refused_by_listing_the_known(parameters):
    with pytest.raises(AssertionError, match="Types supported SGD1, SGD2, ADAM"):
        read(torch.optim.Adagrad(parameters, lr=0.1))
    with pytest.raises(ValueError, match="Only non-amsgrad"):
        read(torch.optim.Adam(parameters, amsgrad=True))
    with pytest.raises(ValueError, match="NaN"):
        read(poptorch.optim.SGD(parameters, lr=0.1, max_grad_norm=float("nan")))
    groups = [{"params": parameters, "centered": True}, {"params": [], "centered": False}]
    with pytest.raises(AssertionError, match="same value for the 'centered'"):
        read(torch.optim.RMSprop(groups, lr=0.1))


def test_a_subclass_is_warned_of(parameters, caplog):
    class Mine(torch.optim.SGD):
        pass

    with caplog.at_level(logging.WARNING, logger="poptorch::python"):
        assert read(Mine(parameters, lr=0.1)).kind == OptimizerType.SGD2
    assert "Poptorch does not run Python optimizer code directly" in caplog.text


def test_constants_stay_after_compilation_and_variables_may_change(parameters):
    compiled = read(poptorch.optim.SGD(parameters, lr=0.1, momentum=0.9))
    read(poptorch.optim.SGD(parameters, lr=0.2, momentum=0.8), compiled)
    with pytest.raises(poptorch.Error, match="cannot replace constant by non-constant"):
        read(poptorch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.1), compiled)
    with pytest.raises(poptorch.Error, match="cannot replace non-constant by constant"):
        read(poptorch.optim.SGD(parameters, lr=0.1), compiled)
    with pytest.raises(poptorch.Error, match="optimizer type is compiled in"):
        read(poptorch.optim.Adam(parameters, lr=0.1), compiled)
    with pytest.raises(poptorch.Error, match="max_grad_norm is compiled in"):
        read(poptorch.optim.SGD(parameters, lr=0.1, momentum=0.9, max_grad_norm=1.0), compiled)
    fixed = poptorch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    fixed.param_groups[0]["dampening"] = 0.5
    with pytest.raises(poptorch.Error, match="values of constant dampening do not match"):
        read(fixed, compiled)


def test_torchs_and_the_sdks_own_defaults_are_the_same_program(parameters):
    compiled = read(torch.optim.SGD(parameters, lr=1.0))
    assert read(poptorch.optim.SGD(parameters, lr=1.0), compiled) == compiled


def test_sums_in_half_keep_a_running_mean(parameters):
    options = poptorch.Options()
    options._freeze()
    half = poptorch.optim.SGD(parameters, lr=0.1, accum_type=torch.float16)
    read(half, options=options)
    strategy = options.Training.meanAccumulationAndReplicationReductionStrategy
    assert strategy == poptorch.MeanReductionStrategy.Running
    assert options._is_frozen
    other = poptorch.Options()
    compiled = read(poptorch.optim.SGD(parameters, lr=0.1), options=other)
    with pytest.raises(ValueError, match="is already compiled"):
        read(half, compiled, other)
    combined = poptorch.optim.SGD(
        parameters, lr=0.1, accum_type=torch.float16, use_combined_accum=True
    )
    read(combined, options=other)
    strategy = other.Training.meanAccumulationAndReplicationReductionStrategy
    assert strategy == poptorch.MeanReductionStrategy.Post


def test_automatic_scaling_makes_the_loss_scale_variable(parameters):
    options = poptorch.Options()
    options.Training.setAutomaticLossScaling(True)
    assert read(torch.optim.SGD(parameters, lr=0.1), options=options).loss_scaling == (1.0, False)
    ours = read(poptorch.optim.SGD(parameters, lr=0.1), options=options)
    assert ours.loss_scaling == (1.0, False)


@pytest.mark.parametrize(("relaxed", "is_warned"), [(False, True), (True, False)])
def test_attributes_that_appear_later_are_warned_of_once(relaxed, is_warned, parameters, caplog):
    options = poptorch.Options().relaxOptimizerAttributesChecks(relaxed)
    reader = OptimizerReader(options)
    optimizer = poptorch.optim.SGD(parameters, lr=0.1)
    reader.read(optimizer)
    optimizer.param_groups[0]["initial_lr"] = 0.1
    optimizer.speed = 1  # type: ignore[attr-defined]  # that is the point
    with caplog.at_level(logging.WARNING, logger="poptorch::python"):
        reader.read(optimizer)
        reader.read(optimizer)
    assert caplog.text.count("unexpected optimizer attribute") == int(is_warned)
    assert caplog.text.count("unexpected group 0 attribute") == int(is_warned)


def test_the_log_tells_what_is_sent_and_only_when_it_changes(parameters, caplog):
    reader = OptimizerReader(poptorch.Options())
    with caplog.at_level(logging.DEBUG, logger="poptorch::python"):
        reader.read(poptorch.optim.SGD(parameters, lr=0.5, loss_scaling=2.0))
        reader.read(poptorch.optim.SGD(parameters, lr=0.5, loss_scaling=2.0))
        reader.read(poptorch.optim.SGD(parameters, lr=0.25, loss_scaling=2.0))
    graph, group, _, later = [record.getMessage() for record in caplog.records]
    assert graph.startswith("Updating graph optimizer with SGD, accumType=float32, ")
    for words in ("defaultLearningRate=0.5,", "defaultMomentum=0 (const),", "lossScaling=2"):
        assert words in graph
    assert group == (
        "Updating group 0 optimizer with SGD, learningRate=0.5, momentum=0 (const), "
        "dampening=0 (const), weightDecay=0 (const), nesterov=False (const), velocityScaling=2,"
    )
    assert "learningRate=0.25," in later


def test_a_velocity_scaling_of_a_separate_velocity_changes_nothing(parameters):
    compiled = read(poptorch.optim.SGD(parameters, lr=0.5))
    optimizer = poptorch.optim.SGD(parameters, lr=0.5)
    optimizer.param_groups[0]["velocity_scaling"] = 4.0
    assert read(optimizer, compiled) == compiled
