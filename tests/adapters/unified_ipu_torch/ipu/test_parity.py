"""The emulated PopTorch device against the host target: one update law, one set of numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional

import unified_ipu as ui
from tests.adapters.unified_ipu_torch.ipu.parity import (
    change,
    check,
    classes,
    mlp,
    plan_for,
    train,
    values,
)


@pytest.mark.parametrize(
    ("rows", "replicas", "updates"), [(16, 1, 1), (8, 1, 1), (2, 4, 1), (2, 2, 2), (1, 2, 1)]
)
@pytest.mark.parametrize(("reduction", "after"), [("mean", 187.0), ("sum", 2992.0)])
def test_l1_a_mean_loss_gives_187_however_the_batch_is_split(
    rows, replicas, updates, reduction, after
):
    # Under PopTorch's Sum a mean loss gives 187, 748, 1496 or 2992, by the split.
    def zero():
        model = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.zeros_(model.weight)
        return model

    numbers = np.arange(1, 17, dtype=np.float32).reshape(-1, 1)
    found = train(
        "ipu-emulated",
        (numbers, numbers),
        model=zero,
        loss=torch.nn.MSELoss(),
        optimizer=ui.optim.SGD(lr=1.0),
        epochs=1,
        settings={
            "batch__micro_batch_size": rows,
            "batch__updates_per_call": updates,
            "ipu__replicas_per_process": replicas,
            "mesh__data": replicas,
            "update__reduction": reduction,
        },
    )
    assert found["weights"]["weight"].item() == pytest.approx(after, rel=1e-6)
    assert found["losses"] == pytest.approx([93.5], rel=1e-6)


def test_l5_fifty_updates_of_a_small_network_stay_within_the_bar():
    host, device = check(
        classes(3180, count=10),
        within=1e-4,
        model=lambda: mlp(10),
        loss=torch.nn.CrossEntropyLoss(),
        optimizer=ui.optim.SGD(lr=0.05, momentum=0.9, weight_decay=1e-4),
        epochs=1,
        settings={
            "batch__global_batch_size": 64,
            "batch__micro_batch_size": 8,
            "batch__updates_per_call": 5,
        },
    )
    assert sum(updates for *_, updates, _ in device["exact"]) == 50
    assert str(device["certificate"]) == "3180 of 3180 samples, each once, 20 rows of padding"
    assert host["certificate"].padded == 20


OPTIMIZERS = (
    ui.optim.SGD(lr=0.1, weight_decay=0.1),
    ui.optim.SGD(lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    ui.optim.Adam(lr=0.01, betas=(0.8, 0.9), eps=1e-3, weight_decay=0.1),
    ui.optim.AdamW(lr=0.01, weight_decay=0.5),
)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=repr)
def test_l5_every_optimizer_of_ours_makes_the_hosts_updates(optimizer):
    check(
        classes(50),
        model=mlp,
        loss=torch.nn.CrossEntropyLoss(),
        optimizer=optimizer,
        schedule=lambda update: 1.0 / (1 + update),
        settings={"update__warmup_updates": 2},
    )


def test_l5_native_groups_and_schedulers_are_sent_before_every_call():
    def groups(net):
        return torch.optim.SGD(
            [
                {"params": net[0].parameters(), "lr": 0.2, "momentum": 0.5},
                {"params": net[2].parameters()},
            ],
            lr=0.05,
        )

    _, device = check(
        classes(50),
        model=mlp,
        loss=torch.nn.CrossEntropyLoss(),
        optimizer=groups,
        native_schedule=lambda made: torch.optim.lr_scheduler.StepLR(made, 2, gamma=0.5),
    )
    assert len({lr for _, _, lr, *_ in device["exact"]}) > 1


CLIPPED_ADAM = ui.optim.AdamW(lr=0.01, eps=1e-3)


@pytest.mark.parametrize(
    ("settings", "optimizer"),
    [
        ({"update__clip_norm": 0.05}, ui.optim.SGD(lr=0.1)),
        ({"precision__loss_scale": 128.0}, ui.optim.SGD(lr=0.1, momentum=0.9)),
        ({"precision__loss_scale": 1024.0, "update__clip_norm": 0.05}, CLIPPED_ADAM),
    ],
    ids=["clipped", "scaled", "both"],
)
def test_l5_norms_are_clipped_and_losses_scaled_as_on_the_host(settings, optimizer):
    check(
        classes(40),
        model=mlp,
        loss=torch.nn.CrossEntropyLoss(),
        optimizer=optimizer,
        settings=settings,
    )


LOSSES = {
    "class weights and ignored targets": (
        torch.nn.CrossEntropyLoss(torch.tensor([0.5, 1.0, 2.0]), ignore_index=1),
        "classes",
        3,
    ),
    "several elements a row": (torch.nn.MSELoss(), "values", 2),
    "a sum": (torch.nn.L1Loss(reduction="sum"), "values", 2),
    "rows of a batchmean": (torch.nn.HuberLoss(), "values", 2),
    "one of ours": (ui.losses.softmax_cross_entropy(class_weights=(1.0, 2.0, 0.0)), "classes", 3),
    "a function": (functional.smooth_l1_loss, "values", 2),
}


@pytest.mark.parametrize("name", LOSSES)
def test_l1_known_losses_weigh_as_on_the_host_and_carry_padding(name):
    loss, kind, outputs = LOSSES[name]
    batch = classes(37) if kind == "classes" else values(37)
    check(batch, model=lambda: mlp(outputs), loss=loss)


def test_l1_sample_weights_and_padding_go_together():
    x, y = values(21)
    check(
        (x, y, np.linspace(0, 2, 21).astype(np.float32)),
        model=lambda: mlp(2),
        loss=torch.nn.MSELoss(),
    )


def test_l1_a_loss_of_rows_carries_padding():
    check(
        values(37),
        model=lambda: mlp(2),
        loss=lambda outputs, targets: ((outputs - targets) ** 2).sum(1),
        loss_reduction="none",
    )


def test_l1_an_opaque_mean_takes_the_weight_that_the_user_counts():
    check(
        values(32),
        model=lambda: mlp(2),
        loss=lambda outputs, targets: (outputs - targets).abs().mean(),
        weight=lambda batch: float((batch[1][:, 0] > 0).sum()) + 1.0,
        settings=DROPPED,
    )


def test_l6_the_ragged_end_of_an_evaluation_needs_no_loss_of_rows():
    host, device = check(
        values(32),
        model=lambda: mlp(2),
        loss=lambda outputs, targets: (outputs - targets).abs().mean(),
        test=values(13),
        metrics={"rows": lambda outputs, targets: (len(outputs), 1)},
        settings=DROPPED,
    )
    assert device["evaluation"] == pytest.approx(host["evaluation"], rel=1e-5)


DROPPED = {"batch__remainder": "drop"}
"""Of training; an evaluation on the host then has a short end, on the device a filled one."""


class WithLoss(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = mlp(2)

    def forward(self, x, targets):
        outputs = self.net(x)
        return functional.mse_loss(outputs, targets), outputs


def test_l1_a_model_that_returns_its_loss():
    host, device = check(values(32), model=WithLoss, loss=None, test=values(13), settings=DROPPED)
    assert device["evaluation"]["loss"] == pytest.approx(host["evaluation"]["loss"], rel=1e-5)
    np.testing.assert_allclose(device["prediction"], host["prediction"], rtol=1e-4, atol=1e-6)


def masked(model, batch):
    outputs = model(batch["x"])[:, 0]
    total = (batch["mask"] * (outputs - 1.0) ** 2).sum()
    return ui.Loss(
        sum=total, weight=batch["mask"].sum(), metrics={"x": (outputs.sum(), len(outputs))}
    )


def masks(size):
    rng = np.random.default_rng(2)
    mask = (rng.random(size) < 0.7).astype(np.float32)
    return {"x": values(size)[0], "mask": mask}


def test_l1_an_objective_whose_weight_the_batch_tells():
    batch = masks(32)
    batch["mask"][:4] = 0.0
    host, device = check(
        batch,
        model=mlp,
        objective=masked,
        weight=lambda part: float(part["mask"].sum()),
        test=masks(11),
        settings=DROPPED,
    )
    for one, other in zip(device["metrics"], host["metrics"]):
        assert one["x"] == pytest.approx(other["x"], rel=1e-5)
    assert device["evaluation"] == pytest.approx(host["evaluation"], rel=1e-5)


def test_l1_updates_without_weight_are_left_out_and_calls_are_shorter():
    x, y = classes(96)
    y[16:32], y[64:96] = -100, -100
    settings = {"data__shuffle": False}
    _, device = check(
        (x, y), model=mlp, loss=torch.nn.CrossEntropyLoss(), settings=settings, epochs=1
    )
    assert [(updates, skipped) for *_, updates, skipped in device["exact"]] == [(2, 1), (1, 2)]


class Normed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm = torch.nn.Linear(5, 6), torch.nn.BatchNorm1d(6)
        self.head = torch.nn.Linear(6, 3)

    def forward(self, x):
        return self.head(self.norm(self.first(x)).relu())


def test_l5_running_statistics_come_back_from_one_replica():
    one = {"mesh__data": 1, "ipu__replicas_per_process": 1}
    host, device = check(
        classes(48),
        model=Normed,
        loss=torch.nn.CrossEntropyLoss(),
        settings=one,
        test=classes(9),
    )
    for name in ("norm.running_mean", "norm.running_var", "norm.num_batches_tracked"):
        np.testing.assert_allclose(device["own"][name], host["own"][name], rtol=1e-4, atol=1e-6)


class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = torch.nn.Linear(5, 5, bias=False), torch.nn.Linear(5, 5, bias=False)
        self.two.weight = self.one.weight
        self.frozen = torch.nn.Linear(5, 3)
        self.unused = torch.nn.Parameter(torch.ones(2))

    def forward(self, x):
        return self.frozen(self.two(self.one(x).tanh()))


def test_l1_tied_weights_count_once_and_what_is_not_trained_stays():
    host, device = check(
        classes(32), model=Tied, loss=torch.nn.CrossEntropyLoss(), trainable=["one.weight"]
    )
    assert change(device["own"], host["own"]) < 2e-6
    torch.manual_seed(3)
    fresh = Tied().state_dict()
    for name in ("frozen.weight", "frozen.bias", "unused"):
        assert device["own"][name].tobytes() == fresh[name].numpy().tobytes()


class TwoInputs(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = mlp(2)

    def forward(self, x, shift):
        outputs = self.net(x) + shift[:, None].float()
        return {"sum": outputs.sum(1), "both": outputs}


def test_l6_dicts_go_in_and_come_out_in_the_order_of_the_samples():
    x, y = values(21)
    batch = ({"x": x, "shift": np.arange(21, dtype=np.int64)}, y)
    host, device = check(
        batch,
        model=TwoInputs,
        loss=lambda outputs, targets: ((outputs["both"] - targets) ** 2).mean(1),
        loss_reduction="none",
        optimizer=ui.optim.SGD(lr=0.001),
        test=batch,
        metrics={"large": lambda outputs, targets: ((outputs["sum"] > 0).sum(), len(targets))},
    )
    assert device["evaluation"] == pytest.approx(host["evaluation"], rel=1e-4)
    for name in ("sum", "both"):
        np.testing.assert_allclose(
            device["prediction"][name], host["prediction"][name], rtol=1e-4, atol=1e-5
        )


def test_l3_a_run_goes_on_inside_an_epoch_bit_by_bit(tmp_path):
    def fit(**arguments):
        with ui.Session(plan_for("ipu-emulated"), argv=[]) as session:
            torch.manual_seed(3)
            net = mlp()
            program = session.compile(
                net, loss=torch.nn.CrossEntropyLoss(), optimizer=ui.optim.AdamW(lr=0.01)
            )
            program.fit(session.loader(classes(100)), epochs=2, **arguments)
            return {name: value.numpy().copy() for name, value in net.state_dict().items()}

    whole = fit()
    fit(checkpoint=tmp_path / "run", max_updates=8)
    resumed = fit(checkpoint=tmp_path / "run", resume=True)
    assert {n: v.tobytes() for n, v in resumed.items()} == {
        n: v.tobytes() for n, v in whole.items()
    }


def test_l3_a_run_moves_between_host_and_device(tmp_path):
    def fit(target, epochs, **arguments):
        with ui.Session(plan_for(target), argv=[]) as session:
            torch.manual_seed(3)
            program = session.compile(
                mlp(), loss=torch.nn.CrossEntropyLoss(), optimizer=ui.optim.Adam(lr=0.01)
            )
            program.fit(session.loader(classes(60)), epochs=epochs, **arguments)
            return program.weights()

    whole = fit("cpu", 3)
    fit("cpu", 1, checkpoint=tmp_path / "run")
    fit("ipu-emulated", 2, checkpoint=tmp_path / "run", resume=True)
    assert change(fit("cpu", 3, checkpoint=tmp_path / "run", resume=True), whole) < 2e-6


def on_two_processes(world):
    plan = plan_for("ipu-emulated", mesh__data=4, batch__micro_batch_size=2)
    with ui.Session(plan, world=world, argv=[]) as session:
        torch.manual_seed(session.rank)  # the first process's weights are everybody's
        program = session.compile(
            mlp(), loss=torch.nn.CrossEntropyLoss(), optimizer=ui.optim.SGD(lr=0.1, momentum=0.9)
        )
        train_loader = session.loader(classes(50))
        program.fit(train_loader, epochs=2)
        evaluation = program.evaluate(session.loader(classes(13), train=False))
        return program.weights(), evaluation, str(train_loader.certificate())


@pytest.mark.timeout(120)
def test_l1_replicas_of_two_processes_make_one_update(warm_pool):
    found = warm_pool.run(on_two_processes, size=2, timeout=60)
    assert found[0][1:] == found[1][1:]
    plan = plan_for("cpu")
    with ui.Session(plan, argv=[]) as session:
        torch.manual_seed(0)
        program = session.compile(
            mlp(), loss=torch.nn.CrossEntropyLoss(), optimizer=ui.optim.SGD(lr=0.1, momentum=0.9)
        )
        program.fit(session.loader(classes(50)), epochs=2)
        for weights, evaluation, certificate in found:
            assert change(weights, program.weights()) < 2e-6
            expected = program.evaluate(session.loader(classes(13), train=False))
            assert evaluation == pytest.approx(expected, rel=1e-5)
            assert certificate == "50 of 50 samples, each once, 14 rows of padding"
