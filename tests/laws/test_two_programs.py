"""Two programs in one session: a small GAN on two replicas against a plain torch loop."""

from __future__ import annotations

from typing import Any, Dict

import numpy as np
import pytest

SAMPLES = 12
GLOBAL_BATCH = 4


def _data() -> Any:
    rng = np.random.default_rng(3)
    return rng.normal(size=(SAMPLES, 2)) + 2.0, rng.normal(size=(SAMPLES, 3))


def _networks(torch: Any) -> Any:
    torch.manual_seed(5)
    generator = torch.nn.Sequential(
        torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2)
    ).double()
    critic = torch.nn.Sequential(
        torch.nn.Linear(2, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)
    ).double()
    return generator, critic


def _losses(torch: Any, generator: Any, critic: Any, real: Any, noise: Any) -> Any:
    score = torch.nn.functional.softplus

    def of_critic() -> Any:
        return (score(-critic(real)) + score(critic(generator(noise).detach()))).sum()

    def of_generator() -> Any:
        return score(-critic(generator(noise))).sum()

    return {"critic": of_critic, "generator": of_generator}


def train_gan(world: Any) -> Dict[str, Any]:
    """One rank: alternate critic and generator on the same calls."""
    import torch

    import unified_ipu as ui

    generator, critic = _networks(torch)
    plan = ui.Plan().replace(
        {
            "mesh.data": world.world_size,
            "batch.global_batch_size": GLOBAL_BATCH,
            "batch.micro_batch_size": 1,
            "data.shuffle": False,
        }
    )

    def objective(name: str) -> Any:
        def score(model: Any, batch: Any) -> ui.Loss:
            real, noise = batch
            losses = _losses(torch, generator, critic, real, noise)
            return ui.Loss(losses[name](), weight=len(real))

        return score

    with ui.Session(plan, world=world, argv=[]) as session:
        programs = [
            session.compile(
                network,
                objective=objective(name),
                optimizer=ui.optim.Adam(lr=0.05),
            )
            for name, network in (("critic", critic), ("generator", generator))
        ]
        loader = session.loader(_data())
        losses = []
        for _ in range(3):
            for call in loader:
                held = call.held()
                losses.append([program.step(held).loss for program in programs])
        return {
            "losses": losses,
            "weights": [program.weights() for program in programs],
        }


def _oracle() -> Dict[str, Any]:
    torch = pytest.importorskip("torch")
    generator, critic = _networks(torch)
    optimizers = {
        "critic": torch.optim.Adam(critic.parameters(), lr=0.05),
        "generator": torch.optim.Adam(generator.parameters(), lr=0.05),
    }
    real, noise = (torch.from_numpy(array) for array in _data())
    losses = []
    for _ in range(3):
        for start in range(0, SAMPLES, GLOBAL_BATCH):
            rows = slice(start, start + GLOBAL_BATCH)
            found = _losses(torch, generator, critic, real[rows], noise[rows])
            line = []
            for name in ("critic", "generator"):
                optimizers[name].zero_grad()
                loss = found[name]() / GLOBAL_BATCH
                loss.backward()
                optimizers[name].step()
                line.append(loss.item())
            losses.append(line)
    weights = [
        {name: p.detach().numpy() for name, p in network.named_parameters()}
        for network in (critic, generator)
    ]
    return {"losses": losses, "weights": weights}


def test_l5_a_gan_of_two_programs_equals_a_plain_loop(warm_pool):
    expected = _oracle()
    for size in (1, 2):
        for rank in warm_pool.run(train_gan, size=size):
            np.testing.assert_allclose(rank["losses"], expected["losses"], rtol=1e-12)
            for found, wanted in zip(rank["weights"], expected["weights"]):
                assert set(found) == set(wanted)
                for name, weight in wanted.items():
                    change = np.linalg.norm(found[name] - weight)
                    assert change <= 1e-12 * np.linalg.norm(weight), name
