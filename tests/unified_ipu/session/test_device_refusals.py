"""What a session refuses on a device, on all ranks alike."""

from __future__ import annotations

import numpy as np
import pytest

import unified_ipu as ui
from tests.unified_ipu.session.device_runs import (
    classes,
    compiled,
    device,
    mean_of,
    refused,
)
from tests.unified_ipu.session.small_runs import run
from unified_ipu.errors import (
    CapabilityError,
    ConfigError,
    DataError,
    NumericsError,
    PlanError,
)
from unified_ipu.testing.threads import RanksFailedError
from unified_ipu_numpy import Mlp


def test_l2_padding_needs_a_loss_of_rows():
    x, y = np.ones((5, 4)), np.ones((5, 1))

    def body(session):
        program = compiled(session, loss=mean_of)
        return [program.step(call) for call in session.loader((x, y))]

    text = refused(body, PlanError, batch__global_batch_size=4)
    assert "update 1: micro-batch 0 has rows of padding" in text
    assert 'loss_reduction="none"' in text
    # Whole micro-batches of padding count nothing, so they are fed all the same.
    even = np.arange(24.0).reshape(6, 4), np.ones((6, 1))
    records = run(
        1,
        lambda s: [compiled(s, loss=mean_of).step(call) for call in s.loader(even)],
        **device(batch__global_batch_size=4),
    )[0]
    assert [record.weight for record in records] == [4.0, 2.0]


def test_l1_a_loss_that_is_not_finite_is_an_error_on_all_ranks():
    x, y = np.full((8, 4), 1e200), np.ones((8, 1))

    def body(session):
        with np.errstate(all="ignore"):
            for call in session.loader((x, y)):
                compiled(session).step(call)

    text = refused(body, NumericsError, 2, mesh__data=2)
    assert "update 0: the loss is inf" in text


def test_a_process_that_never_had_a_row_is_an_error_on_all_ranks():
    x, y = classes(2)[0], np.ones((2, 1))

    def body(session):
        compiled(session).step([] if session.rank else [(x, y)])

    text = refused(body, PlanError, 2, mesh__data=2)
    assert "update 0: rank 1: this process has no row to feed, and never had one" in text


def test_padding_that_one_rank_cannot_carry_is_the_same_error_on_all():
    x, y = np.ones((3, 4)), np.ones((3, 1))

    def body(session):
        compiled(session, loss=mean_of).step((x[:2], y[:2]) if session.rank else (x[:1], y[:1]))

    with pytest.raises(RanksFailedError) as caught:
        run(2, body, **device(mesh__data=2))
    assert [str(each).partition(": ")[2] for each in caught.value.errors.values()] == [
        str(caught.value.errors[0]).partition(": ")[2]
    ] * 2
    assert "rank 0: micro-batch 0 has rows of padding" in str(caught.value.errors[1])


def test_more_micro_batches_than_a_call_takes_are_refused():
    x, y = classes(1)[0], np.ones((1, 1))
    text = refused(lambda s: compiled(s).step([(x, y)] * 3), ConfigError)
    assert "takes 2 x 1 replicas = 2" in text


def test_what_a_device_cannot_do_is_refused_before_training():
    objective = lambda model, batch: None  # noqa: E731 - never called
    text = refused(
        lambda s: s.compile(Mlp((4, 1)), objective=objective, optimizer=ui.optim.SGD(lr=0.1)),
        CapabilityError,
    )
    assert "weight of an objective" in text
    dropping = Mlp((4, 3, 1), dropout=0.5)
    batch = np.ones((2, 4)), np.ones((2, 1))
    text = refused(lambda s: compiled(s, model=dropping).step(batch), CapabilityError)
    assert "ipu.random_layers" in text
    text = refused(lambda s: compiled(s, names={"0.weight": "a", "0.bias": "b"}), ConfigError)
    assert "whole calls on its device" in text
    text = refused(compiled, PlanError, batch__remainder="exact")
    assert 'set it to "pad"' in text
    text = refused(compiled, PlanError, batch__global_batch_size=5)
    assert "set it to" in text or "pad" in text


def test_a_target_without_an_sdk_says_what_of_it_is_missing():
    text = refused(compiled, PlanError, target="ipu")
    assert "can use cpu, ipu-emulated here" in text
    assert "no Poplar SDK is enabled" in text


def test_ranks_that_run_other_calls_are_told():
    x, y = classes(8)[0], np.ones((8, 1))

    def body(session):
        program, loader = compiled(session), session.loader((x, y))
        for call in loader:
            held = call.held()
            program.step(held)
            program.step(held if session.rank else call)

    assert "the ranks read 2 samples, the plan has 4" in refused(body, DataError, 2, mesh__data=2)
