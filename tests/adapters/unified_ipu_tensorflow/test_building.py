"""Models that make their variables from the first batch."""

from __future__ import annotations

import random
from typing import Any, Callable, List

import numpy as np
import pytest
import tensorflow as tf

import unified_ipu as ui
from tests.adapters.unified_ipu_tensorflow.driving import keras, layers
from unified_ipu.errors import ConfigError
from unified_ipu.testing.threads import RanksFailedError, run_ranks

pytestmark = pytest.mark.timeout(120)

RNG = np.random.default_rng(0)
X = {"number": RNG.normal(size=(22, 3)).astype("float32"), "word": RNG.integers(0, 5, 22)}
Y = RNG.normal(size=(22, 1)).astype("float32")
MSE = keras.losses.MeanSquaredError()


class Net(keras.Model):  # type: ignore[misc]  # of no known type
    """A table and a number; nothing is there before the first batch."""

    def __init__(self) -> None:
        super().__init__()
        self.table = layers.Embedding(5, 2)
        self.hidden = layers.Dense(4, activation="tanh")
        self.norm = layers.BatchNormalization()
        self.head = layers.Dense(1)

    def call(self, x: Any, training: bool = False) -> Any:
        both = tf.concat([self.table(x["word"]), self.hidden(x["number"])], -1)
        return self.head(self.norm(both, training=training))


def run(size: int, body: Callable[[ui.Session], Any]) -> List[Any]:
    def rank(world: Any, communicator: Any) -> Any:
        plan = ui.Plan().replace(
            {"mesh.data": size, "batch.global_batch_size": 8, "batch.micro_batch_size": 2}
        )
        with ui.Session(plan, world=world, communicator=communicator, argv=[]) as session:
            return body(session)

    return run_ranks(size, rank, timeout_seconds=60.0)


def compiled(session: ui.Session, model: Any, **settings: Any) -> ui.Program:
    return session.compile(model, **{"loss": MSE, "optimizer": ui.optim.Adam(0.05), **settings})


def alone(body: Callable[[ui.Session], Any]) -> Any:
    return run(1, body)[0]


def refused(body: Callable[[ui.Session], Any]) -> str:
    with pytest.raises(RanksFailedError) as caught:
        alone(body)
    assert isinstance(caught.value.errors[0], ConfigError), caught.value.errors[0]
    return str(caught.value.errors[0])


def test_a_model_built_by_its_first_batch_trains_as_one_built_before():
    def body(is_late: bool) -> Any:
        def train(session: ui.Session) -> Any:
            with session.scope():
                model = Net()
                if not is_late:
                    model({"number": tf.zeros((1, 3)), "word": tf.zeros((1,), tf.int64)})
            program = compiled(session, model)
            program.fit(session.loader((X, Y)), epochs=2)
            return program.weights()

        return train

    late, early = alone(body(True)), alone(body(False))
    assert list(late) == list(early)
    for name, value in early.items():
        assert np.array_equal(late[name], value), name


def test_a_rank_without_rows_builds_the_same_model():
    def body(session: ui.Session) -> Any:
        program = compiled(session, Net())
        rows = [({name: x[:2] for name, x in X.items()}, Y[:2])]
        record = program.step(rows if session.rank == 1 else [])
        return record.samples, {n: v for n, v in program.weights().items() if "moving" not in n}

    (samples, first), (_, second) = run(2, body)
    assert samples == 2
    assert len(first) == 7
    for name, value in first.items():
        assert np.array_equal(value, second[name]), name


def test_an_objective_says_how_the_model_is_called():
    def objective(model: Any, batch: Any) -> ui.Loss:
        outputs = model({"number": batch["a"], "word": batch["b"]})
        return ui.Loss(sum=tf.reduce_sum(outputs), weight=tf.shape(outputs)[0])

    def body(session: ui.Session) -> Any:
        program = compiled(session, Net(), loss=None, objective=objective)
        program.fit(session.loader({"a": X["number"], "b": X["word"]}), epochs=1)
        return len(program.weights())

    assert alone(body) == 9


def test_before_the_first_batch_what_needs_weights_is_refused_with_what_to_call():
    def body(session: ui.Session) -> Any:
        program = compiled(session, Net())
        found = []
        for ask in (
            program.weights,
            lambda: program.evaluate(session.loader((X, Y), train=False)),
            lambda: program.save("nowhere"),
        ):
            with pytest.raises(ConfigError, match=r"no weights before its first batch.*build"):
                ask()
            found.append(1)
        return len(found)

    assert alone(body) == 3


def test_l3_5_a_run_is_resumed_bit_for_bit_though_the_model_is_not_built_yet(tmp_path):
    def body(epochs: int, **fit: Any) -> Any:
        def train(session: ui.Session) -> Any:
            with session.scope():
                model = Net()
            program = compiled(session, model)
            program.fit(session.loader((X, Y)), epochs=epochs, **fit)
            return program.weights()

        return train

    alone(body(1, checkpoint=tmp_path))
    resumed = alone(body(2, checkpoint=tmp_path, resume="auto"))
    for name, value in alone(body(2)).items():
        assert np.array_equal(resumed[name], value), name


class Lazy(tf.Module):  # type: ignore[misc]  # of no known type
    """Makes its weight, and counts its calls."""

    def __init__(self, *, makes: bool = True) -> None:
        super().__init__()
        self.weight: Any = None
        self.makes = makes

    def __call__(self, x: Any) -> Any:
        if self.makes and self.weight is None:
            self.weight = tf.Variable(tf.ones((x.shape[-1], 1)))
        return tf.reduce_sum(x, 1, keepdims=True) if self.weight is None else x @ self.weight


def test_a_module_may_make_its_variables_in_its_first_call():
    def body(session: ui.Session) -> Any:
        model = Lazy()
        program = compiled(session, model, optimizer=ui.optim.SGD(0.5))
        program.step((X["number"][:2], Y[:2]))
        return program.weights()

    error = X["number"][:2].sum(1, keepdims=True) - Y[:2]
    expected = 1.0 - 0.5 * X["number"][:2].T @ error  # the mean of two squares
    assert list(weights := alone(body)) == ["weight"]
    assert np.allclose(weights["weight"], expected, rtol=1e-5)


def test_a_model_that_makes_no_variables_is_refused():
    def body(session: ui.Session) -> Any:
        compiled(session, Lazy(makes=False)).fit(session.loader((X["number"], Y)), epochs=1)

    assert "the first batch did not make any" in refused(body)


def test_names_to_train_are_checked_when_they_are_known():
    def body(session: ui.Session) -> Any:
        program = compiled(session, Net(), trainable=["dense/kernal"])
        program.fit(session.loader((X, Y)), epochs=1)

    assert "did you mean 'dense/kernel'" in refused(body)


def test_a_sequential_without_an_input_is_built_too():
    def body(session: ui.Session) -> Any:
        model = keras.Sequential([layers.Dense(3), layers.Dense(1)])
        program = compiled(session, model)
        program.fit(session.loader((X["number"], Y)), epochs=1)
        return {name: value.shape for name, value in program.weights().items()}

    assert alone(body) == {
        "dense/kernel": (3, 3),
        "dense/bias": (3,),
        "dense_1/kernel": (3, 1),
        "dense_1/bias": (1,),
    }


class Counts(keras.Model):  # type: ignore[misc]  # of no known type
    """Counts its calls, also in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = self.add_weight(
            name="calls", shape=(), initializer="zeros", trainable=False, dtype="float32"
        )
        self.head = layers.Dense(1)

    def call(self, x: Any) -> Any:
        self.calls.assign(self.calls + 1.0)
        return self.head(x)


def test_building_leaves_state_and_pythons_random_numbers_as_they_were():
    def body(session: ui.Session) -> Any:
        model = Counts()
        program = compiled(session, model)
        state = random.getstate()
        program.step((X["number"][:2], Y[:2]))
        assert random.getstate() == state
        return float(program.weights()["calls"])

    assert alone(body) == 1.0
