"""The sample adapter: right by finite differences and literals, and complete as a boundary.

One file for one small adapter: a reader who copies it copies its tests along.
"""

# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from unified_ipu.adapter import (
    Adapter,
    Capability,
    Job,
    Loss,
    MicroBatch,
    Place,
    Replica,
    available_adapters,
    find_adapter,
    metrics,
    optim,
)
from unified_ipu.errors import CapabilityError, ConfigError
from unified_ipu.plan import Plan, plan_buckets
from unified_ipu_numpy import (
    Differentiable,
    MeanSquaredError,
    Mlp,
    SoftmaxCrossEntropy,
    create,
)

SAMPLE = Path(__file__).parent / "unified_ipu_numpy_sample"
RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((11, 3)), RNG.integers(0, 4, 11)
MIXED = SoftmaxCrossEntropy(class_weights=[0.5, 1.0, 2.0, 4.0], ignore_index=2)


def build(model: Any, **job: Any) -> Any:
    return create().build(Job(model, **job), Plan(), Place())


def micro(*tree: Any, index: int = 0, sample_weight: Any = None) -> MicroBatch:
    return MicroBatch(index, tree, len(tree[0]), sample_weight=sample_weight)


def cut(x, y, *sizes):
    bounds = np.cumsum([0, *sizes])
    return [micro(x[a:b], y[a:b], index=m) for m, (a, b) in enumerate(zip(bounds[:-1], bounds[1:]))]


def tally(replica, *micros, scale=1.0, seed=0):
    replica.begin_update()
    for each in micros:
        replica.forward_backward(each, scale=scale, seed=seed + each.index, ready=print)
    return replica.finish_update()


def update(replicas, parts, *, scale=1.0):
    """L1 around replicas in this thread; bound to buckets if there is more than one."""
    buffers = []
    if len(replicas) > 1:
        for replica in replicas:
            layout = plan_buckets(replica.tensors(), 256)
            buffers.append([np.zeros(b.num_elements, b.dtype) for b in layout.buckets])
            replica.bind(layout.slots, buffers[-1])
    tallies = [tally(r, *part, scale=scale) for r, part in zip(replicas, parts)]
    weight = sum(t.weight for t in tallies)
    used = [any(flags) for flags in zip(*(t.used for t in tallies))]
    factor = 1.0 / (weight * scale)
    for shared in zip(*buffers):
        total = sum(shared) * factor
        for one in shared:
            one[...] = total
    for replica in replicas:
        replica.apply(lr_factor=1.0, used=used, scale=1.0 if buffers else factor)
    return sum(t.loss_sum for t in tallies) / weight, weight, used


def test_it_is_found_by_its_entry_point():
    assert "numpy" in available_adapters()
    assert find_adapter(Mlp([2, 1])).name == "numpy"


def test_the_ready_metadata_says_what_the_project_file_says():
    project = (SAMPLE / "pyproject.toml").read_text()
    points = (SAMPLE / "unified_ipu_numpy-0.0.1.dist-info" / "entry_points.txt").read_text()
    assert 'numpy = "unified_ipu_numpy:create"' in project
    assert "numpy = unified_ipu_numpy:create" in points


def test_it_is_an_adapter_that_declares_every_capability():
    adapter = create()
    assert isinstance(adapter, Adapter)
    assert set(adapter.support) == set(Capability)
    assert isinstance(build(Mlp([2, 1]), loss=MeanSquaredError()), Replica)
    assert adapter.lower(Plan(), "cpu").refused == ()
    assert adapter.lower(Plan(), "cuda").refused[0][0] == "target"


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize(
    ("loss", "targets"),
    [(MeanSquaredError(), RNG.standard_normal((11, 4))), (SoftmaxCrossEntropy(), Y), (MIXED, Y)],
)
def test_gradients_are_finite_differences(activation, loss, targets):
    model = Mlp([3, 5, 4], seed=1, activation=activation)
    replica = build(model, loss=loss, optimizer=optim.SGD(0.1))
    found = tally(replica, micro(X, targets))
    start = {name: p.copy() for name, p in model.parameters.items()}
    replica.apply(lr_factor=10.0, used=found.used)  # a step of 1: the change is the gradient
    gradients = {name: start[name] - p for name, p in model.parameters.items()}
    for name, p in model.parameters.items():
        p[...] = start[name]
    for name, p in model.parameters.items():
        for index in np.ndindex(*p.shape):
            values = []
            for step in (1e-6, -1e-6):
                p[index] = start[name][index] + step
                values.append(replica.evaluate(micro(X, targets), {}, seed=0)["loss"][0])
            p[index] = start[name][index]
            slope = (values[0] - values[1]) / 2e-6
            assert gradients[name][index] == pytest.approx(slope, rel=1e-6, abs=1e-7)


def test_the_weight_of_a_loss_is_what_its_mean_divides_by():
    replica = build(Mlp([3, 4]), loss=MIXED, optimizer=optim.SGD(0.1))
    expected = sum([0.5, 1.0, 0.0, 4.0][y] for y in Y)
    assert tally(replica, micro(X, Y)).weight == expected
    replica = build(Mlp([3, 2]), loss=MeanSquaredError(), optimizer=optim.SGD(0.1))
    assert tally(replica, micro(X, np.zeros((11, 2)))).weight == 22.0


@settings(max_examples=20)
@given(data=st.data())
def test_l1_every_split_gives_the_update_of_the_whole(data):
    count = data.draw(st.integers(1, 4))
    owners = data.draw(st.lists(st.integers(0, count - 1), min_size=11, max_size=11))
    model = Mlp([3, 5, 4], seed=1)
    expected = update(
        [build(model, loss=MIXED, optimizer=optim.Adam(0.1))], [cut(X, Y, 11)], scale=1 / 8
    )
    models = [Mlp([3, 5, 4], seed=1) for _ in range(count)]
    parts: Any = [[] for _ in models]
    for row, owner in enumerate(owners):
        parts[owner].append(micro(X[row : row + 1], Y[row : row + 1], index=row))
    replicas = [build(m, loss=MIXED, optimizer=optim.Adam(0.1)) for m in models]
    found = update(replicas, parts)
    assert found[0] == pytest.approx(expected[0], rel=1e-12)
    assert found[1] == expected[1]
    for each in models:
        for name, value in model.parameters.items():
            np.testing.assert_allclose(each.parameters[name], value, rtol=1e-11, atol=1e-13)


class Scalar:
    """``w * x``; ``v`` is never used."""

    def __init__(self, w):
        self.parameters = {"w": np.array([w]), "v": np.array([1.0])}

    def forward(self, x, rng=None):
        del rng
        w = self.parameters["w"]
        return w * x, lambda d: {"w": np.array([(d * x).sum()])}


def sum_of_outputs(outputs, targets):
    del targets
    return outputs.sum(), np.ones_like(outputs)


@pytest.mark.case("O-G3")
@pytest.mark.parametrize(
    ("optimizer", "start", "x", "after"),
    [
        (optim.SGD(0.1), 0.0, 1.0, [-0.1, -0.2]),
        (optim.SGD(0.1, momentum=0.9), 0.0, 1.0, [-0.1, -0.29]),
        (optim.SGD(0.1, momentum=0.9, dampening=0.5), 0.0, 1.0, [-0.1, -0.24]),
        (optim.SGD(0.1, momentum=0.9, nesterov=True), 0.0, 1.0, [-0.19, -0.461]),
        (optim.SGD(0.1, weight_decay=0.5), 1.0, 0.0, [0.95, 0.9025]),
        (optim.Adam(0.1, eps=0.0), 0.0, 1.0, [-0.1, -0.2]),
        (optim.Adam(0.1, eps=0.0, weight_decay=0.5), 1.0, 0.0, [0.9]),
        (optim.AdamW(0.1, weight_decay=0.5), 1.0, 0.0, [0.95, 0.9025]),
    ],
    ids=str,
)
def test_l5_optimizers_follow_the_documented_rules(optimizer, start, x, after):
    model = Scalar(start)
    replica = build(model, optimizer=optimizer, loss=sum_of_outputs, loss_reduction="sum")
    micros = [micro(np.full(1, x), np.zeros(1), index=m) for m in range(3)]
    for expected in after:
        update([replica], [micros])
        assert model.parameters["w"][0] == pytest.approx(expected, rel=1e-12)
        assert model.parameters["v"][0] == 1.0  # no rank used it, so decay leaves it


@pytest.mark.case("O-G1")
@pytest.mark.parametrize("split", [[[1, 1]], [[1], [1]], [[2]]])
def test_l1_a_mean_over_counted_tokens_is_not_a_mean_of_means(split):
    # Rows are tokens: 10 of loss 2w, then 100 of loss w.
    x = np.concatenate([np.full(10, 2.0), np.full(100, 1.0)])
    pieces = {1: [slice(0, 10), slice(10, 110)], 2: [slice(0, 110)]}
    models = [Scalar(1.0) for _ in split]
    replicas = [
        build(m, optimizer=optim.SGD(1.0), loss=sum_of_outputs, loss_reduction="sum")
        for m in models
    ]
    taken = iter(pieces[max(split[0])])
    parts = [[micro(x[s], x[s]) for s in (next(taken) for _ in sizes)] for sizes in split]
    loss, weight, used = update(replicas, parts)
    assert (loss, weight, used) == (pytest.approx(120 / 110), 110.0, [True, False])
    for model in models:
        assert 1.0 - model.parameters["w"][0] == pytest.approx(120 / 110, rel=1e-14)


def test_l1_a_micro_batch_of_ignored_targets_is_not_run():
    class Never(Mlp):
        def forward(self, x, rng=None):
            raise AssertionError("forward ran")

    replica = build(Never([3, 4]), loss=MIXED, optimizer=optim.SGD(0.1))
    found = tally(replica, micro(X, np.full(11, 2)))
    assert (found.loss_sum, found.weight, list(found.used)) == (0.0, 0.0, [False, False])


@pytest.mark.parametrize("loss", [MIXED, MeanSquaredError()])
def test_l1_padding_counts_neither_in_the_sum_nor_in_the_weight(loss):
    targets = Y if loss is MIXED else RNG.standard_normal((11, 4))
    keep = np.array([1, 0, 1, 1, 0, 0, 1, 0, 1, 1, 0], np.float32)
    model = Mlp([3, 4])
    replica = build(model, loss=loss, optimizer=optim.SGD(0.1))
    padded = tally(replica, micro(X, targets, sample_weight=keep))
    exact = tally(replica, micro(X[keep > 0], targets[keep > 0]))
    assert padded.weight == exact.weight
    assert padded.loss_sum == pytest.approx(exact.loss_sum, rel=1e-12)


def test_sample_weights_multiply_the_sum_but_not_the_count():
    model = Scalar(1.0)
    replica = build(model, optimizer=optim.SGD(0.1), loss=MeanSquaredError())
    found = tally(replica, micro(np.array([1.0, 2.0, 3.0]), np.zeros(3), np.array([1.0, 0.5, 0.0])))
    assert (found.loss_sum, found.weight) == (3.0, 3.0)


def test_opaque_losses_come_in_three_forms():
    x, y = np.array([1.0, 2.0, 3.0]), np.zeros(3)

    def mean(outputs, targets):
        return (outputs - targets).mean(), np.full(3, 1 / 3)

    def vector(outputs, targets):
        return outputs - targets, np.ones(3)

    forms = {"mean": mean, "sum": sum_of_outputs, "none": vector}
    for reduction, loss in forms.items():
        model = Scalar(1.0)
        replica = build(model, optimizer=optim.SGD(1.0), loss=loss, loss_reduction=reduction)
        loss_mean, weight, _ = update([replica], [[micro(x, y)]])
        assert (loss_mean, weight) == (pytest.approx(2.0), 3.0)
        assert model.parameters["w"][0] == pytest.approx(-1.0)
        assert replica.counts_samples


def test_an_opaque_mean_cannot_carry_padding():
    replica = build(Scalar(1.0), optimizer=optim.SGD(1.0), loss=sum_of_outputs)
    with pytest.raises(ConfigError, match='loss_reduction="none"'):
        tally(replica, micro(np.ones(2), np.ones(2), sample_weight=np.array([1, 0], np.float32)))


def test_weight_replaces_the_denominator_of_a_mean():
    replica = build(
        Mlp([3, 4]), optimizer=optim.SGD(0.1), loss=SoftmaxCrossEntropy(), weight=lambda b: 22
    )
    plain = build(Mlp([3, 4]), optimizer=optim.SGD(0.1), loss=SoftmaxCrossEntropy())
    found, expected = tally(replica, micro(X, Y)), tally(plain, micro(X, Y))
    assert found.weight == 22.0
    assert found.loss_sum == pytest.approx(2 * expected.loss_sum)


def test_an_objective_returns_its_gradients_and_metrics():
    def objective(model, batch):
        outputs, backward = model.forward(batch[0])
        value = Differentiable(outputs.sum(), backward(np.ones_like(outputs)))
        return Loss(value, len(outputs), {"largest": (outputs.max(), 1)})

    model = Scalar(1.0)
    replica = build(model, optimizer=optim.SGD(1.0), objective=objective)
    found = tally(replica, micro(np.array([1.0, 3.0])), micro(np.array([2.0])), scale=0.5)
    assert (found.loss_sum, found.weight, list(found.used)) == (6.0, 3.0, [True, False])
    assert found.metrics == {"largest": (5.0, 2.0)}
    assert replica.squared_norm() == 9.0
    with pytest.raises(ConfigError, match="Differentiable"):
        tally(build(model, optimizer=optim.SGD(1.0), objective=lambda m, b: 1.0), micro(np.ones(1)))


def test_l3_masks_are_a_function_of_the_seed_only():
    model = Mlp([3, 64, 4], dropout=0.5)
    replica = build(model, loss=SoftmaxCrossEntropy(), optimizer=optim.SGD(0.1))
    seen = [tally(replica, micro(X, Y), seed=seed).loss_sum for seed in (1, 2, 1)]
    assert seen[0] == seen[2]
    assert seen[0] != seen[1]
    quiet = replica.evaluate(micro(X, Y), {}, seed=1)["loss"][0]
    assert quiet == replica.evaluate(micro(X, Y), {}, seed=2)["loss"][0]


def test_l6_evaluation_counts_rows_and_changes_nothing():
    model = Mlp([3, 4])
    replica = build(model, loss=MIXED)
    before = {name: p.copy() for name, p in model.parameters.items()}
    outputs = replica.predict(micro(X), seed=0)
    keep = np.arange(11) < 7
    found = replica.evaluate(
        micro(X, Y, sample_weight=keep.astype(np.float32)), {"a": metrics.accuracy}, seed=0
    )
    hits = int((outputs.argmax(1) == Y)[:7].sum())
    assert found["a"] == (float(hits), 7.0)
    assert all(np.array_equal(p, before[name]) for name, p in model.parameters.items())


def test_what_was_read_can_be_written_into_a_fresh_replica():
    parts = [cut(X, Y, 6, 5)]
    first = Mlp([3, 4])
    replica = build(first, loss=MIXED, optimizer=optim.AdamW(0.1))
    update([replica], parts)
    state = replica.read([spec.name for spec in replica.tensors()])
    second = Mlp([3, 4], seed=9)
    fresh = build(second, loss=MIXED, optimizer=optim.AdamW(0.1))
    fresh.write(state)
    for each in (replica, fresh):
        update([each], parts)
    for name, p in first.parameters.items():
        assert np.array_equal(p, second.parameters[name])
    with pytest.raises(ConfigError, match="no tensor"):
        fresh.read(["missing"])
    with pytest.raises(ConfigError, match="shape"):
        fresh.write({"0.bias": np.zeros(5)})


def test_float32_stays_float32():
    model = Mlp([3, 5, 4], dtype="float32", dropout=0.1)
    replica = build(model, loss=MIXED, optimizer=optim.AdamW(0.1))
    update([replica], [cut(X.astype(np.float32), Y, 11)])
    kinds = {spec.dtype for spec in replica.tensors()}
    assert kinds == {"float32"}
    assert replica.predict(micro(X), seed=0).dtype == np.float32


def test_a_gradient_that_is_not_finite_is_seen_and_named():
    replica = build(Scalar(1.0), optimizer=optim.SGD(1.0), loss=sum_of_outputs)
    tally(replica, micro(np.array([np.inf]), np.zeros(1)))
    assert not np.isfinite(replica.squared_norm())
    assert replica.non_finite() == ["w"]


def test_replicas_in_threads_do_not_disturb_each_other():
    def train(result):
        model = Mlp([3, 16, 4], seed=2, dropout=0.3)
        replica = build(model, loss=MIXED, optimizer=optim.SGD(0.1))
        for _ in range(20):
            update([replica], [cut(X, Y, 4, 4, 3)])
        result.append(model.parameters)

    results: Any = []
    threads = [threading.Thread(target=train, args=(results,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    train(results)
    for found in results[:-1]:
        assert all(np.array_equal(found[name], p) for name, p in results[-1].items())


def test_trainable_names_what_moves():
    model = Mlp([3, 4])
    bias = model.parameters["0.bias"].copy()
    update(
        [build(model, loss=MIXED, optimizer=optim.SGD(0.1), trainable="0.weight")], [cut(X, Y, 9)]
    )
    assert np.array_equal(model.parameters["0.bias"], bias)
    with pytest.raises(ConfigError, match="none of"):
        build(model, loss=MIXED, optimizer=optim.SGD(0.1), trainable=["0.wieght"])


def test_what_it_cannot_do_is_refused():
    model = Mlp([3, 4])
    shared = Mlp([3, 4])
    shared.parameters["copy"] = shared.parameters["0.bias"]
    refusals: Any = [
        (CapabilityError, "native optimizers", {"model": model, "optimizer": object()}),
        (CapabilityError, "schedulers", {"model": model, "schedule": object()}),
        (CapabilityError, "shared", {"model": shared}),
        (ConfigError, "objective=", {"model": model, "loss": None}),
        (ConfigError, "leave loss_reduction= out", {"model": model, "loss_reduction": "sum"}),
    ]
    for kind, message, changes in refusals:
        with pytest.raises(kind, match=message):
            create().build(Job(**{"loss": MIXED, **changes}), Plan(), Place())
    with pytest.raises(CapabilityError, match="target"):
        create().build(Job(model, loss=MIXED), Plan(target="cuda"), Place())
    with pytest.raises(ConfigError, match="no optimizer"):
        tally(build(model, loss=MIXED), micro(X, Y))
    replica = build(model, objective=lambda m, b: None, optimizer=optim.SGD(0.1))
    with pytest.raises(ConfigError, match="tell padding"):
        tally(replica, micro(X, Y, sample_weight=np.arange(11.0)))
