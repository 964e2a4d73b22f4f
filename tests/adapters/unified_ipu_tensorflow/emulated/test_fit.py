"""What ``fit`` of an emulated IPU Keras computes, from its documents, source and own tests."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.adapters.unified_ipu_tensorflow.emulated.emulating import (
    RATE,
    X,
    Y,
    batches,
    gradient_of,
    keras,
    layers,
    line,
    mse,
    sgd,
    strategy,
)
from unified_ipu_tensorflow.emulated import notes

pytestmark = pytest.mark.timeout(120)


def fitted(
    replicas: int,
    accumulation: int,
    size: int,
    *,
    loss: Any = None,
    method: Any = "sum",
    optimizer: Any = None,
    steps: Any = None,
    **options: Any,
) -> Any:
    """A model after one epoch over the 16 rows."""
    with strategy(replicas):
        model = line(**options)
        model.set_gradient_accumulation_options(
            gradient_accumulation_steps_per_replica=accumulation,
            gradient_accumulation_reduction_method=method,
        )
        model.compile(optimizer or sgd(), loss or mse(), steps_per_execution=steps or accumulation)
        model.fit(batches(size), verbose=0)
    return model


# A loss that is a mean is summed over accumulation and replicas, so it depends on the split.
@pytest.mark.parametrize(
    ("replicas", "accumulation", "size", "expected"),
    [(1, 1, 16, 187), (1, 4, 4, 748), (2, 2, 4, 748), (2, 4, 2, 1496), (4, 4, 1, 2992)],
)
def test_a_mean_loss_is_summed_over_accumulation_and_replicas(
    replicas, accumulation, size, expected
):
    assert gradient_of(fitted(replicas, accumulation, size)) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(("replicas", "accumulation", "size"), [(1, 1, 16), (2, 2, 4), (4, 2, 2)])
def test_a_sum_loss_has_the_gradient_of_the_whole_however_it_is_split(replicas, accumulation, size):
    model = fitted(replicas, accumulation, size, loss=mse("sum"))
    assert gradient_of(model) == pytest.approx(2992, rel=1e-4)


@pytest.mark.parametrize("method", ["mean", "running_mean", "RUNNING_MEAN"])
def test_means_over_accumulation_leave_the_sum_over_replicas(method):
    assert gradient_of(fitted(1, 4, 4, method=method)) == pytest.approx(187, rel=1e-4)
    assert gradient_of(fitted(2, 4, 2, method=method)) == pytest.approx(374, rel=1e-4)


def test_batches_are_dealt_to_replicas_in_turn_and_updates_follow_each_other():
    """Two updates, each of one step of two replicas: rows 1 to 8, then 9 to 16."""
    model = fitted(2, 1, 4, steps=2)
    first = 2.0 * float((X[:8] ** 2).sum()) / 4
    weight = 1.0 - RATE * first
    second = 2.0 * weight * float((X[8:] ** 2).sum()) / 4
    assert model.get_weights()[0][0, 0] == pytest.approx(weight - RATE * second, rel=1e-5)


def test_terms_that_a_model_adds_count_in_every_step_and_replica():
    """The gradient of 0.5 w^2 at 1 is 1, and it comes A x R = 4 times."""
    halved = keras.regularizers.L2(0.5)
    assert gradient_of(fitted(2, 2, 4, loss=mse("sum"), regularizer=halved)) == pytest.approx(
        2992 + 4, rel=1e-4
    )


def test_the_norm_is_clipped_once_after_all_sums():
    model = fitted(2, 2, 4, optimizer=sgd(global_clipnorm=10.0))
    assert gradient_of(model) == pytest.approx(10.0, rel=1e-3)


def test_transformers_see_what_was_clipped():
    optimizer = sgd(global_clipnorm=10.0)
    optimizer.gradient_transformers = [lambda pairs: [(g / 4.0, v) for g, v in pairs]]
    assert gradient_of(fitted(2, 2, 4, optimizer=optimizer)) == pytest.approx(2.5, rel=1e-3)


def test_the_rate_is_the_one_that_was_assigned_last():
    with strategy():
        model = line()
        model.compile(sgd(), mse(), steps_per_execution=1)
        model.fit(batches(16), verbose=0)
        model.optimizer.learning_rate.assign(0.0)
        before = model.get_weights()[0][0, 0]
        model.fit(batches(16), verbose=0)
    assert model.get_weights()[0][0, 0] == before == pytest.approx(0.813, rel=1e-5)


def test_sample_weights_multiply_the_rows_of_a_sum():
    weights = np.zeros(16, "float32")
    weights[2] = 0.5  # x = 3
    data = tf.data.Dataset.from_tensor_slices((X, Y, weights)).batch(4, drop_remainder=True)
    with strategy(2):
        model = line()
        model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=2)
        model.compile(sgd(), mse("sum"), steps_per_execution=2)
        model.fit(data, verbose=0)
    assert gradient_of(model) == pytest.approx(0.5 * 2.0 * 9.0, rel=1e-3)


# x = 0 everywhere, so that |y| = 1, 2 | 3, 4 are the errors of replicas 0 and 1 in turn.
@pytest.mark.parametrize(
    ("method", "expected"), [("NONE", 3.0), ("LIST", [2.0, 3.0]), ("sum", 5.0), ("Mean", 2.5)]
)
def test_values_of_several_replicas_are_reduced_as_asked(method, expected):
    x, y = np.zeros((4, 1), "float32"), np.arange(1.0, 5.0, dtype="float32")[:, None]
    with strategy(2):
        model = line()
        model.set_replication_options(replicated_metric_reduction_method=method)
        model.compile(
            keras.optimizers.SGD(0.0), keras.losses.MeanAbsoluteError(), steps_per_execution=2
        )
        history = model.fit(batches(1, x, y), verbose=0).history
        assert np.asarray(history["loss"][-1]).tolist() == expected
        found = model.evaluate(batches(1, x, y), return_dict=True)
    assert np.asarray(found["loss"]).tolist() == expected


class Heard(keras.callbacks.Callback):  # type: ignore[misc]  # of no known type
    def __init__(self) -> None:
        super().__init__()
        self.ends: Any = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.ends.append((batch, round(float(logs["loss"]), 3)))


@pytest.mark.parametrize(
    ("asynchronous", "expected"),
    [
        # Errors of the one row a step: 1 9 | 16 25 (with the mean so far), on replicas 0 | 1.
        (False, [(1, 10.0)]),
        (True, [(0, 1.0), (0, 4.0), (1, 5.0), (1, 10.0)]),
    ],
)
def test_callbacks_are_heard_once_an_execution_or_for_every_step_and_replica(
    asynchronous, expected
):
    heard = Heard()
    x = np.arange(1.0, 5.0, dtype="float32")[:, None]
    with strategy(2):
        model = line()
        model.set_asynchronous_callbacks(asynchronous)
        model.compile(keras.optimizers.SGD(0.0), mse(), steps_per_execution=2)
        model.fit(batches(1, x, np.zeros_like(x)), callbacks=[heard], verbose=0)
    assert heard.ends == expected


def test_replicas_have_statistics_of_their_own_and_the_host_sees_the_first():
    rows = np.array([[0.0], [2.0], [10.0], [30.0]], "float32")
    with strategy(2):
        norm = layers.BatchNormalization(momentum=0.5)
        model = keras.Sequential([keras.Input((1,)), norm])
        model.compile(keras.optimizers.SGD(0.0), mse(), steps_per_execution=1)
        model.fit(batches(2, rows, rows), verbose=0)
    assert model.get_weights()[2].tolist() == [0.5]  # 0.5 * 0 + 0.5 * mean(0, 2)


def test_a_shorter_data_set_shortens_the_program_and_both_are_kept(caplog, monkeypatch):
    monkeypatch.setattr(notes, "_said", set())
    with strategy():
        model = line()
        model.compile(sgd(), mse(), steps_per_execution=4)
        model.fit(batches(4), verbose=0)
        program = model._ipu_state.programs["fit"]
        with caplog.at_level("WARNING"):
            model.fit(batches(4, X[:8], Y[:8]), verbose=0)
            model.fit(batches(4, X[:8], Y[:8]), verbose=0)
    assert caplog.text.count("Using 2 as `steps_per_execution`") == 1
    assert model._ipu_state.programs["fit"] is program
    assert int(model.optimizer.iterations.numpy()) == 8


def test_options_and_compile_begin_a_new_program():
    with strategy():
        model = line()
        model.compile(sgd(), mse(), steps_per_execution=4)
        model.fit(batches(4), verbose=0)
        model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=2)
        assert not model._ipu_state.programs
        model.fit(batches(4), verbose=0)
    assert int(model.optimizer.iterations.numpy()) == 4 + 2


def test_arrays_and_several_epochs_are_taken_too():
    with strategy(2):
        model = line()
        model.compile(sgd(), mse(), steps_per_execution=2)
        history = model.fit(X, Y, batch_size=4, epochs=2, shuffle=False, verbose=0)
    assert len(history.history["loss"]) == 2
    assert int(model.optimizer.iterations.numpy()) == 4
