"""``predict`` and ``evaluate`` of an emulated IPU Keras."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tests.adapters.unified_ipu_tensorflow.emulated.emulating import (
    X,
    Y,
    batches,
    keras,
    layers,
    line,
    mse,
    sgd,
    strategy,
)

pytestmark = pytest.mark.timeout(120)


@pytest.mark.parametrize(
    ("rows", "per_execution", "steps", "expected"),
    # The first two and the last are from Graphcore's model_replication_test.py.
    [(96, 24, None, 96), (60, 3, None, 60), (96, 1, 2, 4)],
)
def test_steps_are_those_of_all_replicas(rows, per_execution, steps, expected):
    with strategy(2):
        model = line()
        model.compile(sgd(), mse(), steps_per_execution=per_execution)
        found = model.predict(np.ones((rows, 1), "float32"), batch_size=2, steps=steps)
    assert found.shape == (expected, 1)


def test_outputs_come_in_the_order_of_the_rows():
    with strategy(2):
        model = line()
        model.compile(sgd(), mse(), steps_per_execution=2)
        assert np.array_equal(model.predict(batches(4)), X)


def test_what_reduces_metrics_reduces_outputs_too():
    with strategy(2):
        model = line()
        model.set_replication_options(replicated_metric_reduction_method="SUM")
        model.compile(sgd(), mse(), steps_per_execution=1)
        found = model.predict(X[:4], batch_size=2)
    assert found[:, 0].tolist() == [1 + 3, 2 + 4, 1 + 3, 2 + 4]


def test_several_outputs_keep_their_structure():
    with strategy():
        start = keras.Input((1,))
        model = keras.Model(start, [layers.Dense(2)(start), layers.Dense(3)(start)])
        model.compile(sgd(), ["mse", "mse"], steps_per_execution=2)
        first, second = model.predict(X, batch_size=8)
    assert (first.shape, second.shape) == ((16, 2), (16, 3))


def test_a_rest_that_does_not_go_to_all_replicas_is_dropped_and_said(caplog):
    with strategy(2):
        model = line()
        model.compile(sgd(), mse(), steps_per_execution=1)
        with caplog.at_level("WARNING"):
            assert model.predict(X[:12], batch_size=4).shape == (8, 1)
    assert "The remaining 1 batch(es) will be dropped" in caplog.text


def test_evaluation_returns_a_list_and_trains_nothing():
    with strategy():
        model = line()
        model.compile(sgd(), mse(), metrics=["mae"], steps_per_execution=2)
        found = model.evaluate(X, Y, batch_size=8)
    assert [float(value) for value in found] == pytest.approx([93.5, 8.5])
    assert model.get_weights()[0].tolist() == [[1.0]]


def test_a_model_without_weights_is_built_by_its_first_data():
    class Late(keras.Model):  # type: ignore[misc]  # of no known type
        def __init__(self) -> None:
            super().__init__()
            self.dense = layers.Dense(2)

        def call(self, x, training=None):
            return self.dense(x)

    with strategy():
        model = Late()
        model.compile(sgd(), mse(), steps_per_execution=2)
        assert model.predict(tf.data.Dataset.from_tensors(X).repeat(2)).shape == (32, 2)
