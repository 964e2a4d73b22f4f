"""Mixed precision with Keras: what is rounded, what is not, and what is refused."""

from __future__ import annotations

import math
from typing import Any, Dict

import numpy as np
import pytest
import tensorflow as tf

import unified_ipu as ui
from tests.adapters.unified_ipu_tensorflow.driving import keras, layers, lines
from unified_ipu.adapter import Job, MicroBatch, Place, Slot
from unified_ipu.errors import CapabilityError, ConfigError
from unified_ipu_tensorflow import create
from unified_ipu_tensorflow.half_precision import widened

pytestmark = pytest.mark.timeout(180)
HALVES = ["bfloat16", "float16"]


def plan_of(compute: str, **changes: Any) -> ui.Plan:
    return ui.Plan().replace({"precision.compute": compute, **changes})


def build(model: Any, compute: str, **job: Any) -> Any:
    job.setdefault("loss", keras.losses.MeanSquaredError())
    job.setdefault("optimizer", ui.optim.SGD(lr=1.0))
    return create().build(Job(model, **job), plan_of(compute), Place())


def run(replica: Any, *tree: Any, scale: float = 1.0) -> Any:
    replica.begin_update()
    micro = MicroBatch(0, tree, len(tree[0]))
    replica.forward_backward(micro, scale=scale, seed=0, ready=lambda bucket: None)
    return replica.finish_update()


def made(compute: str, make: Any) -> Any:
    with create().scope(plan_of(compute), Place()):
        return make()


def linear(value: float) -> Any:
    start = keras.initializers.Constant(value)
    inputs = keras.Input((1,))
    outputs = layers.Dense(1, use_bias=False, kernel_initializer=start, name="line")(inputs)
    return keras.Model(inputs, outputs)


def column(*values: float) -> Any:
    return np.array(values, np.float32).reshape(-1, 1)


def weight_of(model: Any) -> float:
    return float(model.get_weights()[0].item())


@pytest.mark.parametrize(
    ("compute", "weight"),
    # Each is 1 and a bit more than half a step of its type less than the next number.
    [("bfloat16", 1.0 + 2.0**-9), ("float16", 1.0 + 2.0**-12)],
)
def test_forward_sees_a_rounded_weight_and_the_step_changes_the_whole_one(
    compute: str, weight: float
) -> None:
    model = made(compute, lambda: linear(weight))
    replica = build(model, compute)
    tally = run(replica, column(1, 1), column(0, 0))
    assert (tally.loss_sum, tally.weight) == (2.0, 2.0), "the weight is 1 in forward"
    assert replica.squared_norm() == 16.0
    replica.apply(lr_factor=2.0**-16, used=[True])
    assert weight_of(model) == np.float32(weight - 2.0**-14)
    micro = MicroBatch(0, (column(1, 1), column(0, 0)), 2)
    outputs = replica.predict(micro, seed=0)
    assert (outputs.dtype, outputs.tolist()) == (np.float32, [[1.0], [1.0]])


def test_the_policy_holds_inside_the_scope_only() -> None:
    before = keras.mixed_precision.global_policy().name
    with create().scope(plan_of("bfloat16"), Place()):
        assert keras.mixed_precision.global_policy().name == "mixed_bfloat16"
    assert keras.mixed_precision.global_policy().name == before
    for target in ("ipu", "ipu-emulated"):  # there the lowered calls set it
        with create().scope(plan_of("float16", target=target), Place()):
            assert keras.mixed_precision.global_policy().name == before


def test_outputs_reach_losses_and_metrics_in_float32() -> None:
    seen = []

    def loss(outputs: Any, targets: Any) -> Any:
        seen.append(outputs.dtype)
        return tf.reduce_mean((outputs - targets) ** 2)

    def metric(outputs: Any, targets: Any) -> Any:
        seen.append(outputs.dtype)
        return tf.reduce_sum(outputs - targets), 1.0

    replica = build(made("float16", lambda: linear(1.0)), "float16", loss=loss)
    run(replica, column(1), column(0))
    micro = MicroBatch(0, (column(1), column(0)), 1)
    assert replica.evaluate(micro, {"gap": metric}, seed=0)["gap"] == (1.0, 1.0)
    assert set(seen) == {tf.float32}


def test_an_objective_gets_what_the_model_computes() -> None:
    def objective(model: Any, batch: Any) -> ui.Loss:
        outputs = model(batch[0])
        assert outputs.dtype == tf.float16
        return ui.Loss(tf.reduce_sum(outputs), weight=float(batch[0].shape[0]))

    # The seed, 2 ** 17, is no float16; the gradient of the weight is 2 ** 14.
    replica = build(made("float16", lambda: linear(1.0)), "float16", loss=None, objective=objective)
    run(replica, column(0.125), scale=2.0**17)
    assert not math.isfinite(replica.squared_norm())
    run(replica, column(0.125), scale=2.0**15)
    assert replica.squared_norm() == 2.0**24


@pytest.mark.parametrize("compute", HALVES)
def test_weights_are_counted_exactly_in_half_precision(compute: str) -> None:
    rows = 5001  # no number of bfloat16 or float16
    model = made(compute, lambda: keras.Sequential([keras.Input((1,)), layers.Dense(2)]))
    loss = ui.losses.softmax_cross_entropy(class_weights=[1.0, 0.3], ignore_index=-1)
    targets = np.array([0, 1, -1] * (rows // 3), np.int64)
    tally = run(build(model, compute, loss=loss), np.ones((rows, 1), np.float32), targets)
    assert tally.weight == pytest.approx(1667 * (1.0 + float(np.float32(0.3))), rel=1e-12)


@pytest.mark.parametrize(("compute", "bits"), [("bfloat16", 0x3FA0), ("float16", 0x3D00)])
def test_sums_are_made_in_float32_and_rounded_once_into_the_bucket(compute: str, bits: int) -> None:
    """Each of 64 gradients of 2 ** -8 is lost beside 1 in bfloat16; their sum is 1.25."""
    model = made(compute, lambda: linear(0.0))
    replica = build(model, compute, loss=lambda outputs, targets: tf.reduce_mean(outputs * targets))
    buffer = lines(32, "uint16" if compute == "bfloat16" else "float16")
    replica.bind([Slot("line/kernel", 0, 0, (1, 1))], [buffer])
    replica.begin_update()
    for index, value in enumerate([1.0] + 64 * [2.0**-8]):
        micro = MicroBatch(index, (column(value), column(1)), 1)
        replica.forward_backward(micro, scale=1.0, seed=0, ready=lambda bucket: None)
    replica.finish_update()
    assert buffer.view(np.uint16)[0] == bits
    assert not buffer[1:].any()
    replica.apply(lr_factor=1.0, used=[True], scale=0.5)
    assert weight_of(model) == -0.625


def test_a_layer_in_float32_may_lie_beside_the_others() -> None:
    def make() -> Any:
        exact = layers.Activation("softmax", dtype="float32")
        return keras.Sequential([keras.Input((1,)), layers.Dense(2), exact])

    replica = build(made("bfloat16", make), "bfloat16", loss=ui.losses.mean_squared_error())
    run(replica, column(1, 2), np.zeros((2, 2), np.float32))
    assert replica.squared_norm() > 0.0


def test_a_model_that_was_built_elsewhere_is_refused_with_where_to_build_it() -> None:
    with pytest.raises(CapabilityError, match=r"no layer .* bfloat16.* inside session\.scope\(\)"):
        build(linear(1.0), "bfloat16")


def test_another_half_type_than_the_plans_is_refused_by_layer() -> None:
    model = made("float16", lambda: linear(1.0))
    for compute in ("float32", "bfloat16"):
        with pytest.raises(CapabilityError, match="'line' computes in float16, but the plan says"):
            build(model, compute)


def test_plain_tensorflow_is_refused() -> None:
    class Module(tf.Module):  # type: ignore[misc]  # untyped
        def __init__(self) -> None:
            super().__init__()
            self.weight = tf.Variable([1.0])

        def __call__(self, x: Any) -> Any:
            return x * self.weight

    with pytest.raises(CapabilityError, match="build the model of Keras layers"):
        build(Module(), "float16")


def test_weights_in_half_precision_are_refused() -> None:
    inputs = keras.Input((1,), dtype="float16")
    model = keras.Model(inputs, layers.Dense(1, dtype="float16")(inputs))
    with pytest.raises(ConfigError, match=r"dtype float16; precision\.compute"):
        build(model, "float16")


class Mixing(layers.Layer):  # type: ignore[misc]  # whatever tf.keras is
    """Multiplies half precision by float32."""

    def call(self, x: Any) -> Any:
        """The product."""
        return tf.multiply(x, tf.ones([1, 1], tf.float32))


class Rooted(layers.Layer):  # type: ignore[misc]  # whatever tf.keras is
    """An operation that has no kernel in half precision on the CPU."""

    def call(self, x: Any) -> Any:
        """The root."""
        return x * tf.linalg.cholesky(tf.ones([1, 1], x.dtype))


@pytest.mark.parametrize(("layer", "operation"), [(Mixing, "'Mul' Op"), (Rooted, "Cholesky")])
def test_an_operation_that_has_no_half_is_named_at_the_first_batch(
    layer: Any, operation: str
) -> None:
    class Late(keras.Model):  # type: ignore[misc]  # whatever tf.keras is
        def __init__(self) -> None:
            super().__init__()
            self.line = layers.Dense(1)
            self.odd = layer()
            self.line.build((None, 1))
            self.odd.build((None, 1))
            self.built = True

        def call(self, x: Any) -> Any:
            return self.odd(self.line(x))

    replica = build(made("float16", Late), "float16")
    with pytest.raises(CapabilityError, match=f"cannot be run in half precision.*{operation}"):
        run(replica, column(1), column(0))


def test_widened_outputs_keep_their_containers_and_masks() -> None:
    half = tf.ones([1], tf.bfloat16)
    half._keras_mask = tf.constant([True])
    tree: Dict[str, Any] = {"a": half, "b": (tf.ones([1]), None), "c": [half]}
    found = widened(tree)
    assert [found["a"].dtype, found["c"][0].dtype] == [tf.float32, tf.float32]
    assert bool(found["a"]._keras_mask[0])
    assert found["b"] is tree["b"]
    assert tree["a"] is half


def test_common_layers_train_in_half_precision() -> None:
    compute = "float16"

    def make() -> Any:
        inputs = keras.Input((6,), dtype="int64")
        x = layers.Embedding(7, 8)(inputs)
        x = layers.LSTM(8, return_sequences=True)(x)
        x = layers.LayerNormalization()(layers.MultiHeadAttention(2, 4)(x, x))
        x = layers.Conv1D(8, 3, activation="relu")(x)
        x = layers.BatchNormalization()(x)
        x = layers.GlobalAveragePooling1D()(x)
        return keras.Model(inputs, layers.Dense(3)(x))

    tokens = np.arange(24).reshape(4, 6) % 7
    targets = np.array([0, 1, 2, 0])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    half, plain = made(compute, make), make()
    plain.set_weights(half.get_weights())
    replica, expected = build(half, compute, loss=loss), build(plain, "float32", loss=loss)
    tally, other = run(replica, tokens, targets), run(expected, tokens, targets)
    assert all(tally.used)
    assert tally.loss_sum == pytest.approx(other.loss_sum, rel=0.02)
    assert replica.squared_norm() == pytest.approx(expected.squared_norm(), rel=0.2)
