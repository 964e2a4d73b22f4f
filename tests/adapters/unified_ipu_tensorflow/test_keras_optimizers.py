"""Keras' own optimizers: what they do by themselves is the expectation, with literals beside it."""

from __future__ import annotations

import json
from typing import Any, Dict, List

import numpy as np
import pytest
import tensorflow as tf

from unified_ipu.errors import ConfigError
from unified_ipu_tensorflow.gradients import alias
from unified_ipu_tensorflow.keras_generation import is_keras3
from unified_ipu_tensorflow.optimizers import build_optimizer as _build_optimizer

pytestmark = pytest.mark.timeout(120)

KERAS3 = is_keras3(tf.keras.optimizers.SGD())
ExponentialDecay = tf.keras.optimizers.schedules.ExponentialDecay
VALUES: Dict[str, Any] = {"a/kernel": [[1.0, -2.0], [0.5, 3.0]], "a/bias": [0.25, -0.5]}
GRADIENTS: Any = [[[0.5, -1.0], [2.0, 0.25]], [1.0, -0.125]]
BOTH = [True, True]

KINDS: Dict[str, Dict[str, Any]] = {
    "SGD": {},
    "momentum": {"momentum": 0.9, "nesterov": True},
    "RMSprop": {"momentum": 0.5, "centered": True},
    "Adagrad": {},
    "Adadelta": {},
    "Adam": {"amsgrad": True},
    "Adamax": {},
    "Nadam": {},
    "Ftrl": {},
}
if KERAS3:
    KINDS.update({"AdamW": {"weight_decay": 0.1}, "Lion": {}, "Lamb": {}})


def build_optimizer(*arguments: Any) -> Any:
    return _build_optimizer(*arguments)


def make(kind, rate=0.125):
    name = "SGD" if kind == "momentum" else kind
    return getattr(tf.keras.optimizers, name)(learning_rate=rate, **KINDS[kind])


def variables():
    return {name: tf.Variable(value, dtype=tf.float32) for name, value in VALUES.items()}


def gradients(factor=1.0):
    return [tf.constant(gradient) * factor for gradient in GRADIENTS]


def state(optimizer):
    found = {**optimizer.trained, **optimizer.slots()}
    return {name: variable.numpy().tobytes() for name, variable in found.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_is_keras_own(kind):
    theirs, plain = variables(), make(kind)
    optimizer = build_optimizer(make(kind), variables(), None)
    for update in range(5):
        plain.apply_gradients(list(zip(gradients(1.0 + update), theirs.values())))
        optimizer.apply(gradients(2.0 + 2.0 * update), BOTH, scale=0.5)
    for name, variable in optimizer.trained.items():
        assert variable.numpy() == pytest.approx(theirs[name].numpy(), rel=1e-6), name
        assert not np.allclose(variable.numpy(), VALUES[name])


def test_the_factor_multiplies_the_rate_and_is_put_back():
    own = tf.keras.optimizers.SGD(0.5)
    optimizer = build_optimizer(own, variables(), None)
    optimizer.apply(gradients(), BOTH, lr_factor=0.5)
    assert optimizer.trained["a/bias"].numpy().tolist() == [0.0, -0.46875]
    assert optimizer.learning_rates() == [0.5]
    own.learning_rate.assign(0.25)  # as a callback of the user may
    optimizer.apply(gradients(), BOTH)
    assert optimizer.trained["a/bias"].numpy().tolist() == [-0.25, -0.4375]
    assert optimizer.learning_rates() == [0.25]


def test_another_rate_factor_or_scale_traces_nothing_anew():
    traces = []

    class Counting(tf.keras.optimizers.SGD):  # type: ignore[misc]  # whatever tf.keras is
        def apply_gradients(self, *arguments, **options):
            traces.append("keras 2")
            return super().apply_gradients(*arguments, **options)

        def apply(self, *arguments, **options):
            traces.append("keras 3")
            return super().apply(*arguments, **options)

    optimizer = build_optimizer(Counting(0.5), variables(), None)
    for update in range(1, 5):
        optimizer.apply(gradients(), BOTH, lr_factor=1.0 / update, scale=0.3 * update)
    assert len(traces) == 1
    for update in range(1, 5):
        optimizer.apply(gradients(), BOTH, lr_factor=1.0 / update)
    assert len(traces) == 2  # the one that leaves gradients as they are
    for _ in range(3):
        optimizer.apply([None, gradients()[1]], [False, True])
    assert len(traces) == 3


@pytest.mark.parametrize("kind", ["momentum", "Adam", "RMSprop"])
def test_l1_10_what_was_not_used_stays_and_so_do_its_slots(kind):
    optimizer = build_optimizer(make(kind), variables(), None)
    optimizer.apply(gradients(), BOTH)
    before = state(optimizer)
    optimizer.apply(gradients(), [True, False])
    moved = {name for name, value in state(optimizer).items() if value != before[name]}
    assert "a/kernel" in moved
    assert not any(name.startswith("a/bias") for name in moved)


def aliased(values):
    """An array on a 64-byte line, and a tensor of the same memory: as a bucket and its gradient."""
    raw = np.zeros(len(values) + 16, np.float32)
    start = -raw.ctypes.data % 64 // 4
    view = raw[start : start + len(values)]
    view[...] = values
    tensor = alias(view)
    assert tensor is not None
    return view, tensor


class Keeping(tf.keras.optimizers.SGD):  # type: ignore[misc]  # whatever tf.keras is
    """Of a user: keeps the last gradient."""

    def apply_gradients(self, pairs: Any, **options: Any) -> Any:  # Keras 2
        for gradient, _ in pairs:
            kept.assign(gradient)
        return super().apply_gradients(pairs, **options)

    def apply(self, gradients: Any, variables: Any = None) -> Any:  # Keras 3
        kept.assign(gradients[0])
        return super().apply(gradients, variables)


kept = tf.Variable([0.0, 0.0])


def test_a_class_of_the_users_gets_gradients_that_nobody_writes_into():
    optimizer = build_optimizer(Keeping(1.0), {"w": tf.Variable([0.0, 0.0])}, None)
    bucket, gradient = aliased([1.0, 2.0])
    for _ in range(2):
        optimizer.apply([gradient], [True])
        bucket[...] = 7.0
        assert kept.numpy().tolist() == [1.0, 2.0]
        bucket[...] = [1.0, 2.0]
        kept.assign_add([1.0, 1.0])
        assert bucket.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("kind", KINDS)
def test_no_optimizer_of_keras_takes_the_memory_of_a_gradient(kind):
    optimizer = build_optimizer(make(kind), {"w": tf.Variable([0.5, -0.5])}, None)
    bucket, gradient = aliased([1.0, 2.0])
    optimizer.apply([gradient], [True])
    before = state(optimizer)
    bucket[...] = 7.0
    assert state(optimizer) == before
    for variable in [*optimizer.trained.values(), *optimizer.slots().values()]:
        variable.assign_add(variable)
    assert bucket.tolist() == [7.0, 7.0]


def test_more_sets_of_used_variables_than_are_traced_still_step():
    many = {f"w{k}": tf.Variable([0.0]) for k in range(12)}
    optimizer = build_optimizer(tf.keras.optimizers.SGD(1.0), many, None)
    one = tf.constant([1.0])
    for index in range(12):
        used = [k == index for k in range(12)]
        optimizer.apply([one if flag else None for flag in used], used)
    assert [variable.numpy().tolist() for variable in many.values()] == [[-1.0]] * 12


@pytest.mark.parametrize("kind", KINDS)
def test_l3_5_a_restored_optimizer_goes_on_bit_for_bit(kind):
    optimizer = build_optimizer(make(kind), variables(), None)
    for update in range(3):
        optimizer.apply(gradients(1.0 + update), BOTH)
    own = {name: tf.Variable(variable.numpy()) for name, variable in optimizer.trained.items()}
    fresh = build_optimizer(make(kind, rate=0.5), own, None)
    fresh.load_scalars(json.loads(json.dumps(optimizer.scalars())))
    fresh.forget_slots()
    assert list(fresh.slots()) == list(optimizer.slots())
    for name, slot in optimizer.slots().items():
        fresh.slots()[name].assign(slot.numpy())
    assert fresh.scalars() == optimizer.scalars()
    for one in (optimizer, fresh):
        one.apply(gradients(4.0), BOTH)
        one.apply(gradients(5.0), BOTH)
    assert state(fresh) == state(optimizer)


def test_slots_have_names_of_their_variables():
    own = tf.keras.optimizers.Adam(0.1)
    optimizer = build_optimizer(own, variables(), None)
    names = ["a/kernel/momentums", "a/kernel/velocities", "a/bias/momentums", "a/bias/velocities"]
    if not KERAS3:
        names = ["a/kernel/m", "a/kernel/v", "a/bias/m", "a/bias/v"]
    assert list(optimizer.slots()) == names
    optimizer.apply(gradients(), BOTH)
    assert optimizer.slots()[names[2]].numpy() == pytest.approx([0.1, -0.0125])
    assert optimizer.slots()[names[1]].numpy() == pytest.approx(
        np.square(GRADIENTS[0]) * 0.001, rel=1e-4
    )
    assert optimizer.make_slot("a/kernel/other") is None


@pytest.mark.parametrize("as_argument", [False, True])
def test_l2_11_a_schedule_holds_for_a_call_and_counts_updates(as_argument):
    schedule = ExponentialDecay(1.0, 1, 0.5)
    own = tf.keras.optimizers.SGD(0.75 if as_argument else schedule)
    given = schedule if as_argument else None
    weight = tf.Variable([0.0])
    optimizer = build_optimizer(own, {"w": weight}, None, given)
    one = [tf.constant([1.0])]
    seen: List[Any] = []
    for updates in (2, 1, 0, 3):
        assert optimizer.learning_rates() == [0.5 ** sum(count for count, _ in seen)]
        for _ in range(updates):
            optimizer.apply(one, [True], lr_factor=2.0)
        optimizer.end_call(updates)
        seen.append((updates, float(weight.numpy()[0])))
    # Rates 1, 0.25, 0.125 and 0.125, times 2.
    assert seen == [(2, -4.0), (1, -4.5), (0, -4.5), (3, -5.25)]
    optimizer.close()
    if as_argument:
        assert float(own.learning_rate) == 0.75
    else:
        own.apply_gradients([(one[0], weight)])  # Keras' own counter is at 6
        assert float(weight.numpy()[0]) == -5.25 - 2.0**-6


Schedule: Any = tf.keras.optimizers.schedules.LearningRateSchedule


class Custom(Schedule):  # type: ignore[misc]  # whatever tf.keras is
    """As users write them: no ``get_config``."""

    def __call__(self, step):
        return 1.0 / (1.0 + tf.cast(step, tf.float32))


def test_l3_5_the_position_of_a_schedule_comes_back():
    optimizer = build_optimizer(tf.keras.optimizers.SGD(Custom()), variables(), None)
    optimizer.apply(gradients(), BOTH)
    optimizer.end_call(3)
    saved = json.loads(json.dumps(optimizer.scalars()))
    fresh = build_optimizer(tf.keras.optimizers.SGD(Custom()), variables(), None)
    fresh.load_scalars(saved)
    assert fresh.learning_rates() == [0.25]
    assert fresh.scalars() == optimizer.scalars()
    fresh.end_call(1)
    assert fresh.learning_rates() == [np.float32(0.2)]


def saved_by(optimizer, names=tuple(VALUES)):
    own = {name: tf.Variable(VALUES.get(name, [1.0])) for name in names}
    return build_optimizer(optimizer, own, None).scalars()


def test_a_state_that_does_not_fit_is_refused_and_nothing_changes():
    optimizer = build_optimizer(tf.keras.optimizers.Adam(0.25), variables(), None)
    before = optimizer.scalars()
    keras = tf.keras.optimizers
    for saved, words in (
        (saved_by(keras.SGD(0.1)), "SGD, this program has Adam"),
        ({}, "optimizer None"),
        (saved_by(keras.Adam(), names=["a/kernel"]), "saved: a/kernel; here"),
        (saved_by(keras.Adam(beta_1=0.5)), r"Adam\(beta_1=0.5\)"),
        (saved_by(keras.Adam(ExponentialDecay(1.0, 1, 0.5))), "scheduler ExponentialDecay"),
    ):
        with pytest.raises(ConfigError, match=words):
            optimizer.load_scalars(saved)
        assert optimizer.scalars() == before


REFUSED = [{"clipnorm": 1.0}, {"global_clipnorm": 1.0}, {"clipvalue": 1.0}]
if KERAS3:
    REFUSED += [
        {"use_ema": True},
        {"gradient_accumulation_steps": 2},
        {"loss_scale_factor": 2.0},
    ]
else:
    REFUSED += [{"decay": 0.5}]


@pytest.mark.parametrize("options", REFUSED, ids=str)
def test_what_the_plan_decides_is_refused_in_the_optimizer(options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        build_optimizer(tf.keras.optimizers.SGD(0.1, **options), variables(), None)


def test_a_loss_scale_around_an_optimizer_is_refused():
    wrapped = tf.keras.mixed_precision.LossScaleOptimizer(tf.keras.optimizers.SGD(0.1))
    with pytest.raises(ConfigError, match="loss_scale"):
        build_optimizer(wrapped, variables(), None)


def test_a_rate_that_is_computed_by_a_callable_is_refused():
    with pytest.raises(ConfigError, match="learning_rate"):
        build_optimizer(tf.keras.optimizers.SGD(lambda: 0.1), variables(), None)


def test_two_schedules_are_refused():
    schedule = ExponentialDecay(1.0, 1, 0.5)
    with pytest.raises(ConfigError, match="leave one of them out"):
        build_optimizer(tf.keras.optimizers.SGD(schedule), variables(), None, schedule)


if KERAS3:  # those of Keras 2 belong to no variables

    def test_an_optimizer_that_was_built_trains_what_it_was_built_on():
        own, all_variables = tf.keras.optimizers.Adam(0.1), variables()
        own.build([all_variables["a/bias"]])
        own.apply([tf.constant(GRADIENTS[1])])
        optimizer = build_optimizer(own, all_variables, None)
        assert list(optimizer.trained) == ["a/bias"]
        assert list(optimizer.slots()) == ["a/bias/momentums", "a/bias/velocities"]
        assert optimizer.scalars()["optimizer"]["iterations"] == 1
        with pytest.raises(ConfigError, match="leave trainable= out"):
            build_optimizer(own, all_variables, ["a/bias"])
        with pytest.raises(ConfigError, match="built on 1 variables, of which 0"):
            build_optimizer(own, variables(), None)

    def test_state_that_belongs_to_no_variable_is_refused():
        class Odd(tf.keras.optimizers.SGD):  # type: ignore[misc]  # whatever tf.keras is
            def build(self, variables):
                super().build(variables)
                self.history = self.add_variable(shape=(7,), name="history")

        with pytest.raises(ConfigError, match=r"shape \[7\]"):
            build_optimizer(Odd(0.1), variables(), None)
