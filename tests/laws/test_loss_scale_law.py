"""Loss scales on several ranks (threads, numpy adapter), against literals."""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, List

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import unified_ipu as ui
from unified_ipu.testing.threads import RanksFailedError, run_ranks
from unified_ipu_numpy import Differentiable, MeanSquaredError, NumpyReplica


class Linear:
    """y = x @ w."""

    def __init__(self, weight: Any, dtype: Any = np.float64) -> None:
        self.parameters: Dict[str, Any] = {"w": np.array(weight, dtype)}

    def forward(self, x: Any, rng: Any = None) -> Any:
        w = self.parameters["w"]
        return x @ w, lambda d: {"w": x.T @ d}


def train(size: int, body: Callable[[ui.Session], Any], changes: Dict[str, Any]) -> List[Any]:
    def rank(world: Any, communicator: Any) -> Any:
        plan = ui.Plan().replace({"mesh.data": size, **changes})
        with ui.Session(plan, world=world, communicator=communicator, argv=[]) as session:
            return body(session)

    return run_ranks(size, rank, timeout_seconds=20.0)


def gradient_is_x(model: Any, batch: Any) -> ui.Loss:
    """S = w * sum of x, and W = the number of rows."""
    (x,) = batch
    return ui.Loss(Differentiable(0.0, {"w": x.sum(axis=0)}), weight=float(len(x)))


def begin_with(program: Any, scale: float) -> None:
    scalars = program.executor.scalars()
    scalars["loss_scale"]["value"] = scale
    program.executor.load_scalars(scalars)


OPTIMIZERS = {
    # Two updates with a gradient of 1: 0.1 + 0.1; velocity 1 and 1.9; Adam goes by lr for each.
    "SGD": (ui.optim.SGD(lr=0.1), -0.2),
    "momentum": (ui.optim.SGD(lr=0.1, momentum=0.9), -0.29),
    "Adam": (ui.optim.Adam(lr=0.1, eps=0.0), -0.2),
}


@pytest.mark.case("O-Q4")
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_l1_an_overflow_on_one_rank_skips_the_update_on_all(kind: str) -> None:
    optimizer, expected = OPTIMIZERS[kind]

    def body(session: ui.Session) -> Any:
        model = Linear([0.0])
        program = session.compile(
            model,
            objective=gradient_is_x,
            optimizer=optimizer,
            schedule=lambda update: [1.0, 1.0, 7.0][update],
        )
        begin_with(program, 1024.0)
        records = []
        for step in range(3):
            value = math.inf if (session.rank, step) == (2, 1) else 1.0
            records.append(program.step((np.array([[value]]),)))
        slots = program.executor.read(
            [spec.name for spec in program.executor.tensors() if spec.name == "w/step"]
        )
        counted = session.counters["updates_overflowed"]
        return model.parameters["w"][0], records, slots, program.updates_happened, counted

    for weight, records, slots, happened, counted in train(
        3, body, {"precision.loss_scale": "dynamic"}
    ):
        assert weight == pytest.approx(expected, rel=1e-12)
        assert [record.skipped for record in records] == [0, 1, 0]
        assert [record.loss_scale for record in records] == [1024.0, 512.0, 512.0]
        assert [record.lr for record in records] == [0.1, 0.1, 0.1], "no step of the schedule"
        assert [record.grad_norm for record in records][::2] == [1.0, 1.0]
        assert math.isnan(records[1].grad_norm)
        assert (happened, counted) == (2, 1)
        if kind == "Adam":
            assert float(slots["w/step"]) == 2.0


def test_l1_one_replica_skips_as_several_do() -> None:
    def body(session: ui.Session) -> Any:
        model = Linear([0.0])
        optimizer = ui.optim.SGD(lr=0.1)
        program = session.compile(model, objective=gradient_is_x, optimizer=optimizer)
        for value in (1.0, math.nan, 1.0):
            program.step((np.array([[value]]),))
        return model.parameters["w"][0], session.counters["updates_overflowed"]

    assert train(1, body, {"precision.loss_scale": 1024.0}) == [(pytest.approx(-0.2), 1)]


@pytest.mark.parametrize("size", [1, 2])
def test_l1_when_no_smaller_scale_is_left_it_is_an_error_on_all(size: int) -> None:
    def body(session: ui.Session) -> Any:
        program = session.compile(
            Linear([0.0]), objective=gradient_is_x, optimizer=ui.optim.SGD(lr=0.1)
        )
        begin_with(program, 2.0)
        bad = (np.array([[math.inf if session.rank == 0 else 1.0]]),)
        skipped = program.step(bad).skipped
        with pytest.raises(ui.NumericsError) as caught:
            program.step(bad)
        return skipped, str(caught.value)

    for skipped, text in train(size, body, {"precision.loss_scale": "dynamic"}):
        assert skipped == 1
        assert "'w' is not finite on rank(s) 0" in text
        assert "loss scale is down to 1" in text


def _trained(size: int, loss_scale: Any, rows: Any, **changes: Any) -> Any:
    x, y = rows

    def body(session: ui.Session) -> Any:
        model = Linear(np.full((x.shape[1], 1), 0.25), np.float32)
        program = session.compile(
            model, loss=MeanSquaredError("mean"), optimizer=ui.optim.AdamW(lr=0.125)
        )
        norms = [program.step(call).grad_norm for call in session.loader((x, y))]
        return model.parameters["w"].copy(), norms

    settings_of = {
        "precision.loss_scale": loss_scale,
        "batch.global_batch_size": 6,
        "batch.micro_batch_size": 2,
        "data.shuffle": False,
        **changes,
    }
    return train(size, body, settings_of)


@settings(max_examples=25, deadline=None)
@given(
    exponent=st.integers(-20, 20),
    size=st.sampled_from([1, 2]),
    clip=st.sampled_from([None, 0.5]),
    reduction=st.sampled_from(["mean", "sum"]),
    seed=st.integers(0, 99),
)
def test_l1_a_scale_that_is_a_power_of_two_changes_no_bit(
    exponent: int, size: int, clip: Any, reduction: str, seed: int
) -> None:
    random = np.random.default_rng(seed)
    rows = random.normal(size=(16, 3)).astype(np.float32), np.ones((16, 1), np.float32)
    changes = {"update.clip_norm": clip, "update.reduction": reduction}
    plain = _trained(size, "none", rows, **changes)
    scaled = _trained(size, 2.0**exponent, rows, **changes)
    for (weight, norms), (scaled_weight, scaled_norms) in zip(plain, scaled):
        assert weight.tobytes() == scaled_weight.tobytes()
        assert norms == scaled_norms


def test_l1_clipping_sees_the_gradient_without_the_scale() -> None:
    def body(session: ui.Session) -> Any:
        model = Linear([0.0])
        program = session.compile(model, objective=gradient_is_x, optimizer=ui.optim.SGD(lr=1.0))
        record = program.step((np.array([[3.0]]),))
        return model.parameters["w"][0], record.grad_norm

    changes = {"precision.loss_scale": 1000.0, "update.clip_norm": 2.0}
    for size in (1, 2):
        for weight, norm in train(size, body, changes):
            assert weight == pytest.approx(-2.0, rel=1e-12)
            assert norm == pytest.approx(3.0, rel=1e-12)


@pytest.mark.parametrize("size", [1, 2])
def test_l1_backward_sees_the_scale_over_a_power_of_two_near_the_weight(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W counts 1000 units a row; 3 rows: without the division 16 bits would overflow at 65504."""
    seen: List[float] = []
    original = NumpyReplica.forward_backward

    def watched(self: Any, micro: Any, *, scale: float, seed: int, ready: Any) -> None:
        seen.append(scale)
        original(self, micro, scale=scale, seed=seed, ready=ready)

    def objective(model: Any, batch: Any) -> ui.Loss:
        (x,) = batch
        return ui.Loss(Differentiable(0.0, {"w": 1000.0 * x.sum(axis=0)}), 1000.0 * len(x))

    def body(session: ui.Session) -> Any:
        model = Linear([0.0])
        program = session.compile(model, objective=objective, optimizer=ui.optim.SGD(lr=1.0))
        weights = [program.step((np.ones((3, 1)),)).weight for _ in range(2)]
        return model.parameters["w"][0], weights

    monkeypatch.setattr(NumpyReplica, "forward_backward", watched)
    changes = {"precision.loss_scale": 8.0, "batch.micro_batch_size": 4}
    for weight, weights in train(size, body, changes):
        assert weight == pytest.approx(-2.0, rel=1e-12)
        assert weights == [3000.0 * size] * 2
    assert set(seen) == {8.0 / 64.0}  # float32: G = 64, whatever W is


def test_l3_a_run_resumed_amid_a_growth_interval_goes_on_bit_for_bit(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unified_ipu.engine.loss_scale.GROWTH_INTERVAL", 4)

    def steps(session: ui.Session, program: Any, first: int, last: int) -> List[float]:
        found = []
        for step in range(first, last):
            value = math.inf if step in {1, 8} and session.rank == 0 else 0.1 * (step + 1)
            found.append(program.step((np.array([[value]], np.float32),)).loss_scale)
        return found

    def compiled(session: ui.Session) -> Any:
        model = Linear([0.5], np.float32)
        optimizer = ui.optim.Adam(lr=0.1)
        return model, session.compile(model, objective=gradient_is_x, optimizer=optimizer)

    def whole(session: ui.Session) -> Any:
        model, program = compiled(session)
        scales = steps(session, program, 0, 4)
        session.save(tmp_path, model=program)
        scales += steps(session, program, 4, 12)
        return model.parameters["w"].tobytes(), scales

    def rest(session: ui.Session) -> Any:
        model, program = compiled(session)
        session.restore(tmp_path, model=program)
        scales = steps(session, program, 4, 12)
        return model.parameters["w"].tobytes(), scales

    changes = {"precision.loss_scale": "dynamic"}
    before = train(2, whole, changes)
    after = train(2, rest, changes)
    for (weight, scales), (resumed, others) in zip(before, after):
        assert resumed == weight
        assert others == scales[4:]
        assert scales == [65536.0, *[32768.0] * 4, 65536.0, 65536.0, 65536.0, *[32768.0] * 4]


def test_l1_with_none_it_stays_an_error_on_all() -> None:
    def body(session: ui.Session) -> Any:
        program = session.compile(
            Linear([0.0]), objective=gradient_is_x, optimizer=ui.optim.SGD(lr=0.1)
        )
        program.step((np.array([[math.inf if session.rank == 1 else 1.0]]),))

    with pytest.raises(RanksFailedError, match=r"rank\(s\) 1; nothing was changed\. Lower the"):
        train(2, body, {})


def test_a_fit_goes_on_after_an_overflow_and_its_summary_counts_it_once() -> None:
    x = np.ones((12, 1))
    x[5] = math.inf  # in the second of three updates

    def body(session: ui.Session) -> Any:
        program = session.compile(
            Linear([[0.5]]), loss=MeanSquaredError("mean"), optimizer=ui.optim.SGD(lr=0.1)
        )
        loader = session.loader((x, np.zeros((12, 1))))
        return program.fit(loader, epochs=1, callbacks=[])

    changes = {
        "precision.loss_scale": "dynamic",
        "batch.global_batch_size": 4,
        "batch.micro_batch_size": 2,
        "data.shuffle": False,
    }
    for summary in train(2, body, changes):
        assert (summary.updates, summary.skipped) == (2, 1)
        assert summary.counts["updates_overflowed"] == 1
        assert "updates             2, 1 skipped" in str(summary)
        # 0.5 squared, then 0.4 squared: the skipped update has no finite loss to tell.
        assert summary.epochs[0].loss == pytest.approx((0.25 + 0.16) / 2, rel=1e-12)
