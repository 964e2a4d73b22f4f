"""Training on a device that runs whole calls, against plain numpy and against the host target."""

from __future__ import annotations

from typing import Any, List

import numpy as np
import pytest
from hypothesis import given, settings as hypothesis_settings, strategies as st

import unified_ipu as ui
from tests.unified_ipu.session.device_runs import (
    CLASSES,
    IGNORED,
    classes,
    compiled,
    device,
    mean_of,
)
from tests.unified_ipu.session.small_runs import run
from unified_ipu_numpy import MeanSquaredError, Mlp, SoftmaxCrossEntropy


def factor(update: int) -> float:
    return 1.0 / (1 + update)


def trained_by_hand(x: Any, y: Any, *, total: int, per_call: int, epochs: int = 1) -> Any:
    """Softmax regression with momentum in plain numpy: the update law, call by call."""
    start = Mlp((4, CLASSES)).parameters
    w, b = start["0.weight"].copy(), start["0.bias"].copy()
    velocity: List[Any] = []
    happened, rates = 0, []
    for _ in range(epochs):
        updates = [slice(u, u + total) for u in range(0, len(x), total)]
        for call in range(0, len(updates), per_call):
            rate, done = 0.1 * factor(happened), 0
            rates.append(rate)
            for part in updates[call : call + per_call]:
                counted = y[part] != IGNORED
                if not counted.any():
                    continue
                rows, targets = x[part][counted], y[part][counted]
                logits = rows @ w.T + b
                p = np.exp(logits - logits.max(1, keepdims=True))
                p /= p.sum(1, keepdims=True)
                p[np.arange(len(rows)), targets] -= 1.0
                gradients = [p.T @ rows / len(rows), p.sum(0) / len(rows)]
                velocity = [0.9 * v + g for v, g in zip(velocity, gradients)] or gradients
                w, b = w - rate * velocity[0], b - rate * velocity[1]
                done += 1
            happened += done
    return {"0.weight": w, "0.bias": b}, rates, happened


def trained(session: ui.Session, x: Any, y: Any, epochs: int = 1) -> Any:
    program = session.compile(
        Mlp((4, CLASSES)),
        loss=SoftmaxCrossEntropy("mean", ignore_index=IGNORED),
        optimizer=ui.optim.SGD(lr=0.1, momentum=0.9),
        schedule=factor,
    )
    loader = session.loader((x, y))
    records, certificates = [], []
    for _ in range(epochs):
        records += [program.step(call) for call in loader]
        certificates.append(str(loader.certificate()))
    return program.weights(), records, certificates


@hypothesis_settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_l1_a_device_makes_the_updates_of_plain_numpy_for_every_shape_of_a_call(data):
    processes = data.draw(st.integers(1, 2), label="processes")
    local = data.draw(st.sampled_from([1, 2, 4]), label="replicas of a process")
    rows = data.draw(st.integers(1, 3), label="B")
    accumulation = data.draw(st.integers(1, 3), label="A")
    per_call = data.draw(st.integers(1, 4), label="D")
    total = rows * accumulation * local * processes
    size = data.draw(st.integers(1, 5 * total), label="samples")
    x, y = classes(size)
    for update in range(-(-size // total)):
        if data.draw(st.integers(0, 3), label=f"whether update {update} counts") == 0:
            y[update * total : (update + 1) * total] = IGNORED
    ignored = data.draw(st.lists(st.integers(0, size - 1), max_size=4), label="ignored")
    y[ignored] = IGNORED
    settings = device(
        mesh__data=local * processes,
        ipu__replicas_per_process=local,
        batch__global_batch_size=total,
        batch__micro_batch_size=rows,
        batch__updates_per_call=per_call,
    )
    results = run(processes, lambda session: trained(session, x, y, epochs=2), **settings)
    expected, rates, happened = trained_by_hand(x, y, total=total, per_call=per_call, epochs=2)
    for weights, records, certificates in results:
        for name, value in expected.items():
            np.testing.assert_allclose(weights[name], value, rtol=1e-12, atol=1e-14)
        assert [record.lr for record in records] == rates
        assert sum(record.updates for record in records) == happened
        assert sum(record.samples for record in records) == 2 * size
        assert sum(record.weight for record in records) == 2 * np.count_nonzero(y != IGNORED)
        whole = f"{size} of {size} samples, each once"
        padding = f", {-size % total} rows of padding" if size % total else ""
        assert certificates == [whole + padding] * 2


def test_l5_fit_evaluate_and_predict_give_what_the_host_gives():
    x, y = classes(50)

    def body(session):
        program = session.compile(
            Mlp((4, 5, CLASSES), seed=3),
            loss=SoftmaxCrossEntropy("mean", [1.0, 0.5, 2.0]),
            optimizer=ui.optim.Adam(lr=0.05),
        )
        train, test = session.loader((x, y)), session.loader((x[:13], y[:13]), train=False)
        accuracy = {"accuracy": lambda o, t: ((o.argmax(1) == t).sum(), len(t))}
        summary = program.fit(train, epochs=3, validation=test, metrics=accuracy)
        return (
            program.weights(),
            [(epoch.loss, epoch.updates, epoch.samples) for epoch in summary.epochs],
            program.evaluate(test, accuracy),
            program.predict(test, gather="all"),
            summary.target,
        )

    shape = {"batch__global_batch_size": 16, "batch__micro_batch_size": 2}
    host = run(2, body, **shape)[0]
    ends = run(
        2,
        body,
        **device(
            **shape,
            mesh__data=4,
            ipu__replicas_per_process=2,
            batch__updates_per_call=3,
            data__shuffle=True,
        ),
    )
    assert (host[-1], ends[0][-1]) == ("cpu", "ipu-emulated")
    for found in ends:
        for name, value in host[0].items():
            np.testing.assert_allclose(found[0][name], value, rtol=1e-12)
        np.testing.assert_allclose(found[1], host[1], rtol=1e-12)
        np.testing.assert_allclose([*found[2].values()], [*host[2].values()], rtol=1e-12)
        np.testing.assert_allclose(found[3], host[3], rtol=1e-12)
        assert found[3].shape == (13, CLASSES)


def test_l2_the_tail_is_dropped_where_the_plan_says_so():
    x, y = classes(11)
    settings = device(batch__global_batch_size=4, batch__remainder="drop")
    _, records, certificates = run(1, lambda s: trained(s, x, y), **settings)[0]
    assert sum(record.samples for record in records) == 8
    assert certificates == ["8 of 11 samples, each once, 3 dropped"]


def test_l3_a_run_goes_on_inside_an_epoch_with_the_same_updates(tmp_path):
    x, y = classes(40)

    def fit(session, **arguments):
        program = session.compile(
            Mlp((4, CLASSES)), loss=SoftmaxCrossEntropy(), optimizer=ui.optim.Adam(lr=0.1)
        )
        program.fit(session.loader((x, y)), epochs=2, **arguments)
        return program.weights()

    settings = device(batch__updates_per_call=3, ipu__replicas_per_process=2, mesh__data=2)
    whole = run(1, fit, **settings)[0]
    folder = tmp_path / "run"
    run(1, lambda s: fit(s, checkpoint=folder, max_updates=7), **settings)
    resumed = run(1, lambda s: fit(s, checkpoint=folder, resume=True), **settings)[0]
    # The call that max_updates cut has another learning rate only where a schedule moves it.
    for name, value in whole.items():
        assert resumed[name].tobytes() == value.tobytes()


def test_l1_an_opaque_mean_weighs_its_micro_batches():
    x, y = classes(8)[0], np.ones((8, 1))

    def body(session):
        program = compiled(session, loss=mean_of, weight=lambda batch: 3.0)
        for call in session.loader((x, y)):
            program.step(call)
        return program.weights()

    host = run(1, body, data__shuffle=False)[0]
    found = run(1, body, **device())[0]
    for name, value in host.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-12)


def test_l6_the_ragged_end_of_an_evaluation_needs_no_loss_of_rows():
    x, y = classes(7)[0], np.ones((7, 1))

    def body(session):
        program = compiled(session, loss=mean_of)
        return program.evaluate(session.loader((x, y), train=False))["loss"]

    settings = {"ipu__replicas_per_process": 2, "mesh__data": 2}
    assert run(1, body, **device(**settings))[0] == pytest.approx(run(1, body)[0], rel=1e-12)


def test_l1_reduction_sum_does_not_divide():
    x, y = classes(8)[0], np.ones((8, 1))

    def body(session):
        program = compiled(session, loss=MeanSquaredError("sum"))
        records = [program.step(call) for call in session.loader((x, y))]
        return program.weights(), [record.loss_sum for record in records]

    host = run(1, body, data__shuffle=False, update__reduction="sum")[0]
    found = run(1, body, **device(update__reduction="sum"))[0]
    np.testing.assert_allclose(found[1], host[1], rtol=1e-12)
    for name, value in host[0].items():
        np.testing.assert_allclose(found[0][name], value, rtol=1e-12)


def test_l1_sample_weights_count_as_on_the_host():
    x, y = classes(7)[0], np.ones((7, 1))
    batch = (x, y, np.linspace(0.5, 2.0, 7))

    def body(session):
        program = compiled(session, loss=MeanSquaredError("mean"))
        records = [program.step(call) for call in session.loader(batch)]
        return program.weights(), [(record.loss_sum, record.weight) for record in records]

    host = run(1, body, data__shuffle=False)[0]
    found = run(1, body, **device())[0]
    np.testing.assert_allclose(found[1], host[1], rtol=1e-12)
    for name, value in host[0].items():
        np.testing.assert_allclose(found[0][name], value, rtol=1e-12)


def test_batches_that_the_user_passes_are_filled_up():
    x, y = classes(3)[0], np.ones((3, 1))

    def body(session):
        program = compiled(session)
        mine = [(x[:2], y[:2])] if session.rank == 0 else [(x[2:], y[2:])]
        record = program.step(mine)
        empty = program.step([] if session.rank else [(x[:1], y[:1])])
        return (record.samples, record.weight, empty.samples), program.weights()

    settings = {"mesh__data": 4, "ipu__replicas_per_process": 2, "batch__global_batch_size": 16}
    counts, weights = run(2, body, **device(**settings))[0]
    assert counts == (3, 3.0, 1)
    host_counts, host = run(2, body, batch__global_batch_size=16)[0]
    assert host_counts == counts
    for name, value in host.items():
        np.testing.assert_allclose(weights[name], value, rtol=1e-12)


def test_l1_a_micro_batch_that_weighs_nothing_is_not_run():
    # The loss of its rows is not finite: 0 times that would be no number either.
    x, y = classes(12)
    x[4:6], y[4:6] = np.nan, IGNORED
    x[8:], y[8:] = np.nan, IGNORED

    def body(session):
        program = session.compile(
            Mlp((4, CLASSES)),
            loss=SoftmaxCrossEntropy("mean", ignore_index=IGNORED),
            optimizer=ui.optim.SGD(lr=0.1),
        )
        records = [program.step(call) for call in session.loader((x, y))]
        return program.weights(), [(record.weight, record.updates) for record in records]

    host = run(1, body, data__shuffle=False)[0]
    for processes in (1, 2):  # of two, the first has nothing that counts
        settings = device(mesh__data=processes)
        found = run(processes, body, **settings)[0]
        assert found[1] == [(4.0, 1), (2.0, 1), (0.0, 0)] == host[1]
        for name, value in host[0].items():
            np.testing.assert_allclose(found[0][name], value, rtol=1e-12)
