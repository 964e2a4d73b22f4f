"""Each native option of the PopTorch lowering, got wrong once: the numbers are not the host's then.

The emulation sees native settings only, never the plan, so it computes what PopTorch would. Normed
layers make it visible how rows are cut into micro-batches; without them accumulation, replicas and
rows of a micro-batch are one sum. Options of memory, partials, seeds and prefetching change no
number here and are not among the mutants.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import unified_ipu as ui
from tests.adapters.mutated_calls import applied, replaced, without
from tests.adapters.unified_ipu_torch.ipu.parity import change, classes, plan_for, train
from unified_ipu.adapter import host_batch
from unified_ipu_torch.ipu import device, sdk as sdk_module
from unified_ipu_torch.lower_ipu import lower_for_ipu

ROWS = classes(40)  # updates of 16, 16 and 8 rows: one call; two micro-batches are padding
LIMIT = 1e-4  # of parity; what is right stays below a hundredth of it


def normed() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(5, 7), torch.nn.BatchNorm1d(7), torch.nn.Tanh(), torch.nn.Linear(7, 3)
    )


def trained(target: str, **settings: Any) -> Any:
    outcome = train(
        target,
        ROWS,
        model=normed,
        loss=torch.nn.CrossEntropyLoss(),
        # PopART clips the velocity of SGD with momentum, which is refused.
        optimizer=ui.optim.SGD(lr=0.1) if "update__clip_norm" in settings else None,
        schedule=lambda update: 1.0 / (1.0 + update),
        settings=settings,
    )
    weights = {name: w for name, w in outcome["weights"].items() if "running" not in name}
    weights.pop("1.num_batches_tracked")
    return weights, np.array(outcome["losses"])


@pytest.fixture(scope="module")
def host() -> Any:
    plain = trained("cpu")
    return {"": plain, "clipped": trained("cpu", update__clip_norm=0.2)}


def distance(found: Any, expected: Any) -> float:
    losses = np.abs(found[1] / expected[1] - 1.0).max()
    return max(change(found[0], expected[0]), float(losses))


@pytest.mark.parametrize("kind", ["", "clipped"])
def test_l5_without_a_mutant_the_device_is_the_host(host, kind):
    settings = {"update__clip_norm": 0.2} if kind else {}
    assert distance(trained("ipu-emulated", **settings), host[kind]) < LIMIT / 100


OPTIONS = {
    "mean_for_sum": replaced(
        "options.Training.accumulationAndReplicationReductionType", "=poptorch.ReductionType.Mean"
    ),
    "half_the_accumulation": replaced("options.Training.gradientAccumulation", 1),
    "one_long_update": replaced("options.deviceIterations", 1),
    "one_replica": replaced("options.replicationFactor", 1),
    "last_outputs_only": replaced("options.outputMode", "=poptorch.OutputMode.Final"),
    "rates_never_sent": without("poptorch_model.setOptimizer"),
}


@pytest.mark.parametrize("name", list(OPTIONS))
def test_l5_an_option_that_is_wrong_changes_the_numbers(host, monkeypatch, name):
    monkeypatch.setattr(device, "lower_for_ipu", applied(OPTIONS[name], lower_for_ipu))
    assert distance(trained("ipu-emulated"), host[""]) > LIMIT


def test_l5_gradients_summed_in_half_precision_change_the_numbers(host, monkeypatch):
    mutant = replaced("optimizer.accum_type", "=torch.float16")
    monkeypatch.setattr(device, "lower_for_ipu", applied(mutant, lower_for_ipu))
    assert distance(trained("ipu-emulated"), host[""]) > LIMIT / 10


@pytest.mark.parametrize(
    "mutant",
    [without("optimizer.max_grad_norm"), replaced("optimizer.max_grad_norm", 0.4)],
    ids=["not_clipped", "clipped_less"],
)
def test_l5_a_wrong_norm_changes_the_numbers(host, monkeypatch, mutant):
    monkeypatch.setattr(device, "lower_for_ipu", applied(mutant, lower_for_ipu))
    found = trained("ipu-emulated", update__clip_norm=0.2)
    assert distance(found, host["clipped"]) > LIMIT


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("options.Training.gradientAccumulation", 4),
        ("options.deviceIterations", 6),
        ("options.replicationFactor", 4),
    ],
)
def test_counts_that_do_not_divide_what_is_fed_are_refused(monkeypatch, name, value):
    mutant = replaced(name, value)
    monkeypatch.setattr(device, "lower_for_ipu", applied(mutant, lower_for_ipu))
    with pytest.raises(AssertionError, match="Invalid batch dimension"):
        trained("ipu-emulated")


class Counting(torch.nn.Linear):
    seen: torch.Tensor

    def __init__(self) -> None:
        super().__init__(5, 3)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.add_(1.0)
        return super().forward(x)


def test_buffers_that_wait_for_a_broadcast_do_not_compile(monkeypatch):
    mutant = replaced("options.broadcastBuffers", value=True)
    monkeypatch.setattr(device, "lower_for_ipu", applied(mutant, lower_for_ipu))
    error = sdk_module.load_sdk("ipu-emulated").poptorch.Error
    with pytest.raises(error, match="does not support broadcasting buffers"):
        train("ipu-emulated", ROWS, model=Counting, loss=torch.nn.CrossEntropyLoss())


def of_another_update(updates: Any) -> Any:
    moved = [*updates[1:], updates[0]]
    return [replace(u, coefficients=other.coefficients) for u, other in zip(updates, moved)]


def with_padding_counted(updates: Any) -> Any:
    return [replace(u, coefficients=np.full_like(u.coefficients, 1 / 16)) for u in updates]


def divided_by_the_micro_batch(updates: Any) -> Any:
    return [replace(u, coefficients=u.coefficients * u.weight / 4) for u in updates]


def backwards(updates: Any) -> Any:
    return [replace(u, coefficients=u.coefficients[::-1].copy()) for u in updates]


COEFFICIENTS = (of_another_update, with_padding_counted, divided_by_the_micro_batch, backwards)


@pytest.mark.parametrize("mutant", COEFFICIENTS, ids=lambda mutant: mutant.__name__)
def test_l1_coefficients_that_are_wrong_change_the_numbers(host, monkeypatch, mutant):
    run = device.TorchDevice.run

    def wrong(self: Any, updates: Any, **rest: Any) -> Any:
        return run(self, mutant(updates), **rest)

    monkeypatch.setattr(device.TorchDevice, "run", wrong)
    assert distance(trained("ipu-emulated"), host[""]) > LIMIT


def test_l2_rows_with_updates_and_micro_batches_exchanged_change_the_numbers(host, monkeypatch):
    def exchanged(trees: Any) -> Any:
        if len(trees) % 3:
            return host_batch(trees)  # of inference, which has no updates
        return host_batch(
            [tree for first in range(len(trees) // 3) for tree in trees[first :: len(trees) // 3]]
        )

    monkeypatch.setattr(device, "host_batch", exchanged)
    assert distance(trained("ipu-emulated"), host[""]) > LIMIT


def stepped(session: Any) -> Any:
    loss, optimizer = torch.nn.CrossEntropyLoss(), ui.optim.SGD(lr=0.1)
    program = session.compile(torch.nn.Linear(5, 3), loss=loss, optimizer=optimizer)
    for call in session.loader(ROWS):
        program.step(call)
    return program.weights()


def on_two_processes(world: Any, alone: bool) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        if alone:
            mutant = without("options.Distributed.configureProcessId")
            patch.setattr(device, "lower_for_ipu", applied(mutant, lower_for_ipu))
        plan = plan_for("ipu-emulated", mesh__data=4, batch__micro_batch_size=2)
        with ui.Session(plan, world=world, argv=[]) as session:
            torch.manual_seed(0)
            program = session.compile(
                torch.nn.Linear(5, 3),
                loss=torch.nn.CrossEntropyLoss(),
                optimizer=ui.optim.SGD(lr=0.1),
            )
            loader = session.loader(ROWS)
            for call in loader:
                program.step(call)
            return program.weights()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("alone", [False, True], ids=["global", "local"])
def test_l1_replicas_that_reduce_in_their_process_only_change_the_numbers(warm_pool, alone):
    with ui.Session(plan_for("cpu"), argv=[]) as session:
        torch.manual_seed(0)
        expected = stepped(session)
    found = warm_pool.run(on_two_processes, size=2, timeout=60, alone=alone)
    distances = [change(weights, expected) for weights in found]
    if alone:
        assert min(distances) > LIMIT
    else:
        assert max(distances) < LIMIT / 100
