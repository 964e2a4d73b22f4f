"""Several programs of a device over one model, as a generator and its critic are."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import unified_ipu as ui
from tests.adapters.unified_ipu_torch.ipu.parity import plan_for

ONE = np.ones((1, 1), np.float32)


def product(outputs, targets):
    return outputs * targets


@pytest.fixture
def session():
    one = {"mesh__data": 1, "ipu__replicas_per_process": 1, "batch__micro_batch_size": 1}
    plan = plan_for("ipu-emulated", batch__global_batch_size=1, **one)
    with ui.Session(plan, argv=[]) as session:
        yield session


def weight_of_0():
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    return model


def compiled(session, model, optimizer=None):
    return session.compile(model, loss=product, loss_reduction="none", optimizer=optimizer)


def predicted(session, program):
    return float(program.predict(session.loader((ONE, ONE), train=False))[0, 0])


def test_a_program_that_only_evaluates_has_the_weights_of_the_one_that_trains(session):
    model = weight_of_0()
    trains = compiled(session, model, ui.optim.SGD(lr=1.0))
    evaluates = compiled(session, model)
    found = [predicted(session, evaluates)]
    for _ in range(2):
        trains.step((ONE, ONE))
        found.append(predicted(session, evaluates))
    assert found == [0.0, -1.0, -2.0]
    assert evaluates.weights()["weight"].item() == -2.0


def test_slots_stay_with_their_program_and_weights_do_not(session):
    model = weight_of_0()
    moving = compiled(session, model, ui.optim.SGD(lr=1.0, momentum=0.5))
    plain = compiled(session, model, ui.optim.SGD(lr=1.0))
    for program in (moving, plain, moving):
        program.step((ONE, ONE))
    # Velocities 1 and 1.5, and one plain step of 1 between.
    assert [program.weights()["weight"].item() for program in (moving, plain)] == [-3.5, -3.5]


def test_what_one_program_restores_the_other_starts_from(session):
    model = weight_of_0()
    first, second = (compiled(session, model, ui.optim.SGD(lr=1.0)) for _ in range(2))
    first.step((ONE, ONE))
    second.load_weights({"weight": np.full((1, 1), 8.0, np.float32)})
    first.step((ONE, ONE))
    assert second.weights()["weight"].item() == 7.0


def test_a_program_goes_on_alone_when_the_other_is_closed(session):
    model = weight_of_0()
    first, second = (compiled(session, model, ui.optim.SGD(lr=1.0)) for _ in range(2))
    first.step((ONE, ONE))
    first.close()
    second.step((ONE, ONE))
    assert second.weights()["weight"].item() == model.weight.item() == -2.0


def test_models_apart_do_not_meet(session):
    first, second = (compiled(session, weight_of_0(), ui.optim.SGD(lr=rate)) for rate in (1.0, 2.0))
    for _ in range(2):
        first.step((ONE, ONE))
        second.step((ONE, ONE))
    assert first.weights()["weight"].item() == -2.0
    assert second.weights()["weight"].item() == -4.0
