"""The same code on a GPU: run where there is one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from unified_ipu import Plan, Session, data, optim
from unified_ipu.adapter import Job, MicroBatch
from unified_ipu.testing.threads import run_ranks
from unified_ipu_torch import convert_sync_batch_norm

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

X = np.random.default_rng(0).standard_normal((8, 3))
Y = np.random.default_rng(1).standard_normal((8, 2))


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 2)).double()


def train(world, communicator, *, target, make=optim.Adam, synchronised=False):
    plan = Plan().replace(
        target=target,
        mesh={"data": world.world_size},
        batch={"global_batch_size": 4, "micro_batch_size": 2},
    )
    with Session(plan, world=world, communicator=communicator, argv=[]) as session:
        model = network()
        if synchronised:
            convert_sync_batch_norm(model, session.communicator())
        optimizer = make(0.05) if make is optim.Adam else make(model.parameters(), lr=0.05)
        program = session.compile(model, loss=nn.MSELoss(), optimizer=optimizer)
        program.fit(session.loader(data.arrays(X, Y)), epochs=3)
        held = session.loader(data.arrays(X, Y), train=False)
        outputs = program.predict(held, gather="all")
        assert next(model.parameters()).device.type == target
        return {**program.weights(), "outputs": outputs}


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("make", [optim.Adam, torch.optim.SGD], ids=["ours", "made before"])
@pytest.mark.parametrize("synchronised", [False, True])
def test_training_on_a_gpu_equals_training_on_the_host(size, make, synchronised):
    def on(target):
        return run_ranks(
            size,
            lambda world, communicator: train(
                world, communicator, target=target, make=make, synchronised=synchronised
            ),
        )

    for found, expected in zip(on("cuda"), on("cpu")):
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-9, atol=1e-11, err_msg=name)


def test_state_that_an_optimizer_had_on_the_host_moves_with_the_model(drive):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.from_numpy(X)).sum().backward()
    optimizer.step()
    model.cuda()
    driver = drive([Job(model, optimizer, nn.MSELoss())])
    driver.update([MicroBatch(0, (X, Y), 8)])
    assert all(state["momentum_buffer"].device.type == "cuda" for state in optimizer.state.values())
