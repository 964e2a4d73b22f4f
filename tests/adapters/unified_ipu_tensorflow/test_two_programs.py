"""Two programs over shared models, as in a GAN, on several ranks."""

from __future__ import annotations

from typing import Any, List

import numpy as np
import pytest
import tensorflow as tf

import unified_ipu as ui
from tests.adapters.unified_ipu_tensorflow.driving import data, distance, keras, layers, mlp
from unified_ipu.testing.threads import RanksFailedError, run_ranks

pytestmark = pytest.mark.timeout(120)


HAS_KEYED_CRITICS = int(keras.__version__.partition(".")[0]) > 2


def critic(rate: float) -> Any:
    dense = layers.Dense(1, dtype="float64", use_bias=False, name="dense")
    drop = layers.Dropout(rate, dtype="float64")
    model = keras.Sequential([keras.Input((1,), dtype="float64"), drop, dense])
    dense.set_weights([np.array([[0.5]])])
    return model


def train(size: int, rate: float = 0.25) -> List[Any]:
    x, real = data(10)

    def rank(world: Any, communicator: Any) -> Any:
        plan = ui.Plan().replace(
            {"mesh.data": size, "batch.global_batch_size": 6, "batch.micro_batch_size": 2}
        )
        with ui.Session(plan, world=world, communicator=communicator, argv=[]) as session:
            generator, judge = mlp(), critic(rate)

            def fool(model: Any, batch: Any) -> ui.Loss:
                scores = judge(model(batch[0]))
                return ui.Loss(sum=-tf.reduce_sum(scores), weight=tf.shape(scores)[0])

            def tell(model: Any, batch: Any) -> ui.Loss:
                difference = model(generator(batch[0])) - model(batch[1])
                penalty = tf.square(model.trainable_variables[0])
                total = tf.reduce_sum(difference + penalty)
                return ui.Loss(sum=total, weight=tf.shape(difference)[0])

            first = session.compile(
                generator, objective=fool, optimizer=ui.optim.SGD(0.1, momentum=0.5)
            )
            second = session.compile(judge, objective=tell, optimizer=ui.optim.Adam(0.01))
            train = session.loader((x, real))
            for _ in range(2):
                for call in train:
                    held = call.held()
                    second.step(held)
                    first.step(held)
            return [
                np.array(w) for w in (*generator.get_weights(), *judge.layers[-1].get_weights())
            ]

    return run_ranks(size, rank, timeout_seconds=60.0)


def test_evaluation_between_updates_may_show_what_else_is_random():
    x, real = data(4)
    judge = critic(0.5)

    def body(evaluates: bool) -> Any:
        def rank(world: Any, communicator: Any) -> Any:
            plan = ui.Plan().replace({"batch.global_batch_size": 4, "batch.micro_batch_size": 4})
            with ui.Session(plan, world=world, communicator=communicator, argv=[]) as session:
                generator = mlp()

                def objective(model: Any, batch: Any) -> ui.Loss:
                    made = model(batch[0])
                    if is_evaluated[0]:
                        made = judge(made, training=True)
                    return ui.Loss(sum=tf.reduce_sum(made), weight=tf.shape(made)[0])

                is_evaluated = [False]
                program = session.compile(
                    generator, objective=objective, optimizer=ui.optim.SGD(0.1)
                )
                test = session.loader((x, real), train=False)
                program.step((x, real))
                is_evaluated[0] = True
                if evaluates:
                    first, second = (program.evaluate(test)["loss"] for _ in range(2))
                    assert first == second  # of one key
                is_evaluated[0] = False
                program.step((x, real))
                return generator.get_weights()

        return run_ranks(1, rank, timeout_seconds=60.0)[0]

    if HAS_KEYED_CRITICS:
        assert distance(body(True), body(False)) == 0.0


@pytest.mark.parametrize("rate", [0.0, 0.25])
def test_both_halves_train_alike_in_every_world(rate):
    """Also with dropout in the critic, which draws in both programs."""
    if rate and not HAS_KEYED_CRITICS:
        with pytest.raises(RanksFailedError, match="draws random numbers"):
            train(1, rate)
        return
    (alone,) = train(1, rate)
    start = [*mlp().get_weights(), np.array([[0.5]])]
    assert min(np.abs(a - b).max() for a, b in zip(alone, start)) > 1e-3
    for found in train(2, rate):
        assert distance(found, alone) < 1e-10
