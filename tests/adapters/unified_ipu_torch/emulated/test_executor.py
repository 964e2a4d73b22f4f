"""Life of an emulated ``PoplarExecutor``: compile, copies, optimizers, devices, destruction."""

from __future__ import annotations

import copy
import datetime as dt
import io
import logging
from typing import Any

import pytest
import torch

from unified_ipu_torch.emulated import poptorch

X, TARGET = torch.ones(4, 2), torch.zeros(4, 1)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.layer = torch.nn.Linear(2, 1)
        self.loss = torch.nn.MSELoss()

    def forward(self, x, target=None):
        out = self.layer(x)
        return out if target is None else (out, self.loss(out, target))


def sgd(model, lr=0.1, **settings):
    return torch.optim.SGD(model.parameters(), lr=lr, **settings)


def by_hand(steps, lr=0.1):
    """Plain torch, one step a micro-batch."""
    model = Net()
    optimizer = sgd(model, lr)
    for _ in range(steps):
        optimizer.zero_grad()
        model(X, TARGET)[1].backward()
        optimizer.step()
    return model.layer.weight.detach()


def count_copies(executor):
    real, calls = executor.copyWeightsToHost, []

    def counted():
        calls.append(1)
        real()

    executor.copyWeightsToHost = counted
    return calls


def test_compilation_checks_and_changes_nothing():
    model = Net()
    before = copy.deepcopy(model.state_dict())
    executor = poptorch.trainingModel(model, optimizer=sgd(model))
    assert not executor.isCompiled()
    executor.compile(X, TARGET)
    assert (executor.isCompiled(), executor.isAttachedToDevice()) == (True, True)
    executor.copyWeightsToHost()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_trained_model_equals_plain_torch_whichever_way_it_is_read():
    expected = by_hand(3)
    reads = [
        lambda m: m.layer.weight.detach().clone(),
        lambda m: m.state_dict()["layer.weight"],
        lambda m: dict(m.named_parameters())["layer.weight"].data,
        lambda m: next(m.parameters()) + 0.0,
        lambda m: copy.deepcopy(m).layer.weight,
    ]
    for read in reads:
        model = Net()
        executor = poptorch.trainingModel(model, optimizer=sgd(model))
        copies = count_copies(executor)
        for _ in range(3):
            executor(X, TARGET)
        assert copies == []
        torch.testing.assert_close(read(model).detach(), expected, rtol=1e-6, atol=0)
        read(model)
        assert copies == [1]


def test_text_and_comparison_of_a_weight_fetch_it_too():
    model = Net()
    executor = poptorch.trainingModel(model, optimizer=sgd(model))
    start, text = model.layer.weight.detach().clone(), str(model.layer.weight)
    executor(X, TARGET)
    assert not torch.equal(start, model.layer.weight)
    executor(X, TARGET)
    assert str(model.layer.weight) != text


def test_a_checkpoint_loads_where_there_is_no_poptorch():
    model = Net()
    executor = poptorch.trainingModel(model, optimizer=sgd(model))
    executor(X, TARGET)
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    buffer.seek(0)
    state = torch.load(buffer, weights_only=True)
    assert type(state["layer.weight"]) is not type(model.layer.weight)
    plain = Net()
    plain.load_state_dict(state)
    assert torch.equal(plain.layer.weight, by_hand(1))
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    loaded = torch.load(buffer, weights_only=False)
    assert (type(loaded), type(loaded.layer.weight)) == (Net, torch.nn.Parameter)
    assert torch.equal(loaded.layer.weight, by_hand(1))


def test_weights_go_to_the_device_only_when_asked():
    model = Net()
    executor = poptorch.inferenceModel(model)
    before = executor(X)
    with torch.no_grad():
        model.layer.weight.zero_()
        model.layer.bias.fill_(5.0)
    assert torch.equal(executor(X), before)
    executor.copyWeightsToDevice()
    assert executor(X).flatten().tolist() == [5.0] * 4
    executor.load_state_dict({**model.state_dict(), "layer.bias": torch.tensor([7.0])})
    assert executor(X).flatten().tolist() == [7.0] * 4


def test_an_upload_overwrites_what_the_device_learnt():
    model = Net()
    start = model.layer.weight.detach().clone()
    executor = poptorch.trainingModel(model, optimizer=sgd(model))
    executor(X, TARGET)
    executor.copyWeightsToDevice()
    assert torch.equal(model.layer.weight, start)


@pytest.mark.parametrize("inference_first", [True, False])
def test_training_and_inference_of_one_model_share_weights(inference_first):
    model = Net()
    inference = poptorch.inferenceModel(model) if inference_first else None
    training = poptorch.trainingModel(model, optimizer=sgd(model))
    inference = inference or poptorch.inferenceModel(model)
    before = inference(X)
    training(X, TARGET)
    after = inference(X)
    assert not torch.equal(after, before)
    host = Net()
    host.load_state_dict(model.state_dict())
    torch.testing.assert_close(after, host(X).detach())


def test_a_changed_learning_rate_needs_set_optimizer():
    model = Net()
    optimizer = sgd(model)
    executor = poptorch.trainingModel(model, optimizer=optimizer)
    executor.compile(X, TARGET)
    optimizer.param_groups[0]["lr"] = 0.0
    executor(X, TARGET)
    trained = model.layer.weight.detach().clone()
    torch.testing.assert_close(trained, by_hand(1), rtol=1e-6, atol=0)
    executor.setOptimizer(optimizer)
    executor(X, TARGET)
    assert torch.equal(model.layer.weight, trained)


def test_a_constant_of_the_program_cannot_change():
    model = Net()
    executor = poptorch.trainingModel(model, optimizer=sgd(model))
    executor(X, TARGET)
    with pytest.raises(poptorch.Error, match="momentum"):
        executor.setOptimizer(sgd(model, momentum=0.9))


def test_the_default_optimizer_is_sgd_with_a_hundredth():
    model = Net()
    poptorch.trainingModel(model)(X, TARGET)
    torch.testing.assert_close(model.layer.weight.detach(), by_hand(1, 0.01), rtol=1e-6, atol=0)


def test_devices_are_taken_and_given_back():
    model = Net()
    executor = poptorch.trainingModel(model, optimizer=sgd(model))
    with pytest.raises(poptorch.Error, match="Model has not been compiled or has been destroyed"):
        executor.detachFromDevice()
    executor(X, TARGET)
    with pytest.raises(poptorch.Error, match="Device is already attached"):
        executor.attachToDevice()
    copies = count_copies(executor)
    executor.detachFromDevice()
    assert (copies, executor.isAttachedToDevice(), executor.isCompiled()) == ([1], False, True)
    with pytest.raises(poptorch.Error, match="Device is not attached"):
        executor.detachFromDevice()
    executor(X, TARGET)  # attaches by itself
    assert executor.isAttachedToDevice()
    torch.testing.assert_close(model.layer.weight.detach(), by_hand(2), rtol=1e-6, atol=0)


def test_a_model_is_wrapped_for_training_once_until_it_is_destroyed():
    model = Net()
    executor = poptorch.trainingModel(model, optimizer=sgd(model))
    assert type(model).__name__ == "PoptorchNet"
    with pytest.raises(RuntimeError, match=r"already been wrapped in 'poptorch.trainingModel'"):
        poptorch.trainingModel(model)
    executor(X, TARGET)
    executor.destroy()
    assert type(model) is Net
    assert type(model.layer.weight) is torch.nn.Parameter
    assert not executor.isCompiled()
    with pytest.raises(poptorch.Error, match="Model has not been compiled or has been destroyed"):
        executor.copyWeightsToHost()
    torch.testing.assert_close(model.layer.weight.detach(), by_hand(1), rtol=1e-6, atol=0)
    second = poptorch.trainingModel(model, optimizer=sgd(model))
    second(X, TARGET)
    torch.testing.assert_close(model.layer.weight.detach(), by_hand(2), rtol=1e-6, atol=0)


def test_calls_after_compilation_take_the_same_shapes_and_types_only():
    executor = poptorch.inferenceModel(Net())
    executor(X)
    with pytest.raises(poptorch.Error, match=r"Shape mismatch for x: expected .*4, 2.*3, 2"):
        executor(torch.ones(3, 2))
    with pytest.raises(poptorch.Error, match=r"expected torch.float32 but got torch.int64"):
        executor(torch.ones(4, 2, dtype=torch.int64))
    with pytest.raises(poptorch.Error, match="Type mismatch for target"):
        executor(X, TARGET)


def test_options_are_frozen_by_a_model_and_its_clone_is_not():
    options = poptorch.Options()
    poptorch.inferenceModel(Net(), options)
    poptorch.inferenceModel(Net(), options)
    with pytest.raises(AttributeError, match="Can't modify frozen Options"):
        options.deviceIterations(2)
    assert options.clone().deviceIterations(2).device_iterations == 2


def test_wrong_arguments_of_the_constructors_are_refused():
    no_options: Any = {"device_iterations": 2}
    with pytest.raises(poptorch.Error, match=r"Expected poptorch.Options"):
        poptorch.inferenceModel(Net(), no_options)
    model = Net()
    stranger = torch.optim.SGD([torch.nn.Parameter(torch.ones(3))], lr=0.1)
    executor = poptorch.trainingModel(model, optimizer=stranger)
    with pytest.raises(poptorch.Error, match=r"parameter of shape \(3,\) that the model does not"):
        executor(X, TARGET)


def test_flags_of_modules_are_those_of_the_first_call():
    class Drop(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.drop = torch.nn.Dropout(0.5)

        def forward(self, x):
            return self.drop(x)

    model = Drop()
    executor = poptorch.inferenceModel(model)
    model.eval()
    assert torch.equal(executor(torch.ones(99)), torch.ones(99))
    model.train()
    assert torch.equal(executor(torch.ones(99)), torch.ones(99))


def test_offline_targets_compile_and_never_run():
    executor = poptorch.inferenceModel(Net(), poptorch.Options().useOfflineIpuTarget())
    executor.compile(X)
    assert not executor.isAttachedToDevice()
    with pytest.raises(AssertionError, match="offline device"):
        executor(X)


def test_backward_on_an_output_is_refused():
    _, loss = poptorch.trainingModel(Net())(X, TARGET)
    with pytest.raises(poptorch.Error, match=r"backward\(\) cannot be called explicitly"):
        loss.backward()


def test_inputs_that_want_a_gradient_are_detached_with_a_warning(caplog):
    with caplog.at_level(logging.WARNING, logger="poptorch::python"):
        poptorch.inferenceModel(Net())(X.clone().requires_grad_())
    assert "will be detached" in caplog.text


def test_random_state_can_be_read_and_set_back():
    class Noise(torch.nn.Module):
        def forward(self, x):
            return x + torch.rand_like(x)

    executor = poptorch.inferenceModel(Noise(), poptorch.Options().randomSeed(5))
    executor(torch.zeros(3))
    state = executor.rng_state
    expected = executor(torch.zeros(3))
    executor.rng_state = state
    assert torch.equal(executor(torch.zeros(3)), expected)
    assert state[0] == 5


def test_files_of_programs_are_refused_by_name():
    executor = poptorch.inferenceModel(Net())
    for refused in (executor.compileAndExport, executor.loadExecutable, poptorch.load):
        with pytest.raises(poptorch.Error, match="not written to files"):
            refused("model.poptorch")


def test_times_have_the_structure_of_the_sdk():
    opts = poptorch.Options().deviceIterations(4).outputMode(poptorch.OutputMode.Final)
    executor = poptorch.inferenceModel(Net(), opts)
    assert executor.getLatency() == (0.0, 0.0, 0.0)
    executor(torch.ones(4, 2))
    counters = executor.getPerfCounters()
    assert [len(times) for times in counters["input"]] == [4]
    assert [len(times) for times in counters["output_complete"]] == [1]
    for low, high, mean in (executor.getLatency(), executor.getComputeLatency()):
        assert 0.0 < low <= mean <= high
    assert executor.compilationTime() > dt.timedelta(0)
    with pytest.raises(poptorch.Error, match="Cycle count logging is disabled"):
        executor.cycleCount()


def test_hooks_are_called_around_a_compilation():
    calls = []
    before = poptorch.registerPreCompileHook(lambda: calls.append("before"))
    after = poptorch.registerPostCompileHook(lambda: calls.append("after"))
    try:
        executor = poptorch.inferenceModel(Net())
        executor(X)
        executor(X)
    finally:
        before.remove()
        after.remove()
    assert calls == ["before", "after"]
