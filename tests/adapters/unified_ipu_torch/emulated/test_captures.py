"""What the emulated PopTorch captures of a model: constants, buffers, losses; what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from unified_ipu_torch.emulated import poptorch


class Counter(torch.nn.Module):
    """A buffer and a tensor that is none, both changed in place."""

    kept: torch.Tensor

    def __init__(self):
        super().__init__()
        self.register_buffer("kept", torch.tensor([1.0]))
        self.constant = torch.tensor([1.0])
        self.number = 0

    def forward(self):
        self.kept += 1.0
        self.constant += 1.0
        self.number += 1
        return self.kept, self.constant * self.number


def test_a_buffer_lives_on_the_device_and_anything_else_is_a_constant():
    model = Counter()
    executor = poptorch.inferenceModel(model)
    results = [[float(value) for value in executor()] for _ in range(3)]
    assert results == [[2.0, 2.0], [3.0, 2.0], [4.0, 2.0]]
    # The host saw the capture once, its own buffer nothing yet.
    assert (model.constant.item(), model.kept.item()) == (2.0, 1.0)
    executor.copyWeightsToHost()
    assert model.kept.item() == 4.0


def test_a_buffer_returned_from_every_iteration_has_its_value_of_that_iteration():
    executor = poptorch.inferenceModel(Counter(), poptorch.Options().deviceIterations(3))
    kept, _ = executor()
    assert kept.tolist() == [2.0, 3.0, 4.0]


class Adds(torch.nn.Module):
    sum: torch.Tensor

    def __init__(self):
        super().__init__()
        self.register_buffer("sum", torch.zeros(1))

    def forward(self, x):
        self.sum.copy_(self.sum + x)
        return self.sum


def test_replicas_keep_buffers_of_their_own_once_broadcasting_is_off():
    opts = poptorch.Options().replicationFactor(2)
    with pytest.raises(poptorch.Error, match="does not support broadcasting buffers"):
        poptorch.inferenceModel(Adds(), opts)(torch.tensor([9.0, 2.0]))
    executor = poptorch.inferenceModel(Adds(), opts.clone().broadcastBuffers(False))
    found = [executor(torch.tensor([9.0, 2.0])).tolist() for _ in range(5)]
    assert found[-1] == [45.0, 10.0]


def test_named_buffers_alone_can_be_sent_again():
    class Model(torch.nn.Module):
        first: torch.Tensor
        second: torch.Tensor

        def __init__(self):
            super().__init__()
            self.register_buffer("first", torch.ones(1))
            self.register_buffer("second", torch.ones(1))

        def forward(self, x):
            return x + 10 * self.first + 100 * self.second

    model = Model()
    executor = poptorch.inferenceModel(model, poptorch.Options().updatableNamedBuffers(["first"]))
    assert executor(torch.zeros(1)).item() == 110.0
    model.first.fill_(2.0)
    model.second.fill_(2.0)
    executor.copyNamedBuffersToDevice()
    assert executor(torch.zeros(1)).item() == 120.0
    unknown = poptorch.Options().updatableNamedBuffers(["third"])
    with pytest.raises(poptorch.Error, match="Invalid updatable buffer third"):
        poptorch.inferenceModel(model, unknown)(torch.zeros(1))


def test_batch_statistics_follow_every_micro_batch():
    model: Any = torch.nn.BatchNorm1d(2, momentum=0.5)
    executor = poptorch.inferenceModel(model, poptorch.Options().deviceIterations(2))
    rows = torch.tensor([[0.0, 2.0], [4.0, 2.0], [8.0, 2.0], [12.0, 2.0]])
    executor(rows)
    executor.copyWeightsToHost()
    # mean 2, then 10: 0.5 * (0.5 * 0 + 0.5 * 2) + 0.5 * 10
    assert model.running_mean.tolist() == [5.5, 1.5]
    assert model.num_batches_tracked.item() == 2


def test_a_layer_that_looks_at_its_batch_sees_micro_batches():
    class Model(torch.nn.Module):
        def forward(self, x):
            return torch.softmax(x, dim=0)

    found = poptorch.inferenceModel(Model(), poptorch.Options().deviceIterations(2))(torch.zeros(4))
    assert found.tolist() == [0.5, 0.5, 0.5, 0.5]


@pytest.mark.parametrize("kind", ["Buffer", "Parameter"])
def test_a_tensor_of_the_state_that_forward_replaces_is_refused_by_name(kind):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("y", torch.tensor([2.0]))
            self.w = torch.nn.Parameter(torch.tensor([2.0]))

        def forward(self, x):
            if kind == "Buffer":
                self.y = x + 1
            else:
                self.w = torch.nn.Parameter(x)
            return x

    model = Model()
    before = dict(model.state_dict())
    with pytest.raises(poptorch.Error, match=f"{kind} . is reassigned within the model"):
        poptorch.inferenceModel(model)(torch.tensor([5.0]))
    assert all(model.state_dict()[name] is not None for name in before)
    assert model.y.item() == 2.0


def test_a_buffer_that_forward_removes_is_refused():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("y", torch.tensor([2.0]))

        def forward(self, x):
            self._buffers.pop("y")
            return x + 1

    with pytest.raises(poptorch.Error, match="Buffer y is removed from the model when calling"):
        poptorch.inferenceModel(Model())(torch.tensor([5.0]))


def test_modules_reached_through_closures_are_trained_too():
    inner = torch.nn.Linear(1, 1)

    class Outer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            return poptorch.identity_loss(inner(x), reduction="sum")

    before = inner.weight.item()
    model = Outer()
    optimizer = torch.optim.SGD(inner.parameters(), lr=0.5)
    executor = poptorch.trainingModel(model, optimizer=optimizer)
    executor(torch.ones(1, 1))
    assert inner.weight.item() == pytest.approx(before - 0.5, abs=1e-6)


def test_tied_weights_get_one_gradient():
    # y = w * (w * x) at w = 3, x = 1: the gradient is 2 w x^2 = 6.
    class Twice(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = torch.nn.Linear(1, 1, bias=False), torch.nn.Linear(1, 1, bias=False)
            self.b.weight = self.a.weight
            with torch.no_grad():
                self.a.weight.fill_(3.0)

        def forward(self, x):
            return poptorch.identity_loss(self.b(self.a(x)), reduction="sum")

    model = Twice()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    executor = poptorch.trainingModel(model, optimizer=optimizer)
    executor(torch.ones(1, 1))
    assert model.a.weight is model.b.weight
    assert model.b.weight.item() == pytest.approx(2.4, rel=1e-6)


def with_loss(function):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(torch.tensor([[1.0, 2.0]]))

        def forward(self, x):
            return function(self.w * x)

    return Model()


F = torch.nn.functional


@pytest.mark.parametrize(
    ("function", "gradient"),
    [
        (lambda y: F.mse_loss(y, torch.zeros(1, 2)), [[1.0, 2.0]]),
        (lambda y: torch.nn.L1Loss(reduction="sum")(y, torch.zeros(1, 2)), [[1.0, 1.0]]),
        # A loss behind another is an ordinary reduction: 3 * mean(y^2), squared and halved.
        (
            lambda y: poptorch.identity_loss(
                3.0 * F.mse_loss(y, torch.zeros(1, 2)), reduction="sum"
            ),
            [[3.0, 6.0]],
        ),
        (
            lambda y: (
                poptorch.identity_loss(
                    poptorch.identity_loss(y, reduction="none") ** 2, reduction="mean"
                ),
                y,
            ),
            [[1.0, 2.0]],
        ),
    ],
)
def test_the_last_loss_is_the_one_that_is_differentiated(function, gradient):
    model = with_loss(function)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    executor = poptorch.trainingModel(model, optimizer=optimizer)
    executor(torch.ones(1, 2))
    found = torch.tensor([[1.0, 2.0]]) - model.w.detach()
    assert found.tolist() == gradient


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda y: y * 12.0, "Couldn't find a loss in graph"),
        (
            lambda y: (F.mse_loss(y, y + 1), poptorch.identity_loss(y, reduction="sum")),
            "Multiple independent losses found in graph",
        ),
        (lambda y: poptorch.identity_loss(y, reduction="none"), "must be a scalar tensor"),
    ],
)
def test_a_training_model_has_one_scalar_loss(function, words):
    with pytest.raises(poptorch.Error, match=words):
        poptorch.trainingModel(with_loss(function))(torch.ones(1, 2))


def test_only_three_reductions_exist():
    with pytest.raises(AssertionError, match="Unsupported reduction type"):
        poptorch.identity_loss(torch.ones(2), reduction="max")


def test_a_weight_that_asks_for_no_gradient_stays_and_one_in_no_group_does_not():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a = torch.nn.Parameter(torch.ones(1))
            self.b = torch.nn.Parameter(torch.ones(1), requires_grad=False)
            self.c = torch.nn.Parameter(torch.ones(1))
            self.d = torch.nn.Parameter(torch.ones(1))

        def forward(self, x):
            return poptorch.identity_loss(self.a * self.b * self.c * x, reduction="sum")

    model = Model()
    optimizer = torch.optim.SGD([{"params": [model.a], "lr": 0.5}], lr=0.25, weight_decay=0.0)
    executor = poptorch.trainingModel(model, optimizer=optimizer)
    executor(torch.ones(1))
    values = [float(p.detach()) for p in (model.a, model.b, model.c, model.d)]
    assert values == [0.5, 1.0, 0.75, 1.0]


def module_of(function):
    class Model(torch.nn.Module):
        def forward(self, x):
            return function(x)

    return Model()


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda x: x * x.sum().item(), "aten::item is only supported in eager mode"),
        (lambda x: x if x.sum() > 0 else -x, "aten::item is only supported in eager mode"),
        (torch.nonzero, "aten::nonzero is not supported"),
        (lambda x: x[x > 0], "aten::index is not supported"),
    ],
)
def test_what_needs_a_value_in_the_middle_of_a_program_is_refused(function, words):
    with pytest.raises(poptorch.Error, match=words):
        poptorch.inferenceModel(module_of(function))(torch.ones(3))


def test_classes_are_encoded_where_their_number_is_given():
    def encoded(x):
        return torch.nn.functional.one_hot(x, 3).float()

    executor = poptorch.inferenceModel(module_of(encoded), poptorch.Options().deviceIterations(2))
    assert executor(torch.tensor([2, 0])).tolist() == [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]
    with pytest.raises(poptorch.Error, match="num classes must be specified"):
        poptorch.inferenceModel(module_of(torch.nn.functional.one_hot))(torch.tensor([2]))


def test_values_of_the_hosts_constants_may_be_read():
    scale = torch.tensor(2.0)
    executor = poptorch.inferenceModel(module_of(lambda x: x * scale.item()))
    assert executor(torch.ones(2)).tolist() == [2.0, 2.0]


def test_integers_have_32_bits_and_no_input_is_empty():
    executor = poptorch.inferenceModel(module_of(lambda x: x + 1))
    with pytest.raises(poptorch.Error, match="the device has int32"):
        executor(torch.tensor([2**40]))
    with pytest.raises(poptorch.Error, match=r"Zero-sized tensors are unsupported \(Got shape \[0"):
        executor(torch.ones(0, 2))


def test_inputs_changed_in_place_change_on_the_host():
    def function(x):
        x += 1
        return x * 2

    given = torch.tensor([1.0, 5.0])
    executor = poptorch.inferenceModel(module_of(function), poptorch.Options().deviceIterations(2))
    assert executor(given).tolist() == [4.0, 12.0]
    assert given.tolist() == [2.0, 6.0]


def test_a_model_knows_where_it_runs():
    assert not poptorch.isRunningOnIpu()
    model = module_of(lambda x: x + 1 if poptorch.isRunningOnIpu() else x - 1)
    executor = poptorch.inferenceModel(model)
    assert [executor(torch.zeros(1)).item() for _ in range(2)] == [1.0, 1.0]
    assert model(torch.zeros(1)).item() == -1.0


def test_an_output_of_constants_only_is_the_hosts_and_is_not_repeated(caplog):
    constant = torch.tensor([1, 2])
    opts = poptorch.Options().deviceIterations(2)
    executor = poptorch.inferenceModel(module_of(lambda x: (x + 1, constant)), opts)
    found = executor(torch.zeros(2))
    assert (found[0].shape, found[1].tolist()) == ((2,), [1, 2])
    assert "Output expected to be on the IPU" in caplog.text


def test_anchored_gradients_are_those_of_each_micro_batch_times_the_loss_scale():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(torch.ones(1))

        def forward(self, x):
            return poptorch.identity_loss(self.w * x, reduction="sum")

    model, opts = Model(), poptorch.Options()
    opts.Training.gradientAccumulation(2)
    opts.anchorTensor("each", "Gradient___w", poptorch.OutputMode.All)
    opts.anchorTensor("new", "UpdatedVar___w")
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.5, loss_scaling=4.0)
    executor = poptorch.trainingModel(model, opts, optimizer)
    with pytest.raises(AssertionError, match="must be compiled"):
        executor.getTensorNames()
    executor(torch.tensor([2.0, 6.0]))
    assert executor.getAnchoredTensor("each").tolist() == [8.0, 24.0]
    assert executor.getAnchoredTensor("new").tolist() == [-1.0]
    assert {"input/x", "loss", "Gradient___w", "UpdatedVar___w"} <= set(executor.getTensorNames())
    with pytest.raises(AssertionError, match="No tensor with name other found"):
        executor.getAnchoredTensor("other")


def test_an_unknown_anchor_is_refused_with_those_there_are():
    opts = poptorch.Options()
    opts.anchorTensor("x", "Relu:0")
    with pytest.raises(poptorch.Error, match="cannot anchor 'Relu:0'"):
        poptorch.inferenceModel(module_of(torch.relu), opts)(torch.ones(1))
