"""Synchronised batch norm against torch's own over all rows at once, and in a session."""

from __future__ import annotations

import copy
import io
from typing import Any, Dict

import numpy as np
import pytest
import torch
from torch import nn

from unified_ipu import Session, data
from unified_ipu.adapter import Job, Place
from unified_ipu.errors import ConfigError, DataError, PeerLostError
from unified_ipu.plan import Plan
from unified_ipu.testing.threads import RanksFailedError, run_ranks
from unified_ipu_torch import SyncBatchNorm, convert_sync_batch_norm
from unified_ipu_torch.adapter import TorchAdapter


@pytest.mark.case("O-M1")
def test_unequal_batches_have_one_mean_and_one_variance():
    def run(world, communicator):
        norm = SyncBatchNorm(1, communicator, dtype=torch.float64)
        rows = [0.0, 2.0, 4.0] if world.rank == 0 else [10.0]
        outputs = norm(torch.tensor(rows, dtype=torch.float64)[:, None])
        assert norm.running_mean is not None
        assert norm.running_var is not None
        return norm.running_mean.item(), norm.running_var.item(), outputs.detach().ravel().tolist()

    (mean, variance, first), (other_mean, other_variance, second) = run_ranks(2, run)
    assert (mean, variance) == (other_mean, other_variance)
    assert mean == pytest.approx(0.4, rel=1e-14)
    assert variance == pytest.approx(0.9 + 0.1 * 56 / 3, rel=1e-14)
    expected = (np.array([0.0, 2.0, 4.0, 10.0]) - 4.0) / np.sqrt(14.0 + 1e-5)
    assert first + second == pytest.approx(expected.tolist(), rel=1e-13)


def layers(dtype=torch.float64):
    torch.manual_seed(3)
    norm = nn.BatchNorm2d(3, momentum=None).to(dtype)
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([1.0, -2.0, 0.5]))
        norm.bias.copy_(torch.tensor([0.1, 0.2, 0.3]))
    return nn.Sequential(
        nn.Conv2d(2, 3, 2).to(dtype), norm, nn.Tanh(), nn.Conv2d(3, 1, 2).to(dtype)
    )


@pytest.mark.parametrize("sizes", [[2, 2], [3, 1], [4, 0], [1, 2, 1]])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-5)])
def test_ranks_together_are_batch_norm_over_all_rows(sizes, dtype, tolerance):
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((8, 2, 4, 4))).to(dtype)
    whole, ours = layers(dtype), [layers(dtype) for _ in sizes]
    for start in (0, 4):
        (whole(x[start : start + 4]) ** 2).sum().backward()

    def run(world, communicator):
        model = convert_sync_batch_norm(ours[world.rank], communicator)
        first = sum(sizes[: world.rank])
        for start in (first, first + 4):
            (model(x[start : start + sizes[world.rank]]) ** 2).sum().backward()
        return [p.grad.double() for p in model.parameters() if p.grad is not None]

    gradients = run_ranks(len(sizes), run)
    for parameter, parts in zip(whole.parameters(), zip(*gradients)):
        total = torch.stack(parts).sum(0)
        assert parameter.grad is not None
        scale = max(float(parameter.grad.norm()), 1.0)
        assert float((total - parameter.grad).norm()) / scale < tolerance
    for model in ours:
        for name, buffer in whole.named_buffers():
            torch.testing.assert_close(
                model.get_buffer(name), buffer, rtol=tolerance, atol=tolerance, msg=name
            )


def test_with_one_rank_and_in_evaluation_it_is_batch_norm_bit_for_bit():
    x = torch.from_numpy(np.random.default_rng(1).standard_normal((4, 2, 4, 4)))
    plain = layers()

    def run(world, communicator):
        model = convert_sync_batch_norm(layers(), communicator)
        return torch.equal(model(x), plain(x)), torch.equal(model.eval()(x), plain.eval()(x))

    assert run_ranks(1, run) == [(True, True)]


def test_evaluation_needs_no_other_rank():
    def run(world, communicator):
        norm = SyncBatchNorm(2, communicator).eval()
        return [norm(torch.ones(1, 2)).sum().item() for _ in range(world.rank)]

    assert [len(found) for found in run_ranks(3, run)] == [0, 1, 2]


def test_one_value_a_channel_is_refused_on_all_ranks():
    with pytest.raises(RanksFailedError) as caught:
        run_ranks(2, lambda world, c: SyncBatchNorm(2, c)(torch.ones(1 - world.rank, 2)))
    assert len(caught.value.errors) == 2
    for error in caught.value.errors.values():
        assert isinstance(error, DataError)
        assert "got 1" in str(error)


def test_converting_keeps_parameters_buffers_and_shared_modules():
    norm = nn.BatchNorm1d(2, eps=1e-3, momentum=0.3)
    model = nn.ModuleDict({"a": norm, "b": nn.Sequential(norm), "c": nn.Linear(2, 2)})
    before = dict(model.named_parameters())

    def run(world, communicator):
        convert_sync_batch_norm(model, communicator)

    run_ranks(1, run)
    new = model["a"]
    assert isinstance(new, SyncBatchNorm)
    assert model["b"].get_submodule("0") is new
    assert (new.eps, new.momentum, new.training) == (1e-3, 0.3, True)
    assert new.running_mean is norm.running_mean
    assert dict(model.named_parameters()) == before
    assert set(model.state_dict()) == set(
        nn.ModuleDict({"a": norm, "b": nn.Sequential(norm), "c": model["c"]}).state_dict()
    )


def test_lazy_batch_norm_is_refused():
    with pytest.raises(RanksFailedError, match="no size yet"):
        run_ranks(1, lambda world, c: convert_sync_batch_norm(nn.LazyBatchNorm1d(), c))


def test_a_copy_keeps_the_communicator_and_a_file_does_not():
    def run(world, communicator):
        norm = SyncBatchNorm(1, communicator)
        twin = copy.deepcopy(norm)
        twin(torch.tensor([[1.0], [2.0]]))
        file = io.BytesIO()
        torch.save(norm, file)
        file.seek(0)
        loaded = torch.load(file, weights_only=False)
        with pytest.raises(ConfigError, match="convert_sync_batch_norm"):
            loaded(torch.ones(2, 1))
        return loaded.eval()(torch.ones(2, 1)).shape == (2, 1)

    assert run_ranks(2, run) == [True, True]


def test_batch_norm_beside_synchronised_layers_is_refused():
    def run(world, communicator):
        model = nn.Sequential(SyncBatchNorm(2, communicator), nn.BatchNorm1d(2))
        adapter = TorchAdapter()
        adapter.build(Job(model, loss=nn.MSELoss()), Plan(), Place(num_replicas=1))
        with pytest.raises(ConfigError, match="'1' is a BatchNorm1d beside"):
            adapter.build(Job(model, loss=nn.MSELoss()), Plan(), Place(num_replicas=2))

    run_ranks(2, run)


def train(world, kind, global_batch_size, rows):
    """Train a small normalised model on this rank; its tensors and losses."""
    import torch

    import unified_ipu as ui
    from unified_ipu_torch import convert_sync_batch_norm

    plan = ui.Plan().replace(
        mesh={"data": world.world_size},
        batch={"global_batch_size": global_batch_size, "micro_batch_size": 2},
        data={"shuffle": False},
    )
    x, y = samples(rows)
    with ui.Session(plan, world=world, argv=[]) as session:
        model = convert_sync_batch_norm(network(), session.communicator())
        cross_entropy = torch.nn.CrossEntropyLoss()

        def objective(model, batch):
            outputs = model(batch[0])
            counted = int((batch[1] != -100).sum())
            total = torch.nn.functional.cross_entropy(outputs, batch[1], reduction="sum")
            return ui.Loss(sum=total, weight=counted)

        ways: Dict[str, Any] = {
            "loss": {"loss": cross_entropy},
            "objective": {"objective": objective},
        }
        program = session.compile(
            model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), **ways[kind]
        )
        summary = program.fit(session.loader(ui.data.arrays(x, y)), epochs=2)
        held = session.loader(ui.data.arrays(x, y), train=False)
        loss = program.evaluate(held)["loss"]
        return program.weights(), summary.epochs[-1].loss, loss


def network():
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv1d(2, 3, 2), nn.BatchNorm1d(3), nn.Tanh(), nn.Flatten(), nn.Linear(9, 3)
    ).double()


def samples(rows):
    rng = np.random.default_rng(5)
    y = rng.integers(0, 3, rows)
    y[2:4] = -100  # a micro-batch of which nothing counts
    return rng.standard_normal((rows, 2, 4)), y


def expected_training(world_size, global_batch_size, rows):
    """The same in one loop over plain torch: a forward pass over each round of all ranks."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x, y = (torch.from_numpy(array) for array in samples(rows))
    total, count = 0.0, 0
    for _ in range(2):
        total, count = 0.0, 0
        for start in range(0, rows, global_batch_size):
            stop = min(start + global_batch_size, rows)
            optimizer.zero_grad()
            weight = int((y[start:stop] != -100).sum())
            for first in range(start, stop, 2 * world_size):
                part = slice(first, min(first + 2 * world_size, stop))
                loss = nn.functional.cross_entropy(model(x[part]), y[part], reduction="sum")
                (loss / weight).backward()
                total += loss.item()
            optimizer.step()
            count += weight
    evaluated = nn.functional.cross_entropy(model.eval()(x), y).item()
    tensors = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    return tensors, total / count, evaluated


@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", ["loss", "objective"])
@pytest.mark.parametrize(
    ("size", "global_batch_size", "rows"), [(2, 5, 12), (3, 6, 14), (3, 4, 9), (1, 4, 8)]
)
def test_l1_5_training_equals_batch_norm_over_the_rows_of_all_replicas(
    warm_pool, kind, size, global_batch_size, rows
):
    tensors, trained, evaluated = expected_training(size, global_batch_size, rows)
    for found, loss, held in warm_pool.run(
        train, size=size, kind=kind, global_batch_size=global_batch_size, rows=rows
    ):
        assert loss == pytest.approx(trained, rel=1e-12)
        assert held == pytest.approx(evaluated, rel=1e-12)
        for name, value in tensors.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-11, atol=1e-13, err_msg=name)


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # dynamo looks at .grad
@pytest.mark.parametrize("way", ["compiled", "reentrant", "not reentrant"])
def test_compiled_and_checkpointed_layers_have_the_same_gradients(way):
    from torch.utils.checkpoint import checkpoint

    x = torch.from_numpy(np.random.default_rng(2).standard_normal((4, 2, 4, 4)))
    whole, *ours = [layers() for _ in range(3)]
    (whole(x) ** 2).sum().backward()

    def run(world, communicator):
        model = convert_sync_batch_norm(ours[world.rank], communicator)
        mine = (x[:3] if world.rank == 0 else x[3:]).clone().requires_grad_(True)
        if way == "compiled":
            outputs = torch.compile(model, backend="eager")(mine)
        else:
            outputs = checkpoint(model, mine, use_reentrant=way == "reentrant")
        (outputs**2).sum().backward()
        return [p.grad for p in model.parameters() if p.grad is not None]

    try:
        for parameter, parts in zip(whole.parameters(), zip(*run_ranks(2, run))):
            torch.testing.assert_close(
                sum(parts), parameter.grad, rtol=1e-10, atol=1e-12, check_dtype=True
            )
    finally:
        torch.compiler.reset()


def test_l1_5_a_rank_that_passes_no_batch_takes_part():
    x, y = (torch.from_numpy(array) for array in samples(2))
    twins = [network() for _ in range(2)]

    def run(world, communicator):
        plan = Plan().replace(
            mesh={"data": 2}, batch={"global_batch_size": 4, "micro_batch_size": 2}
        )
        with Session(plan, world=world, communicator=communicator, argv=[]) as session:
            model = convert_sync_batch_norm(twins[world.rank], session.communicator())
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            program = session.compile(model, loss=nn.CrossEntropyLoss(), optimizer=optimizer)
            records = [program.step([(x, y)] if world.rank else []) for _ in range(2)]
            return program.weights(), [record.samples for record in records]

    plain = network()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        nn.functional.cross_entropy(plain(x), y).backward()
        optimizer.step()
    for found, counts in run_ranks(2, run):
        assert counts == [2, 2]
        for name, tensor in plain.state_dict().items():
            np.testing.assert_allclose(found[name], tensor, rtol=1e-11, atol=1e-13, err_msg=name)


def test_an_error_on_one_rank_inside_a_round_ends_the_others():
    class Fails(nn.Module):
        def __init__(self, rank):
            super().__init__()
            self.rank = rank

        def forward(self, x):
            if self.rank == 1:
                raise ValueError("no more")
            return x

    x, y = samples(8)
    models = [nn.Sequential(Fails(rank), network()) for rank in range(2)]

    def run(world, communicator):
        plan = Plan().replace(
            mesh={"data": 2}, batch={"global_batch_size": 4, "micro_batch_size": 2}
        )
        with Session(plan, world=world, communicator=communicator, argv=[]) as session:
            model = convert_sync_batch_norm(models[world.rank], session.communicator())
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            program = session.compile(model, loss=nn.CrossEntropyLoss(), optimizer=optimizer)
            program.fit(session.loader(data.arrays(x, y)))

    with pytest.raises(RanksFailedError) as caught:
        run_ranks(2, run)
    assert isinstance(caught.value.errors[0], PeerLostError)
    assert "no more" in str(caught.value.errors[0])
