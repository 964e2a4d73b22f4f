"""Weights and checkpoints under canonical names: between frameworks, and in and out of one."""

from __future__ import annotations

from typing import Any, Dict

import numpy as np
import torch
from safetensors.numpy import load_file
from torch import nn

import unified_ipu as ui
from unified_ipu.testing.threads import run_ranks
from unified_ipu_numpy import MeanSquaredError

NAMES = {"kernel": ["0.weight", "IO->OI"], "offset": "0.bias"}
X = np.random.default_rng(0).normal(size=(12, 4))
Y = np.random.default_rng(1).normal(size=(12, 3))


class InOut:
    """x @ kernel + offset, the kernel kept as ``[in, out]``."""

    def __init__(self, seed: int = 2) -> None:
        rng = np.random.default_rng(seed)
        self.parameters = {"offset": rng.normal(size=3), "kernel": rng.normal(size=(4, 3))}

    def forward(self, x: Any, rng: Any = None) -> Any:
        del rng
        p = self.parameters
        return x @ p["kernel"] + p["offset"], lambda d: {
            "kernel": x.T @ d,
            "offset": d.sum(axis=0),
        }


def in_world(size: int, body: Any) -> Any:
    def rank(world: Any, communicator: Any) -> Any:
        plan = ui.Plan().replace(
            {"mesh.data": size, "batch.global_batch_size": 4, "batch.micro_batch_size": 2}
        )
        with ui.Session(plan, world=world, communicator=communicator, argv=[]) as session:
            return body(session)

    return run_ranks(size, rank, timeout_seconds=20.0)


def compiled(session: ui.Session, model: Any) -> Any:
    return session.compile(
        model, loss=MeanSquaredError(), optimizer=ui.optim.Adam(lr=0.05), names=NAMES
    )


def test_the_weights_of_a_checkpoint_of_torch_load_into_another_framework(tmp_path):
    def train(session: ui.Session) -> Any:
        torch.manual_seed(0)
        model: Any = nn.Sequential(nn.Linear(4, 3)).double()
        program = session.compile(model, loss=nn.MSELoss(), optimizer=ui.optim.Adam(lr=0.05))
        program.fit(session.loader((X, Y)), checkpoint=tmp_path / "run")
        return program.predict(session.loader((X, Y), train=False), gather="all")

    def take_over(session: ui.Session) -> Any:
        model = InOut()
        program = compiled(session, model)
        latest = tmp_path / "run" / (tmp_path / "run" / "latest").read_text().strip()
        program.load_weights(load_file(latest / "weights.safetensors"))
        outputs = program.predict(session.loader((X, Y), train=False), gather="all")
        return outputs, model.parameters["kernel"]

    (expected,) = in_world(1, train)
    for outputs, kernel in in_world(2, take_over):
        np.testing.assert_allclose(outputs, expected, rtol=1e-12)
        assert kernel.shape == (4, 3)


def test_l3_5_a_checkpoint_under_canonical_names_goes_on_bit_for_bit(tmp_path):
    def train(session: ui.Session, *, epochs: int, folder: str, resume: bool) -> Any:
        program = compiled(session, InOut(seed=session.rank))
        train = session.loader((X, Y))
        program.fit(train, epochs=epochs, checkpoint=tmp_path / folder, resume=resume or None)
        slots = [spec.name for spec in program.executor.tensors() if spec.role == "slot"]
        return {**program.weights(), **program.executor.read(slots)}

    def run(**rest: Any) -> Any:
        return in_world(2, lambda session: train(session, **rest))

    whole = run(epochs=4, folder="whole", resume=False)
    run(epochs=2, folder="parts", resume=False)
    parts = run(epochs=4, folder="parts", resume=True)
    expected: Dict[str, Any] = whole[0]
    assert list(expected) == [
        *("0.bias", "0.weight"),
        *("0.bias/exp_avg", "0.bias/exp_avg_sq", "0.bias/step"),
        *("0.weight/exp_avg", "0.weight/exp_avg_sq", "0.weight/step"),
    ]
    assert expected["0.weight/exp_avg"].shape == (3, 4)
    for rank in (*whole, *parts):
        for name, value in expected.items():
            assert rank[name].tobytes() == value.tobytes(), name
    latest = tmp_path / "parts" / (tmp_path / "parts" / "latest").read_text().strip()
    stored = load_file(latest / "weights.safetensors")
    assert {name: value.shape for name, value in stored.items()} == {
        "0.bias": (3,),
        "0.weight": (3, 4),
    }
