"""Keras losses as pairs (S, W): against Keras' own values of whole batches, and numpy formulas."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import tensorflow as tf

from unified_ipu.adapter import losses as shared
from unified_ipu.errors import ConfigError
from unified_ipu_tensorflow.keras_generation import is_keras3
from unified_ipu_tensorflow.losses import (
    UNITS,
    WEIGHTS,
    KerasLoss,
    as_keras_loss,
    denominator,
    is_loss,
    reduction_of,
)
from unified_ipu_tensorflow.shared_losses import SharedLoss

pytestmark = pytest.mark.timeout(120)

keras = tf.keras
KERAS3 = is_keras3(keras.losses.MeanSquaredError())
ROWS = 12
RNG = np.random.default_rng(7)
HAS_TYPE = "dtype" in inspect.signature(keras.losses.MeanSquaredError).parameters
FLOAT64 = {"dtype": "float64"} if HAS_TYPE else {}
SPLITS = [(12,), (6, 6), (5, 4, 3), (1, 2, 9), (1,) * 12]


def softmax(values):
    raised = np.exp(values - values.max(-1, keepdims=True))
    return raised / raised.sum(-1, keepdims=True)


def sequences():
    """Labels and logits of a connectionist loss: every row has a path."""
    return RNG.integers(1, 4, (ROWS, 3)).astype("float64"), RNG.normal(size=(ROWS, 8, 5))


REAL = RNG.normal(size=(ROWS, 3)), RNG.normal(size=(ROWS, 3))
POSITIVE = np.abs(REAL[0]) + 0.1, np.abs(REAL[1]) + 0.1
BITS = (REAL[0] > 0).astype("float64"), softmax(REAL[1])
ONE_HOT = np.eye(3)[RNG.integers(0, 3, ROWS)], softmax(REAL[1])
INDICES = RNG.integers(0, 3, ROWS), softmax(REAL[1])
PIXELS = RNG.integers(0, 3, (ROWS, 4, 2)), softmax(RNG.normal(size=(ROWS, 4, 2, 3)))

DATA = {
    "BinaryCrossentropy": BITS,
    "BinaryFocalCrossentropy": BITS,
    "CTC": sequences(),
    "CategoricalCrossentropy": ONE_HOT,
    "CategoricalFocalCrossentropy": ONE_HOT,
    "CategoricalGeneralizedCrossEntropy": (INDICES[0], ONE_HOT[1]),
    "CategoricalHinge": ONE_HOT,
    "CosineSimilarity": REAL,
    "Hinge": (np.sign(REAL[0]), REAL[1]),
    "Huber": REAL,
    "KLDivergence": ONE_HOT,
    "LogCosh": REAL,
    "MeanAbsoluteError": REAL,
    "MeanAbsolutePercentageError": POSITIVE,
    "MeanSquaredError": REAL,
    "MeanSquaredLogarithmicError": POSITIVE,
    "Poisson": POSITIVE,
    "SparseCategoricalCrossentropy": INDICES,
    "SquaredHinge": (np.sign(REAL[0]), REAL[1]),
}
WHOLE_BATCH = {"Circle", "Dice", "Tversky"}  # a row's loss depends on the other rows


def kinds():
    found = {}
    for name, kind in vars(keras.losses).items():
        is_loss_class = inspect.isclass(kind) and issubclass(kind, keras.losses.Loss)
        if is_loss_class and kind is not keras.losses.Loss:
            found[name] = kind
    return found


def splits(name):
    return SPLITS[2:4] if name == "CTC" else SPLITS  # CTC is slow without a graph


EACH = sorted(set(DATA) & set(kinds()))


def tolerance(name):
    """CTC computes in float32, and without a type of its own a loss is reduced in it."""
    return 1e-12 if HAS_TYPE and name != "CTC" else 1e-6


def pair(loss, targets, outputs, **options):
    rows = outputs.shape[0]
    found = KerasLoss(loss).sum(tf.constant(outputs), tf.constant(targets), rows=rows, **options)
    return float(found.total), float(found.weight)


def joined(loss, targets, outputs, split, **parts):
    """S / W over the parts of a batch."""
    total, weight, first = 0.0, 0.0, 0
    for size in split:
        rows = slice(first, first + size)
        options = {name: tf.constant(value[rows]) for name, value in parts.items()}
        found = pair(loss, targets[rows], outputs[rows], **options)
        total, weight, first = total + found[0], weight + found[1], first + size
    return total / weight


def test_every_loss_of_keras_is_in_this_test():
    assert set(kinds()) <= set(DATA) | WHOLE_BATCH
    if HAS_TYPE:
        assert set(kinds()) == set(DATA) | WHOLE_BATCH


@pytest.mark.parametrize("name", EACH)
def test_l1_2_a_split_batch_gives_the_value_of_keras_for_the_whole(name):
    loss = kinds()[name](**FLOAT64)
    targets, outputs = DATA[name]
    whole = float(loss(tf.constant(targets), tf.constant(outputs)))
    for split in splits(name):
        assert joined(loss, targets, outputs, split) == pytest.approx(whole, rel=tolerance(name))


@pytest.mark.parametrize("name", EACH)
def test_l1_2_sample_weights_scale_rows_and_do_not_count_as_in_keras(name):
    loss = kinds()[name](**FLOAT64)
    targets, outputs = DATA[name]
    weights = RNG.uniform(0.0, 2.0, ROWS)
    whole = float(loss(tf.constant(targets), tf.constant(outputs), tf.constant(weights)))
    for split in splits(name):
        found = joined(loss, targets, outputs, split, sample_weight=weights)
        assert found == pytest.approx(whole, rel=tolerance(name))


@pytest.mark.parametrize("name", EACH)
def test_l2_9_rows_of_padding_do_not_count(name):
    loss = kinds()[name](**FLOAT64)
    targets, outputs = DATA[name]
    whole = pair(loss, targets[:9], outputs[:9])
    counted = tf.constant([True] * 9 + [False] * 3)
    found = pair(loss, targets, outputs, counted=counted)
    assert found == pytest.approx(whole, rel=0.1 * tolerance(name))


def test_l2_9_what_padding_holds_does_not_matter():
    targets, outputs = REAL
    spoilt = outputs.copy()
    spoilt[9:] = np.nan
    counted = tf.constant([True] * 9 + [False] * 3)
    loss = keras.losses.MeanSquaredError(**FLOAT64)
    assert pair(loss, targets, spoilt, counted=counted) == pair(loss, targets[:9], outputs[:9])
    described = SharedLoss(shared.mean_squared_error())
    found = described.sum(tf.constant(spoilt), tf.constant(targets), rows=ROWS, counted=counted)
    assert float(found.total) == pytest.approx(((targets - outputs)[:9] ** 2).sum(), rel=1e-13)


def test_values_of_float64_formulas():
    targets, outputs = REAL
    distance = np.abs(targets - outputs)
    square = (distance**2).mean(1)
    assert pair(keras.losses.MeanSquaredError(**FLOAT64), targets, outputs) == pytest.approx(
        (square.sum(), 12.0), rel=1e-13
    )
    assert pair(keras.losses.MeanAbsoluteError(**FLOAT64), targets, outputs) == pytest.approx(
        (distance.mean(1).sum(), 12.0), rel=1e-13
    )
    near = np.where(distance <= 0.5, distance**2 / 2, 0.5 * (distance - 0.25)).mean(1).sum()
    assert pair(keras.losses.Huber(delta=0.5, **FLOAT64), targets, outputs) == pytest.approx(
        (near, 12.0), rel=tolerance("Huber")
    )
    sparse = keras.losses.SparseCategoricalCrossentropy(from_logits=True, **FLOAT64)
    entropy = -np.log(softmax(outputs)[np.arange(ROWS), INDICES[0]]).sum()
    assert pair(sparse, INDICES[0], outputs) == pytest.approx((entropy, 12.0), rel=1e-12)
    binary = keras.losses.BinaryCrossentropy(from_logits=True, **FLOAT64)
    bits = BITS[0]
    each = np.log1p(np.exp(outputs)) - bits * outputs
    assert pair(binary, bits, outputs) == pytest.approx((each.mean(1).sum(), 12.0), rel=1e-12)


def test_every_position_is_a_unit():
    loss = keras.losses.SparseCategoricalCrossentropy(**FLOAT64)
    targets, outputs = PIXELS
    total, weight = pair(loss, targets, outputs)
    each = np.take_along_axis(np.log(outputs), targets[..., None], -1)
    assert (total, weight) == pytest.approx((-each.sum(), 96.0), rel=1e-6)
    weights = RNG.uniform(0.5, 2.0, ROWS)
    weighed = pair(loss, targets, outputs, sample_weight=tf.constant(weights))
    expected = -(each[..., 0] * weights[:, None, None]).sum()
    assert weighed == pytest.approx((expected, 96.0), rel=1e-6)


needs_keras3 = pytest.mark.skipif(not KERAS3, reason="Keras 2.6 has no ignore_class")


@needs_keras3
@pytest.mark.case("O-G1")
def test_l1_2_ignored_classes_are_no_units_however_the_batch_is_split():
    loss = keras.losses.SparseCategoricalCrossentropy(ignore_class=2, **FLOAT64)
    targets, outputs = PIXELS
    whole = float(loss(targets, outputs))
    for split in SPLITS:
        assert joined(loss, targets, outputs, split) == pytest.approx(whole, rel=1e-12)
    assert pair(loss, targets, outputs)[1] == float(np.count_nonzero(targets != 2))
    weights = RNG.uniform(0.5, 2.0, (ROWS, 4, 2))
    whole = float(loss(targets, outputs, weights))
    for split in SPLITS:
        found = joined(loss, targets, outputs, split, sample_weight=weights)
        assert found == pytest.approx(whole, rel=1e-12)


@needs_keras3
def test_l1_5_nothing_counted_is_no_nan():
    loss = KerasLoss(keras.losses.SparseCategoricalCrossentropy(ignore_class=2, **FLOAT64))
    outputs = tf.Variable(INDICES[1])
    targets = np.full(ROWS, 2)
    with tf.GradientTape() as tape:
        found = loss.sum(outputs * 1.0, tf.constant(targets), rows=ROWS)
    assert (float(found.total), float(found.weight)) == (0.0, 0.0)
    assert not np.any(tape.gradient(found.total, outputs).numpy())
    assert loss.is_empty(targets, None)
    assert not loss.is_empty(INDICES[0], None)
    assert loss.is_empty(np.array([2, 0]), np.array([True, False]))


@needs_keras3
def test_a_mean_over_sample_weights_is_divided_by_them():
    loss = keras.losses.MeanSquaredError(reduction="mean_with_sample_weight", **FLOAT64)
    targets, outputs = REAL
    weights = RNG.uniform(0.5, 2.0, ROWS)
    whole = float(loss(targets, outputs, weights))
    for split in SPLITS:
        found = joined(loss, targets, outputs, split, sample_weight=weights)
        assert found == pytest.approx(whole, rel=1e-12)
    total, weight = pair(loss, targets, outputs, sample_weight=tf.constant(weights))
    assert weight == pytest.approx(weights.sum(), rel=1e-14)
    assert total / weight == pytest.approx(whole, rel=1e-12)
    assert denominator(loss) == WEIGHTS


def test_masks_of_the_model_take_positions_out():
    loss = keras.losses.MeanSquaredError(**FLOAT64)
    targets, values = RNG.normal(size=(4, 5, 2)), RNG.normal(size=(4, 5, 2))
    mask = RNG.integers(0, 2, (4, 5)).astype(bool)
    outputs = tf.constant(values)
    outputs._keras_mask = tf.constant(mask)
    found = KerasLoss(loss).sum(outputs, tf.constant(targets), rows=4)
    each = ((targets - values) ** 2).mean(-1)
    assert float(found.total) == pytest.approx(each[mask].sum(), rel=1e-13)
    assert float(found.weight) == float(mask.sum())
    if KERAS3:
        assert float(loss(targets, outputs)) == pytest.approx(each[mask].mean(), rel=1e-13)


@pytest.mark.parametrize("reduction", ["sum_over_batch_size", "sum", "none"])
def test_l1_2_the_reduction_of_a_loss_does_not_show(reduction):
    loss = keras.losses.MeanSquaredError(reduction=reduction, **FLOAT64)
    plain = pair(keras.losses.MeanSquaredError(**FLOAT64), *REAL)
    assert pair(loss, *REAL) == plain
    assert reduction_of(loss) == ("mean" if reduction.startswith("sum_") else reduction)


def test_a_loss_over_the_whole_micro_batch_counts_its_rows_and_refuses_padding():
    class Largest(keras.losses.Loss):  # type: ignore[misc,name-defined]  # TensorFlow has no types
        def call(self, y_true, y_pred):
            return tf.reduce_max(tf.abs(y_true - y_pred))

    targets, outputs = REAL
    total, weight = pair(Largest(**FLOAT64), targets, outputs)
    assert weight == 12.0
    assert total == pytest.approx(12.0 * np.abs(targets - outputs).max(), rel=1e-14)
    with pytest.raises(ConfigError, match='loss_reduction="none"'):
        pair(Largest(), targets, outputs, counted=tf.constant([True] * 11 + [False]))


def test_names_and_functions_are_the_losses_that_keras_makes_of_them():
    by_name = as_keras_loss("mse")
    assert is_loss(by_name)
    targets, outputs = (part.astype("float32") for part in REAL)
    expected = float(keras.losses.MeanSquaredError()(targets, outputs))
    for loss in (by_name, as_keras_loss(keras.losses.get("mean_squared_error"))):
        total, weight = pair(loss, targets, outputs)
        assert weight == 12.0
        assert total / weight == pytest.approx(expected, rel=1e-6)
        assert denominator(loss) == UNITS

    def own(y_true, y_pred):
        return tf.reduce_sum(y_true - y_pred, -1)  # not symmetric: the order shows

    total, weight = pair(as_keras_loss(own), targets, outputs)
    assert weight == 12.0
    assert total == pytest.approx(float((targets - outputs).sum()), rel=1e-4)
    assert as_keras_loss(lambda outputs, targets: outputs) is not None
    assert denominator(lambda outputs, targets: outputs) is None
    with pytest.raises(ConfigError, match="'mee'"):
        as_keras_loss("mee")
    with pytest.raises(ConfigError, match="is a class"):
        as_keras_loss(keras.losses.MeanSquaredError)


def test_a_column_of_outputs_meets_targets_without_an_axis():
    targets, outputs = RNG.normal(size=5), RNG.normal(size=(5, 1))
    expected = ((targets - outputs[:, 0]) ** 2).sum()
    for loss in (keras.losses.MeanSquaredError(**FLOAT64),):
        assert pair(loss, targets, outputs) == pytest.approx((expected, 5.0), rel=1e-13)


def test_a_loss_that_reduces_by_itself_is_not_taken_for_one_of_keras():
    class Own(keras.losses.Loss):  # type: ignore[misc,name-defined]  # TensorFlow has no types
        def __call__(self, y_true, y_pred, sample_weight=None):
            return tf.reduce_mean(y_true)

    assert not is_loss(Own())
    assert denominator(Own()) is None


def test_sample_weights_of_another_length_are_refused():
    with pytest.raises(ConfigError, match=r"\[3\] for 12 rows"):
        pair(keras.losses.MeanSquaredError(), *REAL, sample_weight=tf.ones(3))


WEIGHTS_OF_CLASSES = (0.5, 2.0, 1.0)


def test_shared_losses_divide_as_they_say():
    outputs = RNG.normal(size=(ROWS, 3, 4))
    targets = RNG.integers(0, 3, (ROWS, 4))
    targets[3], targets[5, 1] = -100, -100
    loss = SharedLoss(shared.softmax_cross_entropy(class_weights=WEIGHTS_OF_CLASSES))
    kept = targets != -100
    index = np.where(kept, targets, 0)
    weights = np.where(kept, np.array(WEIGHTS_OF_CLASSES)[index], 0.0)
    logs = np.log(softmax(np.moveaxis(outputs, 1, -1)))
    each = -np.take_along_axis(logs, index[..., None], -1)[..., 0] * weights
    found = loss.sum(tf.constant(outputs), tf.constant(targets), rows=ROWS)
    assert float(found.total) == pytest.approx(each.sum(), rel=1e-12)
    assert float(found.weight) == pytest.approx(weights.sum(), rel=1e-14)
    counted = np.arange(ROWS) < 10
    found = loss.sum(
        tf.constant(outputs), tf.constant(targets), rows=ROWS, counted=tf.constant(counted)
    )
    assert float(found.total) == pytest.approx(each[:10].sum(), rel=1e-12)
    assert float(found.weight) == pytest.approx(weights[:10].sum(), rel=1e-14)
    factors = RNG.uniform(0.5, 2.0, ROWS)
    found = loss.sum(
        tf.constant(outputs), tf.constant(targets), rows=ROWS, sample_weight=tf.constant(factors)
    )
    assert float(found.total) == pytest.approx((each.mean(1) * factors).sum(), rel=1e-12)
    assert float(found.weight) == 12.0
    assert loss.is_empty(np.array([-100, -100]), None)
    assert not loss.is_empty(targets, None)


def test_shared_losses_of_elements():
    targets, outputs = REAL
    distance = np.abs(targets - outputs)
    bits = BITS[0]
    expected = {
        shared.mean_squared_error(): (targets, distance**2),
        shared.mean_absolute_error(): (targets, distance),
        shared.huber(delta=0.7): (
            targets,
            np.where(distance <= 0.7, distance**2 / 2, 0.7 * (distance - 0.35)),
        ),
        shared.sigmoid_cross_entropy(): (bits, np.log1p(np.exp(outputs)) - bits * outputs),
    }
    for described, (goal, each) in expected.items():
        found = SharedLoss(described).sum(tf.constant(outputs), tf.constant(goal), rows=ROWS)
        assert float(found.total) == pytest.approx(each.sum(), rel=1e-12)
        assert float(found.weight) == 36.0
    log = np.log(INDICES[1])
    found = SharedLoss(shared.negative_log_likelihood()).sum(
        tf.constant(log), tf.constant(INDICES[0]), rows=ROWS
    )
    assert float(found.total) == pytest.approx(-log[np.arange(ROWS), INDICES[0]].sum(), rel=1e-12)
    assert float(found.weight) == 12.0


@pytest.mark.parametrize(
    ("loss", "outputs", "targets", "words"),
    [
        (shared.mean_squared_error(), np.ones((2, 1)), np.ones(2), r"\[2, 1\]"),
        (shared.softmax_cross_entropy(), np.ones((2, 3)), np.ones((2, 3)), "classes"),
        (shared.softmax_cross_entropy(), np.ones((2, 3)), np.ones(2), "class indices"),
        (
            shared.softmax_cross_entropy(class_weights=[1.0]),
            np.ones((2, 3)),
            np.ones(2, int),
            "1 class weights for 3 classes",
        ),
    ],
)
def test_shared_losses_refuse_what_does_not_fit(loss, outputs, targets, words):
    with pytest.raises(ConfigError, match=words):
        SharedLoss(loss).sum(tf.constant(outputs), tf.constant(targets), rows=2)
