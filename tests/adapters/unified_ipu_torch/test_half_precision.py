"""Mixed precision with torch: what is rounded, what is not, and what is refused."""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import unified_ipu as ui
from unified_ipu.adapter import MicroBatch, Place, Slot
from unified_ipu.comms import local_group as shm_group
from unified_ipu.errors import CapabilityError, ConfigError
from unified_ipu.testing import threads
from unified_ipu.testing.threads import run_ranks
from unified_ipu_torch import convert_sync_batch_norm, create
from unified_ipu_torch.c10d import local_group as c10d_group
from unified_ipu_torch.half_precision import HalfPrecision, widened

HALVES = ["bfloat16", "float16"]
CPU = torch.device("cpu")


def build(model, compute="bfloat16", **job):
    job.setdefault("loss", nn.MSELoss())
    job.setdefault("optimizer", ui.optim.SGD(lr=1.0))
    plan = ui.Plan().replace({"precision.compute": compute})
    return create().build(ui.adapter.Job(model, **job), plan, Place())


def run(replica, *tree, scale=1.0):
    replica.begin_update()
    micro = MicroBatch(0, tree, len(tree[0]))
    replica.forward_backward(micro, scale=scale, seed=0, ready=lambda bucket: None)
    return replica.finish_update()


def linear(value):
    model: Any = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, value)
    return model


def column(*values):
    return np.array(values, np.float32).reshape(-1, 1)


@pytest.mark.parametrize(
    ("compute", "weight"),
    # Each is 1 and a bit more than half a step of its type less than the next number.
    [("bfloat16", 1.0 + 2.0**-9), ("float16", 1.0 + 2.0**-12)],
)
def test_forward_sees_a_rounded_weight_and_the_step_changes_the_whole_one(compute, weight):
    model = linear(weight)
    replica = build(model, compute)
    tally = run(replica, column(1, 1), column(0, 0))
    assert (tally.loss_sum, tally.weight) == (2.0, 2.0), "the weight is 1 in forward"
    assert model.weight.grad.dtype is torch.float32
    assert model.weight.grad.item() == 4.0
    replica.apply(lr_factor=2.0**-16, used=[True])
    assert model.weight.item() == np.float32(weight - 2.0**-14)


def bfloat16(values):
    """Nearest bfloat16 of float64, ties to even, by hand."""
    mantissa, exponent = np.frexp(np.asarray(values, np.float64))
    return np.ldexp(np.rint(mantissa * 256.0) / 256.0, exponent)


def test_gradients_are_those_of_a_float64_oracle_with_rounding():
    random = np.random.default_rng(5)
    x, y = random.normal(size=(8, 6)), random.normal(size=(8, 3))
    weight = random.normal(size=(3, 6))
    model: Any = nn.Linear(6, 3, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.from_numpy(weight))
    tally = run(build(model), x.astype(np.float32), y.astype(np.float32))
    half_x = bfloat16(x.astype(np.float32))
    outputs = bfloat16(half_x @ bfloat16(weight.astype(np.float32)).T)
    difference = outputs - y.astype(np.float32)
    assert tally.loss_sum == pytest.approx((difference**2).sum(), rel=1e-6)
    expected = bfloat16(bfloat16(2.0 * difference).T @ half_x)
    found = model.weight.grad.double().numpy()
    # The sum before the last rounding is in float32, so it may fall on the other side of a tie.
    off = np.abs(found - expected) > 1e-12
    assert off.mean() <= 0.1
    np.testing.assert_allclose(found, expected, rtol=2.0**-7)


@pytest.mark.parametrize("compute", HALVES)
def test_outputs_come_as_float32_in_the_same_type_as_training(compute):
    seen = []

    def distance(outputs, targets):
        seen.append(outputs.dtype)
        return (outputs.mean(), torch.tensor(1.0))

    replica = build(linear(1.0 + 2.0**-12), compute)
    micro = MicroBatch(0, (column(1, 1), column(0, 0)), 2)
    found = replica.evaluate(micro, {"mean": distance}, seed=0)
    assert seen == [torch.float32]
    assert found == {"loss": (2.0, 2.0), "mean": (1.0, 1.0)}
    outputs = replica.predict(micro, seed=0)
    assert outputs.dtype == np.float32
    assert outputs.tolist() == [[1.0], [1.0]]


def test_losses_of_the_user_get_float32_and_run_outside_autocast():
    seen = []

    def loss(outputs, targets):
        seen.append((outputs.dtype, (outputs.t() @ targets).dtype))
        return ((outputs - targets) ** 2).mean()

    run(build(linear(1.0), loss=loss), column(1), column(0))
    assert seen == [(torch.float32, torch.float32)]


def test_an_objective_runs_under_autocast_with_the_users_own_model():
    model = linear(1.0)

    def objective(given, batch):
        assert given is model
        outputs = given(batch[0])
        assert outputs.dtype is torch.float16
        return ui.Loss(outputs.sum(), weight=len(outputs))

    # The seed, 2 ** 17, is no float16; the gradient of the weight is 2 ** 14.
    replica = build(model, "float16", loss=None, objective=objective)
    run(replica, column(0.125), scale=2.0**17)
    assert math.isinf(model.weight.grad.item())
    run(replica, column(0.125), scale=2.0**15)
    assert model.weight.grad.item() == 2.0**12


def test_a_model_that_returns_its_loss_runs_under_autocast():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = linear(1.0)

        def forward(self, x, y):
            outputs = self.inner(x)
            return nn.functional.mse_loss(outputs, y), outputs

    replica = build(Own(), loss=None)
    assert run(replica, column(1), column(0)).loss_sum == 1.0
    outputs = replica.predict(MicroBatch(0, (column(1), column(0)), 1), seed=0)
    assert (outputs.dtype, outputs.tolist()) == (np.float32, [[1.0]])


@pytest.mark.parametrize("compute", HALVES)
def test_weights_are_counted_exactly_in_half_precision(compute):
    rows = 5001  # no number of bfloat16 or float16
    model = nn.Linear(1, 2)
    loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 3.0]), ignore_index=-1)
    targets = np.array([0, 1, -1] * (rows // 3), np.int64)
    tally = run(build(model, compute, loss=loss), np.ones((rows, 1), np.float32), targets)
    assert tally.weight == 1667 * (1.0 + 3.0)


@pytest.mark.parametrize("compute", HALVES)
@pytest.mark.parametrize("reduce", ["float32", "compute"])
@pytest.mark.parametrize("group", [shm_group, c10d_group], ids=["shm", "c10d"])
def test_ranks_reduce_to_the_same_bits_and_to_the_sum(compute, reduce, group, monkeypatch):
    """Gradients of w: rank 0 gives 1 a row, rank 1 gives 2; W = 4."""
    monkeypatch.setattr(threads, "local_group", group)

    def rank(world, communicator):
        plan = ui.Plan().replace(
            {
                "mesh.data": 2,
                "precision": {"compute": compute, "reduce": reduce, "loss_scale": 8.0},
            }
        )
        with ui.Session(plan, world=world, communicator=communicator, argv=[]) as session:
            model: Any = nn.Sequential(linear(0.0), nn.Linear(1, 1))
            nn.init.constant_(model[1].weight, 1.0)
            nn.init.constant_(model[1].bias, 0.0)
            program = session.compile(
                model,
                loss=lambda outputs, targets: (outputs * targets).mean(),
                optimizer=ui.optim.SGD(lr=1.0),
            )
            mine = float(session.rank + 1)
            record = program.step((column(mine, mine), column(1, 1)))
            return model[0].weight.item(), model[1].bias.item(), record.grad_norm

    for weight, bias, norm in run_ranks(2, rank, timeout_seconds=30.0):
        assert (weight, bias) == (-1.5, -1.0)
        assert norm == pytest.approx(math.sqrt(1.5**2 + 1.0), rel=1e-12)


@pytest.mark.parametrize(("clip", "expected"), [(None, -1.5), (24576.0, -0.75)])
def test_what_each_rank_can_hold_in_float16_is_summed_without_overflow(clip, expected):
    """Three ranks reduce 49152 each, which is below 65504 while their sum is not."""

    def rank(world, communicator):
        precision = {"compute": "float16", "reduce": "compute", "loss_scale": 64.0}
        plan = ui.Plan().replace({"mesh.data": 3, "precision": precision, "update.clip_norm": clip})
        with ui.Session(plan, world=world, communicator=communicator, argv=[]) as session:
            model = linear(0.0)
            program = session.compile(
                model,
                loss=lambda outputs, targets: (outputs * targets).mean(),
                optimizer=ui.optim.SGD(lr=2.0**-15),
            )
            record = program.step((column(49152.0), column(1)))
            return model.weight.item(), record.grad_norm, record.skipped

    for found in run_ranks(3, rank, timeout_seconds=30.0):
        assert found == (expected, pytest.approx(49152.0, rel=1e-12), 0)


def test_l3_5_a_run_in_half_precision_is_resumed_bit_for_bit(tmp_path):
    random = np.random.default_rng(4)
    x = random.normal(size=(40, 6)).astype(np.float32)
    y = random.integers(0, 3, (40, 50))  # 50 units a row, so W is not G

    def rank(world, communicator, *, resumed):
        precision = {"compute": "float16", "reduce": "compute", "loss_scale": "dynamic"}
        batch = {"global_batch_size": 10, "micro_batch_size": 3}
        plan = ui.Plan().replace({"mesh.data": 2, "precision": precision, "batch": batch})
        with ui.Session(plan, world=world, communicator=communicator, argv=[]) as session:
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(6, 150), nn.Unflatten(1, (3, 50)))
            program = session.compile(
                model, loss=nn.CrossEntropyLoss(), optimizer=ui.optim.AdamW(lr=0.01)
            )
            loader = session.loader((x, y))
            if resumed:
                session.restore(tmp_path, model=program, train=loader)
            records = []
            for call in loader:
                records.append(program.step(call))
                if program.update == 2 and not resumed:
                    session.save(tmp_path, model=program, train=loader)
            state = program.executor.scalars()["loss_scale"]
            weights = [value.tobytes() for value in program.weights().values()]
            return weights, [record.loss_sum for record in records[-2:]], state, len(records)

    whole = run_ranks(2, lambda *given: rank(*given, resumed=False), timeout_seconds=30.0)
    rest = run_ranks(2, lambda *given: rank(*given, resumed=True), timeout_seconds=30.0)
    assert [one[:3] for one in rest] == [one[:3] for one in whole]
    assert (whole[0][3], rest[0][3]) == (4, 2)
    assert whole[0][2] == {
        "value": 65536.0,
        "updates_since_change": 4,
        "largest_weight": 500.0,
    }


def test_sums_of_small_gradients_are_made_in_float32():
    """2 ** -8 is lost beside 1 in bfloat16, 64 of them are not."""
    model = linear(0.0)
    replica = build(model, loss=lambda outputs, targets: (outputs * targets).mean())
    buffer = np.zeros(32, np.uint16)
    replica.bind([Slot("weight", 0, 0, (1, 1))], [buffer])
    replica.begin_update()
    for index, value in enumerate([1.0] + 64 * [2.0**-8]):
        micro = MicroBatch(index, (column(value), column(1)), 1)
        replica.forward_backward(micro, scale=1.0, seed=0, ready=lambda bucket: None)
    replica.finish_update()
    assert buffer[0] == 0x3FA0, "1.25 as bfloat16"
    assert not buffer[1:].any()


def test_float64_parameters_are_refused_since_autocast_leaves_them():
    with pytest.raises(ConfigError, match=r"'weight' has dtype torch.float64; precision.compute"):
        build(linear(1.0).double())


def test_a_type_that_this_torch_cannot_autocast_to_is_refused(monkeypatch):
    class Nothing:
        def __enter__(self):
            pass

        def __exit__(self, *error):
            pass

    monkeypatch.setattr(HalfPrecision, "autocast", lambda self: Nothing())
    with pytest.raises(CapabilityError, match="no autocast to float16 on cpu; set precision"):
        HalfPrecision("float16", CPU)


def test_an_operation_that_mixes_types_is_named_at_the_first_batch():
    class Paired(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(2, 2)
            self.pair = nn.Bilinear(2, 2, 1)

        def forward(self, x):
            found = self.first(x)
            return self.pair(found, found)

    with pytest.raises(
        CapabilityError, match=r"F\.bilinear.*in half precision here.*enabled=False"
    ):
        run(build(Paired()), np.ones((2, 2), np.float32), column(0, 0))


def test_an_operation_without_a_kernel_is_named_at_the_first_batch():
    class Lost(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = linear(1.0)

        def forward(self, x):
            message = "\"lost_cpu\" not implemented for 'Half'"
            raise RuntimeError(message)

    with pytest.raises(CapabilityError, match="lost_cpu cannot be run in half precision"):
        run(build(Lost(), "float16"), column(1), column(0))


class Outputs(OrderedDict):
    """Items as attributes too, as many libraries return them."""

    def __setitem__(self, key, value):
        super().__setitem__(key, value)
        super().__setattr__(key, value)


def test_widened_outputs_keep_their_containers():
    half = torch.ones(1, dtype=torch.bfloat16)
    found: Any = widened(Outputs(logits=half, count=torch.ones(1, dtype=torch.int64)))
    assert type(found) is Outputs
    assert found["logits"].dtype is getattr(found, "logits").dtype is torch.float32  # noqa: B009
    assert found["count"].dtype is torch.int64
    assert [one.dtype for one in widened([half])] == [torch.float32]
    assert widened((half, "text", None))[1:] == ("text", None)
    assert half.dtype is torch.bfloat16


def test_common_layers_train_in_both_types():
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(7, 8)
            self.rnn = nn.GRU(8, 8, batch_first=True)
            self.attend = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
            self.conv = nn.Conv1d(8, 8, 3)
            self.norm = nn.BatchNorm1d(8)
            self.head = nn.Linear(8, 3)

        def forward(self, tokens):
            found = self.attend(self.rnn(self.embed(tokens))[0])
            found = self.norm(self.conv(found.transpose(1, 2)))
            return self.head(torch.relu(found).mean(2))

    tokens = np.arange(24).reshape(4, 6) % 7
    targets = np.array([0, 1, 2, 0])
    for compute in HALVES:
        torch.manual_seed(0)
        replica = build(Mixed(), compute, loss=nn.CrossEntropyLoss())
        plain = build(Mixed(), "float32", loss=nn.CrossEntropyLoss())
        plain.write(replica.read([s.name for s in replica.tensors() if s.role != "slot"]))
        tally, expected = run(replica, tokens, targets), run(plain, tokens, targets)
        assert all(tally.used)
        assert tally.loss_sum == pytest.approx(expected.loss_sum, rel=0.02)
        assert replica.squared_norm() == pytest.approx(plain.squared_norm(), rel=0.2)


def test_batch_norm_over_replicas_forms_its_statistics_in_float32():
    """The square of 500 is no float16."""

    def rank(world, communicator):
        norm: Any = convert_sync_batch_norm(nn.BatchNorm1d(1), communicator)
        rows = torch.tensor([[1000.0 * world.rank]], dtype=torch.float16, requires_grad=True)
        found = norm(rows)
        found.sum().backward()
        return found.dtype, found.item(), norm.running_var.item(), rows.grad

    for number, (dtype, value, variance, gradient) in enumerate(
        run_ranks(2, rank, timeout_seconds=20.0)
    ):
        assert (dtype, value) == (torch.float16, 2.0 * number - 1.0)
        assert variance == pytest.approx(0.9 + 0.1 * 500000.0, rel=1e-6)
        assert (gradient.dtype, gradient.item()) == (torch.float16, 0.0)
