"""Gradients through collectives: those of the sum of all ranks' losses."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from unified_ipu.errors import CollectiveError
from unified_ipu.testing.threads import RanksFailedError, run_ranks
from unified_ipu_torch import collectives


def gradient_of(loss):
    """Gradient of ``loss(x, communicator)`` by x = rank + 1, by rank."""

    def run(world, communicator):
        x = torch.tensor([float(world.rank + 1)], requires_grad=True)
        loss(x, communicator).sum().backward()
        assert x.grad is not None
        return x.grad.item()

    return run_ranks(2, run)


def gathered(x, communicator):
    first, second = collectives.all_gather(x, communicator)
    return first + 2 * second


@pytest.mark.case("O-G9")
def test_gradients_are_those_of_the_sum_of_the_losses():
    assert gradient_of(lambda x, c: collectives.all_reduce(x, c, op="mean")) == [1.0, 1.0]
    assert gradient_of(collectives.broadcast) == [2.0, 0.0]
    assert gradient_of(gathered) == [2.0, 4.0]
    assert gradient_of(collectives.all_reduce) == [2.0, 2.0]


@pytest.mark.case("O-G9")
@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (lambda x, c: collectives.all_reduce(x, c, op="mean"), [0.5, 0.5]),
        (collectives.broadcast, [1.0, 0.0]),
        (gathered, [1.0, 2.0]),
    ],
    ids=["all_reduce", "broadcast", "all_gather"],
)
def test_the_mean_of_the_losses_has_half_of_it(loss, expected):
    assert gradient_of(lambda x, c: loss(x, c) / c.size) == expected


def test_values_are_those_of_the_plain_collectives():
    def run(world, communicator):
        x = torch.arange(6.0).reshape(3, 2)[:, 1] * (world.rank + 1)  # not contiguous
        total = collectives.all_reduce(x, communicator)
        mine = torch.full((world.rank, 2), float(world.rank))
        parts = collectives.all_gather(mine, communicator)
        first = collectives.broadcast(x, communicator, root=1)
        return total.tolist(), [part.tolist() for part in parts], first.tolist()

    parts = [[], [[1.0, 1.0]], [[2.0, 2.0], [2.0, 2.0]]]
    assert run_ranks(3, run) == [([6.0, 18.0, 30.0], parts, [2.0, 6.0, 10.0])] * 3


def test_uneven_rows_get_their_own_part_of_the_gradient():
    def run(world, communicator):
        x = torch.ones((world.rank + 1, 2), dtype=torch.float64, requires_grad=True)
        everything = torch.cat(collectives.all_gather(x, communicator))
        weight = torch.arange(12.0, dtype=torch.float64).reshape(6, 2) * (world.rank + 1)
        (everything * weight).sum().backward()
        assert x.grad is not None
        return x.grad.tolist()

    whole = (np.arange(12.0).reshape(6, 2) * (1 + 2 + 3)).tolist()
    assert run_ranks(3, run) == [whole[:1], whole[1:3], whole[3:]]


def test_a_piece_that_no_loss_uses_has_gradient_zero():
    def run(world, communicator):
        x = torch.ones(2, requires_grad=True)
        collectives.all_gather(x, communicator)[1].sum().backward()
        assert x.grad is not None
        return x.grad.tolist()

    assert run_ranks(2, run) == [[0.0, 0.0], [2.0, 2.0]]


def test_finite_differences_agree():
    base = np.array([0.3, -0.7, 1.1])

    def loss(values, communicator):
        mean = collectives.all_reduce(values, communicator, op="mean")
        first = collectives.broadcast(values.sin(), communicator)
        return (mean.exp() * values + first * mean).sum()

    def total(changed, by):
        def run(world, communicator):
            values = torch.tensor(base + world.rank)
            if world.rank == changed[0]:
                values[changed[1]] += by
            return loss(values, communicator).item()

        return sum(run_ranks(2, run))

    def run(world, communicator):
        values = torch.tensor(base + world.rank, requires_grad=True)
        loss(values, communicator).backward()
        assert values.grad is not None
        return values.grad.tolist()

    found = run_ranks(2, run)
    for rank in range(2):
        for index in range(3):
            slope = (total((rank, index), 1e-6) - total((rank, index), -1e-6)) / 2e-6
            assert found[rank][index] == pytest.approx(slope, rel=1e-7)


def test_operations_without_a_gradient_are_refused():
    with pytest.raises(RanksFailedError, match="'max' has no gradient"):
        run_ranks(1, lambda world, c: collectives.all_reduce(torch.ones(1), c, op="max"))


def test_a_scalar_has_no_rows_to_gather():
    with pytest.raises(RanksFailedError) as caught:
        run_ranks(2, lambda world, c: collectives.all_gather(torch.tensor(1.0), c))
    assert all(isinstance(error, CollectiveError) for error in caught.value.errors.values())


def train_through_a_collective(world):
    """Train w on y = sum over ranks of w * x; rank 1 has a micro-batch less."""
    import torch

    import unified_ipu as ui
    from unified_ipu_torch import collectives

    plan = ui.Plan().replace(
        mesh={"data": 2},
        batch={"global_batch_size": 3, "micro_batch_size": 1},
        data={"shuffle": False},
    )
    with ui.Session(plan, world=world, argv=[]) as session:

        class Summed(torch.nn.Module):
            holds_collectives = True

            def __init__(self):
                super().__init__()
                self.w = torch.nn.Parameter(torch.zeros((), dtype=torch.float64))

            def forward(self, x):
                total = (self.w * x).sum(0, keepdim=True)
                return collectives.all_reduce(total, session.communicator()).expand(x.shape)

        program = session.compile(Summed(), loss=lambda o, y: o.mean(), optimizer=ui.optim.SGD(1.0))
        x = np.array([[1.0], [2.0], [4.0]])
        program.fit(session.loader(ui.data.arrays(x, x)))
        return program.weights()["w"].item()


@pytest.mark.timeout(120)
def test_l1_5_a_model_with_collectives_runs_as_often_on_every_rank(warm_pool):
    # Both ranks' outputs are 3 w in the first round, then 4 w on the first and no row on the other.
    found = warm_pool.run(train_through_a_collective, size=2)
    assert found == pytest.approx([-(3 + 3 + 4) / 3] * 2, rel=1e-14)
