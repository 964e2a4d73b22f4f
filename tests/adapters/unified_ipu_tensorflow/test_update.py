"""The update law at the level of one and several replicas, and what is traced for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.adapters.unified_ipu_tensorflow.driving import (
    Driver,
    cut,
    data,
    distance,
    keras,
    layers,
    mean_squared_error,
    micro,
    mlp,
)
from unified_ipu.adapter import Job, Loss, Slot, optim
from unified_ipu.errors import ConfigError
from unified_ipu.plan import plan_buckets

pytestmark = pytest.mark.timeout(120)

MSE = mean_squared_error()
SGD = optim.SGD(0.1, momentum=0.9)


def oracle(x, y, updates):
    """Gradients of the same network by hand, in float64."""
    w1, b1, w2, b2 = (np.array(w, np.float64) for w in mlp().get_weights())
    momenta = [np.zeros_like(w) for w in (w1, b1, w2, b2)]
    for _ in range(updates):
        hidden = np.tanh(x @ w1 + b1)
        error = 2.0 * (hidden @ w2 + b2 - y) / len(x)
        back = (error @ w2.T) * (1.0 - hidden**2)
        gradients = [x.T @ back, back.sum(0), hidden.T @ error, error.sum(0)]
        for weight, momentum, gradient in zip((w1, b1, w2, b2), momenta, gradients):
            momentum[...] = 0.9 * momentum + gradient
            weight[...] = weight - 0.1 * momentum
    return [w1, b1, w2, b2]


@pytest.mark.parametrize("bind", [False, True])
@pytest.mark.parametrize(
    "split", [[[11]], [[4, 4, 3]], [[1] * 11], [[6], [5]], [[4, 2], [5], []], [[], [11]]]
)
def test_l1_3_every_split_gives_the_update_of_the_whole(split, bind):
    x, y = data(11)
    models = [mlp() for _ in split]
    driver = Driver([Job(model, SGD, MSE) for model in models], bind=bind)
    for _ in range(3):
        start, parts = 0, []
        for sizes in split:
            stop = start + sum(sizes)
            parts.append(cut(x[start:stop], y[start:stop], *sizes))
            start = stop
        _, weight, used = driver.update(*parts, scale=1 / 8)
        assert weight == 11.0
        assert used == [True] * 4
    for model in models:
        assert distance(model.get_weights(), oracle(x, y, 3)) < 1e-12


def test_one_graph_is_made_for_each_number_of_rows_and_no_other():
    x, y = data(8)
    driver = Driver([Job(mlp(), SGD, MSE)])
    for sizes in ([4, 4], [4, 3], [4, 4], [3], [4], [1]):
        driver.update(cut(x, y, *sizes), scale=1.0 / sum(sizes))
    assert driver.replicas[0].traces == 3


def test_many_shapes_are_said_once(caplog):
    driver = Driver([Job(mlp(), SGD, MSE)])
    x, y = data(18)
    for rows in range(1, 19):
        driver.update(cut(x, y, rows))
    assert driver.replicas[0].traces == 18
    assert caplog.text.count("batches came in 16 shapes") == 1


def test_numbers_of_another_precision_make_no_graph_of_their_own():
    x, y = data(4)
    driver = Driver([Job(mlp("float32"), SGD, MSE)])
    driver.update(cut(x, y, 4))
    driver.update(cut(x.astype("float32"), y.astype("float32"), 4))
    assert driver.replicas[0].traces == 1


def test_a_weight_that_the_user_counts_makes_no_graph_of_its_own():
    x, y = data(4)
    job = Job(mlp(), SGD, MSE, weight=lambda batch: float(tf.reduce_sum(abs(batch[1]))))
    driver = Driver([job])
    for scale in (0.5, 0.25, 0.125):
        driver.update(cut(x * scale, y * scale, 4), scale=scale)
    assert driver.replicas[0].traces == 1


@pytest.mark.parametrize("bind", [False, True])
def test_rows_of_a_table_that_are_used_twice_get_both_gradients(bind):
    table = np.arange(10.0).reshape(5, 2)
    model = keras.Sequential([keras.Input((), dtype="int64"), layers.Embedding(5, 2)])
    model.layers[-1].set_weights([table])
    driver = Driver([Job(model, optim.SGD(1.0), objective=sum_of_outputs)], bind=bind)
    driver.update([micro(np.array([1, 1, 3])), micro(np.array([3, 0]))])
    expected = table - np.array([[1.0], [2.0], [0.0], [2.0], [0.0]]) / 5.0
    assert np.allclose(model.get_weights()[0], expected, rtol=1e-6)


def sum_of_outputs(model: Any, batch: Any) -> Loss:
    outputs = model(batch)
    return Loss(sum=tf.reduce_sum(outputs), weight=tf.shape(outputs)[0])


class Branches(tf.Module):  # type: ignore[misc]  # of no known type
    """Uses the one or the other variable, by the value of the first row."""

    run_eagerly = True

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (tf.Variable([1.0], dtype=tf.float64) for _ in "abc")

    def __call__(self, x: Any) -> Any:
        return x[:, :1] * (self.b if bool(x[0, 1] > 0) else self.a)


def pick(which: float, rows: int = 2) -> Any:
    return np.stack([np.ones(rows), np.full(rows, which)], 1), np.zeros((rows, 1))


@pytest.mark.parametrize("bind", [False, True])
def test_l1_10_what_is_not_used_has_no_gradient_where_models_run_eagerly(bind):
    models = [Branches(), Branches()] if bind else [Branches()]
    decay = optim.SGD(0.1, weight_decay=1.0)
    driver = Driver([Job(model, decay, MSE) for model in models])
    parts = [[micro(*pick(0.0))], [micro(*pick(0.0))]]
    _, _, used = driver.update(*parts[: len(models)])
    assert used == [True, False, False]
    for model in models:
        assert float(model.a[0]) == pytest.approx(1.0 - 0.1 * (2.0 + 1.0), rel=1e-12)
        assert (float(model.b[0]), float(model.c[0])) == (1.0, 1.0)
    _, _, used = driver.update([micro(*pick(0.0)), micro(*pick(1.0))], [])
    assert used == [True, True, False]


def test_python_that_asks_for_values_is_refused_with_what_to_write_instead():
    model = Branches()
    model.run_eagerly = False
    driver = Driver([Job(model, SGD, MSE)])
    with pytest.raises(ConfigError, match=r"tf\.cond.*run_eagerly = True"):
        driver.update([micro(*pick(0.0))])


def test_a_loss_that_depends_on_nothing_is_refused():
    def constant(outputs: Any, targets: Any) -> Any:
        return tf.reduce_mean(tf.stop_gradient(outputs) - targets)

    driver = Driver([Job(mlp(), SGD, constant)])
    with pytest.raises(ConfigError, match="does not depend on any variable"):
        driver.update(cut(*data(4), 4))


class MakesVariablesLate(tf.Module):  # type: ignore[misc]  # of no known type
    def __init__(self) -> None:
        super().__init__()
        self.first = tf.Variable([[1.0]] * 3, dtype=tf.float64)
        self.second: Any = None

    def __call__(self, x: Any) -> Any:
        if self.second is None:
            self.second = tf.Variable([1.0], dtype=tf.float64)
        return x @ self.first * self.second


@pytest.mark.parametrize("is_eager", [False, True])
def test_variables_that_come_with_the_first_batch_beside_others_are_refused(is_eager):
    model = MakesVariablesLate()
    model.run_eagerly = is_eager
    driver = Driver([Job(model, SGD, MSE)])
    with pytest.raises(ConfigError, match="made variables while it ran its first batch"):
        driver.update(cut(*data(4), 4))


@pytest.mark.parametrize("is_tensor", [False, True])
def test_l1_5_a_weight_of_zero_leaves_no_gradient_and_poisons_nothing(is_tensor):
    def masked(model: Any, batch: Any) -> Loss:
        x, mask = batch
        weight = tf.reduce_sum(mask)
        mean = tf.reduce_sum(model(x)[:, 0] * mask) / weight  # 0 / 0 where nothing counts
        return Loss(sum=mean * weight, weight=weight)

    x, _ = data(4)
    start = mlp().get_weights()
    model = mlp()
    driver = Driver([Job(model, optim.SGD(0.1, weight_decay=1.0), objective=masked)])
    wrap = tf.constant if is_tensor else np.array
    ones, zeros = wrap(np.ones(2)), wrap(np.zeros(2))
    replica = driver.replicas[0]
    replica.begin_update()
    replica.forward_backward(micro(x[:2], zeros), scale=1.0, seed=0, ready=id)
    tally = replica.finish_update()
    assert (tally.loss_sum, tally.weight, tally.used) == (0.0, 0.0, [False] * 4)
    driver.update([micro(x[:2], ones), micro(x[2:], zeros)])
    assert all(np.isfinite(w).all() for w in model.get_weights())
    assert distance(model.get_weights(), start) > 1e-3


def test_gradients_are_written_in_the_layout_of_the_bucket():
    """As in a world with another framework, whose matrices are [out, in]."""
    x, y = data(5)
    models = [mlp(), mlp()]
    driver = Driver([Job(model, SGD, MSE) for model in models], bind=True)
    turned = driver.replicas[1]
    buffer = driver.buffers[1]
    turned.bind(
        [
            Slot(s.name, s.bucket, s.offset, s.shape[::-1], (1, 0) if len(s.shape) == 2 else None)
            for s in plain_slots(turned)
        ],
        buffer,
    )
    for replica in driver.replicas:
        replica.begin_update()
        for part in cut(x, y, 3, 2):
            replica.forward_backward(part, scale=0.2, seed=0, ready=id)
        replica.finish_update()
    plain, other = driver.buffers
    for slot in plain_slots(driver.replicas[0]):
        size = int(np.prod(slot.shape))
        inside = slice(slot.offset, slot.offset + size)
        ours = plain[slot.bucket][inside].reshape(slot.shape)
        theirs = other[slot.bucket][inside]
        assert np.array_equal(ours, theirs.reshape(slot.shape[::-1]).T)
    for replica in driver.replicas:
        replica.apply(lr_factor=1.0, used=[True] * 4)
    assert distance(models[1].get_weights(), models[0].get_weights()) == 0.0


def plain_slots(replica: Any) -> Any:
    return plan_buckets(replica.tensors(), 1024).slots


def test_batch_statistics_move_in_training_and_not_in_evaluation():
    norm = layers.BatchNormalization(momentum=0.5, dtype="float64")
    model = keras.Sequential([keras.Input((3,), dtype="float64"), norm])
    driver = Driver([Job(model, SGD, MSE)])
    x, _ = data(4)
    driver.update([micro(x, x)])
    mean, variance = (np.array(w) for w in model.get_weights()[2:])
    assert np.allclose(mean, 0.5 * x.mean(0), rtol=1e-12)
    assert np.allclose(variance, 0.5 + 0.5 * x.var(0), rtol=1e-12)
    driver.replicas[0].evaluate(micro(x, x), {}, seed=0)
    driver.replicas[0].predict(micro(x, x), seed=0)
    after = model.get_weights()[2:]
    assert np.array_equal(after[0], mean)
    assert np.array_equal(after[1], variance)


def test_two_programs_over_one_model_train_their_own_variables():
    """A GAN: each program's gradients are of its own variables only."""
    generator, critic = (
        mlp(),
        keras.Sequential([keras.Input((1,), dtype="float64"), layers.Dense(1, dtype="float64")]),
    )

    def fool(model: Any, batch: Any) -> Loss:
        return Loss(sum=-tf.reduce_sum(critic(model(batch))), weight=tf.shape(batch)[0])

    def judge(model: Any, batch: Any) -> Loss:
        return Loss(sum=tf.reduce_sum(model(generator(batch))), weight=tf.shape(batch)[0])

    first = Driver([Job(generator, SGD, objective=fool)])
    second = Driver([Job(critic, SGD, objective=judge)])
    x, _ = data(4)
    before = [np.array(w) for w in critic.get_weights()]
    first.update([micro(x)])
    assert distance(critic.get_weights(), before) == 0.0
    assert distance(generator.get_weights(), mlp().get_weights()) > 1e-4
    made = [np.array(w) for w in generator.get_weights()]
    second.update([micro(x)])
    assert distance(generator.get_weights(), made) == 0.0
    outputs = np.array(generator(x))
    after = critic.get_weights()
    assert np.allclose(after[0], before[0] - 0.1 * outputs.mean(0)[:, None], rtol=1e-12)
    assert np.allclose(after[1], before[1] - 0.1, rtol=1e-12)


def test_no_gradient_is_taken_of_what_is_not_trained():
    model = mlp()
    driver = Driver([Job(model, SGD, MSE, trainable=lambda name: name.startswith("dense_1"))])
    before = [np.array(w) for w in model.get_weights()]
    _, _, used = driver.update(cut(*data(4), 4))
    assert used == [True, True]
    after = model.get_weights()
    assert np.array_equal(after[0], before[0])
    assert not np.array_equal(after[2], before[2])


def test_after_closing_the_model_keeps_its_weights_and_can_be_trained_again():
    x, y = data(6)
    model = mlp()
    driver = Driver([Job(model, SGD, MSE), Job(mlp(), SGD, MSE)])
    driver.update(cut(x[:3], y[:3], 3), cut(x[3:], y[3:], 3))
    for replica in driver.replicas:
        replica.close()
    for parts in driver.buffers:
        for part in parts:
            part[...] = np.nan
    assert distance(model.get_weights(), oracle(x, y, 1)) < 1e-12
    Driver([Job(model, SGD, MSE)]).update(cut(x, y, 6))
    assert np.isfinite(model.get_weights()[0]).all()


class Chooses(tf.Module):  # type: ignore[misc]  # of no known type
    """As ``Branches``, in a graph."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = (tf.Variable([1.0], dtype=tf.float64) for _ in "ab")

    def __call__(self, x: Any) -> Any:
        return x[:, :1] * tf.cond(x[0, 1] > 0, lambda: 1.0 * self.b, lambda: 1.0 * self.a)


def test_in_a_graph_both_sides_of_a_condition_count_as_used():
    model = Chooses()
    driver = Driver([Job(model, optim.SGD(0.1, weight_decay=1.0), MSE)])
    _, _, used = driver.update([micro(*pick(0.0))])
    assert used == [True, True]
    assert float(model.a[0]) == pytest.approx(1.0 - 0.1 * (2.0 + 1.0), rel=1e-12)
    assert float(model.b[0]) == pytest.approx(0.9, rel=1e-12)  # decay alone
