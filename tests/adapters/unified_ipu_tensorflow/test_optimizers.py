from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from unified_ipu.adapter import optim
from unified_ipu.errors import ConfigError
from unified_ipu.testing.oracle import adam_step, sgd_step
from unified_ipu_tensorflow.gradients import alias
from unified_ipu_tensorflow.optimizers import (
    build_optimizer as _build_optimizer,
    is_schedule,
)

pytestmark = pytest.mark.timeout(120)

STARTS = {
    "dense/kernel": np.random.default_rng(0).standard_normal((3, 2)),
    "dense/bias": np.random.default_rng(1).standard_normal(2),
}
TARGETS = {
    "dense/kernel": np.random.default_rng(2).standard_normal((3, 2)),
    "dense/bias": np.random.default_rng(3).standard_normal(2),
}
ALL = [True, True]

EXACT = [
    optim.SGD(0.1),
    optim.SGD(0.1, weight_decay=0.03),
    optim.SGD(0.1, momentum=0.9, weight_decay=0.01),
    optim.SGD(0.1, momentum=0.8, dampening=0.3),
    optim.SGD(0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    optim.Adam(0.05, weight_decay=0.1),
    optim.Adam(0.05, betas=(0.8, 0.95), eps=1e-3),
    optim.AdamW(0.05, weight_decay=0.1),
    optim.AdamW(0.05, weight_decay=0.0),
]


def build_optimizer(*arguments: Any) -> Any:
    return _build_optimizer(*arguments)


def variables(dtype="float64"):
    return {name: tf.Variable(value.astype(dtype)) for name, value in STARTS.items()}


def gradients(values):
    """Of half the squared distance to the targets, so they depend on the weights."""
    return {name: value - TARGETS[name].astype(value.dtype) for name, value in values.items()}


def step(optimizer, used=ALL, **options):
    values = {name: variable.numpy() for name, variable in optimizer.trained.items()}
    found = [
        tf.constant(gradient) if is_used else None
        for gradient, is_used in zip(gradients(values).values(), used)
    ]
    optimizer.apply(found, used, **options)


def oracle(settings, factors):
    values = dict(STARTS)
    states: Any = {name: {} for name in values}
    rule = adam_step if isinstance(settings, optim.Adam) else sgd_step
    for factor in factors:
        for name, gradient in gradients(values).items():
            rate = settings.lr * factor
            values[name] = rule(settings, values[name], gradient, states[name], rate)
    return values


def distance(optimizer, expected):
    return max(
        float(np.linalg.norm(variable.numpy() - expected[name]) / np.linalg.norm(expected[name]))
        for name, variable in optimizer.trained.items()
    )


def state(optimizer):
    found = {**optimizer.trained, **optimizer.slots()}
    return {name: variable.numpy().tobytes() for name, variable in found.items()}


@pytest.mark.parametrize("settings", EXACT, ids=str)
def test_l5_fifty_updates_at_changing_rates_follow_the_documented_rule(settings):
    factors = [1.0 / (1.0 + update % 7) for update in range(50)]
    optimizer = build_optimizer(settings, variables(), None)
    for factor in factors:
        step(optimizer, lr_factor=factor)
    assert distance(optimizer, oracle(settings, factors)) < 1e-12


@pytest.mark.parametrize("settings", EXACT, ids=str)
def test_l5_one_update_in_float32_is_the_oracles_to_rounding(settings):
    optimizer = build_optimizer(settings, variables("float32"), None)
    step(optimizer)
    expected = oracle(settings, [1.0])
    for name, variable in optimizer.trained.items():
        change = variable.numpy() - STARTS[name].astype(np.float32)
        wanted = expected[name] - STARTS[name]
        assert np.linalg.norm(change - wanted) / np.linalg.norm(wanted) < 5e-5


@pytest.mark.parametrize("settings", EXACT, ids=str)
def test_the_scale_multiplies_gradients_before_decay(settings):
    optimizer, other = (build_optimizer(settings, variables(), None) for _ in range(2))
    for _ in range(3):
        values = {name: variable.numpy() for name, variable in optimizer.trained.items()}
        optimizer.apply([tf.constant(g) for g in gradients(values).values()], ALL)
        doubled = [tf.constant(2.0 * g) for g in gradients(values).values()]
        other.apply(doubled, ALL, scale=0.5)
    assert state(other) == state(optimizer)


@pytest.mark.parametrize("settings", EXACT, ids=str)
def test_l1_10_what_was_not_used_stays_and_so_do_its_slots(settings):
    optimizer = build_optimizer(settings, variables(), None)
    step(optimizer)
    before = state(optimizer)
    step(optimizer, used=[True, False])
    after = state(optimizer)
    moved = {name for name, value in after.items() if value != before[name]}
    assert "dense/kernel" in moved
    assert not any(name.startswith("dense/bias") for name in moved)


def test_l1_10_each_variable_counts_its_own_steps():
    optimizer = build_optimizer(optim.Adam(0.1), variables(), None)
    step(optimizer, used=[False, True])
    assert sorted(optimizer.slots()) == [
        "dense/bias/exp_avg",
        "dense/bias/exp_avg_sq",
        "dense/bias/step",
    ]
    start = optimizer.trained["dense/kernel"].numpy()
    step(optimizer)
    counts = {name: float(v.numpy()) for name, v in optimizer.slots().items() if "/step" in name}
    assert counts == {"dense/kernel/step": 1.0, "dense/bias/step": 2.0}
    # The first step of Adam is the rate, whatever the gradient: the correction is the variable's.
    moved = np.abs(optimizer.trained["dense/kernel"].numpy() - start)
    assert moved == pytest.approx(np.full((3, 2), 0.1), rel=1e-6)


def test_a_count_that_is_read_or_written_between_steps_is_what_counts():
    variable = {"w": tf.Variable([0.0], dtype=tf.float64)}
    optimizer = build_optimizer(optim.Adam(1.0, betas=(0.5, 0.5), eps=0.0), variable, None)
    one = [tf.constant([1.0], tf.float64)]
    for expected in (1.0, 2.0, 3.0):
        optimizer.apply(one, [True])
        assert float(optimizer.slots()["w/step"].numpy()) == expected
    assert variable["w"].numpy() == pytest.approx([-3.0], rel=1e-12)
    optimizer.slots()["w/step"].assign(0.0)  # as after a restore
    optimizer.slots()["w/exp_avg"].assign([0.0])
    optimizer.slots()["w/exp_avg_sq"].assign([0.0])
    optimizer.apply(one, [True])
    assert variable["w"].numpy() == pytest.approx([-4.0], rel=1e-12)
    assert float(optimizer.slots()["w/step"].numpy()) == 1.0


def test_a_first_velocity_is_not_dampened_and_a_restored_one_is():
    settings = optim.SGD(1.0, momentum=0.5, dampening=0.5)
    variable = {"w": tf.Variable([0.0], dtype=tf.float64)}
    optimizer = build_optimizer(settings, variable, None)
    one = [tf.constant([1.0], tf.float64)]
    optimizer.apply(one, [True])
    assert variable["w"].numpy().tolist() == [-1.0]
    fresh = build_optimizer(settings, variable, None)
    fresh.make_slot("w/momentum_buffer").assign(optimizer.slots()["w/momentum_buffer"])
    fresh.apply(one, [True])  # velocity 0.5 * 1 + 0.5 * 1
    assert variable["w"].numpy().tolist() == [-2.0]


def test_slots_are_called_as_pytorch_calls_them_and_made_on_demand():
    optimizer = build_optimizer(optim.SGD(0.1, momentum=0.9), variables(), None)
    assert optimizer.slots() == {}
    assert optimizer.make_slot("dense/bias/momentum_buffer").shape == (2,)
    assert list(optimizer.slots()) == ["dense/bias/momentum_buffer"]
    for name in ("dense/bias/exp_avg", "other/momentum_buffer", "momentum_buffer"):
        assert optimizer.make_slot(name) is None
    optimizer.forget_slots()
    assert optimizer.slots() == {}
    assert build_optimizer(optim.SGD(0.1), variables(), None).make_slot("dense/bias/step") is None


def test_constraints_of_keras_variables_hold_after_each_step():
    layer = tf.keras.layers.Dense(1, kernel_constraint="non_neg", use_bias=False)
    layer.build((None, 2))
    layer.set_weights([np.array([[1.0], [1.0]], np.float32)])
    for kind in (optim.SGD(1.0), tf.keras.optimizers.SGD(1.0)):
        layer.set_weights([np.array([[1.0], [1.0]], np.float32)])
        optimizer = build_optimizer(kind, {"kernel": layer.trainable_weights[0]}, None)
        optimizer.apply([tf.constant([[0.25], [3.0]])], [True])
        assert layer.get_weights()[0].tolist() == [[0.75], [0.0]]


def restored(optimizer, settings):
    """Another optimizer over equal variables, with the state of the first."""
    own = {name: tf.Variable(v.numpy()) for name, v in optimizer.trained.items()}
    fresh = build_optimizer(settings, own, None)
    fresh.load_scalars(json.loads(json.dumps(optimizer.scalars())))
    fresh.forget_slots()
    for name, slot in optimizer.slots().items():
        target = fresh.slots().get(name)
        (fresh.make_slot(name) if target is None else target).assign(slot.numpy())
    assert fresh.scalars() == optimizer.scalars()
    assert state(fresh) == state(optimizer)
    return fresh


@pytest.mark.parametrize("settings", EXACT, ids=str)
def test_l3_5_a_restored_optimizer_goes_on_bit_for_bit(settings):
    optimizer = build_optimizer(settings, variables("float32"), None)
    for _ in range(3):
        step(optimizer)
    fresh = restored(optimizer, settings)
    for one in (optimizer, fresh):
        step(one)
        step(one)
    assert state(fresh) == state(optimizer)


def test_settings_come_from_the_saved_state():
    saved = build_optimizer(optim.Adam(0.5, betas=(0.1, 0.2)), variables(), None).scalars()
    optimizer = build_optimizer(optim.Adam(0.1), variables(), None)
    optimizer.load_scalars(json.loads(json.dumps(saved)))
    assert optimizer.learning_rates() == [0.5]
    assert optimizer.scalars() == saved


def saved_by(settings, names=("dense/kernel", "dense/bias"), **group):
    optimizer = build_optimizer(settings, {name: tf.Variable([1.0]) for name in names}, None)
    scalars = optimizer.scalars()
    scalars["optimizer"]["groups"][0].update(group)
    return scalars


@pytest.mark.parametrize(
    ("saved", "words"),
    [
        (saved_by(optim.SGD(0.1)), ["SGD", "Adam"]),
        (saved_by(optim.AdamW()), ["AdamW", "Adam"]),
        ({}, ["None", "Adam"]),
        (saved_by(optim.Adam(), names=["dense/kernel"]), ["saved: dense/kernel; here"]),
        (saved_by(optim.Adam(), amsgrad=True), ["amsgrad"]),
        ({**saved_by(optim.Adam()), "schedule_kind": "StepLR"}, ["StepLR", "None"]),
    ],
    ids=["sgd", "adamw", "none", "names", "amsgrad", "schedule"],
)
def test_a_state_that_does_not_fit_is_refused_and_nothing_changes(saved, words):
    optimizer = build_optimizer(optim.Adam(0.25), variables(), None)
    before = optimizer.scalars()
    with pytest.raises(ConfigError) as caught:
        optimizer.load_scalars(saved)
    assert all(word in str(caught.value) for word in words)
    assert optimizer.scalars() == before


def test_a_model_that_nothing_can_be_trained_of_is_refused():
    with pytest.raises(ConfigError, match="no trainable variable"):
        _build_optimizer(optim.SGD(0.1), {}, None)
    with pytest.raises(ConfigError, match="leaves no variable"):
        _build_optimizer(optim.SGD(0.1), {"w": tf.Variable(0.0)}, lambda _: False)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int32", "complex64"])
def test_variables_that_cannot_be_master_weights_are_refused(dtype):
    variable = tf.Variable(tf.zeros([2], dtype))
    with pytest.raises(ConfigError, match=f"'w' has dtype {dtype}"):
        build_optimizer(optim.SGD(0.1), {"w": variable}, None)


@pytest.mark.parametrize("wrong", ["adam", 3, tf.keras.losses.MeanSquaredError(), object])
def test_what_is_no_optimizer_is_refused(wrong):
    with pytest.raises(ConfigError, match="expected a Keras optimizer"):
        build_optimizer(wrong, variables(), None)


def test_without_an_optimizer_there_is_none():
    assert build_optimizer(None, variables(), None) is None


def test_a_schedule_of_rates_needs_an_optimizer_of_keras():
    schedule = tf.keras.optimizers.schedules.ExponentialDecay(1.0, 1, 0.5)
    assert is_schedule(schedule)
    assert not is_schedule(lambda update: 1.0)
    with pytest.raises(ConfigError, match="gives learning rates"):
        build_optimizer(optim.SGD(0.1), variables(), None, schedule)
    with pytest.raises(ConfigError, match="expected a LearningRateSchedule"):
        build_optimizer(optim.SGD(0.1), variables(), None, object())


@pytest.mark.parametrize("settings", EXACT, ids=str)
def test_no_variable_takes_the_memory_of_a_gradient(settings):
    raw = np.zeros(18, np.float64)
    start = -raw.ctypes.data % 64 // 8
    bucket = raw[start : start + 2]
    bucket[...] = [1.0, 2.0]
    gradient = alias(bucket)
    optimizer = build_optimizer(settings, {"w": tf.Variable([0.5, -0.5], dtype=tf.float64)}, None)
    optimizer.apply([gradient], [True])
    before = state(optimizer)
    bucket[...] = 7.0
    assert state(optimizer) == before
    for variable in [*optimizer.trained.values(), *optimizer.slots().values()]:
        variable.assign_add(variable)
    assert bucket.tolist() == [7.0, 7.0]
