"""What IPU Keras refuses, and what the emulation refuses beyond it."""

from __future__ import annotations

from typing import Any

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
from unified_ipu_tensorflow.emulated import ipu
from unified_ipu_tensorflow.emulated.keras.extension import Extension

pytestmark = pytest.mark.timeout(120)


def compiled(steps: int = 1, model: Any = None, **options: Any) -> Any:
    model = line() if model is None else model
    model.compile(sgd(), mse(), steps_per_execution=steps, **options)
    return model


def test_only_models_made_in_the_scope_are_those_of_ipus():
    before = line()
    with strategy():
        inside = line()
        wide = keras.Input((1,))
        functional = keras.Model(wide, layers.Dense(1)(wide))
    after = line()
    assert [isinstance(m, Extension) for m in (before, inside, functional, after)] == [
        False,
        True,
        True,
        False,
    ]
    assert type(inside).__name__ == "Sequential"
    assert not hasattr(after, "set_replication_options")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (tf.data.Dataset.from_tensor_slices((X, Y)).batch(3), "drop_remainder=True"),
        (batches(2).repeat(), "Could not infer the size"),
        (batches(16, X.astype("int64"), Y), "int64"),
        (iter([(X, Y)]), "know the data shape ahead"),
    ],
)
def test_data_without_a_static_shape_or_a_size_is_refused(data, words):
    with strategy(), pytest.raises(ValueError, match=words):
        compiled().fit(data, verbose=0)


def test_arrays_with_a_partial_batch_are_refused():
    with strategy(), pytest.raises(ValueError, match="partial batch"):
        compiled().fit(X, Y, batch_size=5, verbose=0)


def test_an_execution_divides_the_steps_of_a_replica():
    with strategy(2), pytest.raises(ValueError, match=r"\(3\) must be a divisor .* \(4\)"):
        compiled(3).fit(batches(2), verbose=0)


def test_an_execution_holds_whole_updates():
    with strategy():
        model = compiled(2)
        model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=4)
        with pytest.raises(RuntimeError, match="not divisible"):
            model.fit(batches(4), verbose=0)


def test_more_epochs_than_the_data_has_are_refused():
    with strategy(), pytest.raises(ValueError, match="does not have enough data"):
        compiled().fit(batches(8), steps_per_epoch=1, epochs=3, verbose=0)


def test_a_variable_without_a_gradient_is_refused():
    with strategy():
        start = keras.Input((1,))
        loose = layers.Dense(1, name="loose")(start)
        model = keras.Model(start, layers.Dense(1)(start) + 0.0 * tf_stop(loose))
        with pytest.raises(ValueError, match="`None` for gradient"):
            compiled(model=model).fit(batches(16), verbose=0)


def tf_stop(tensor: Any) -> Any:
    return layers.Lambda(tf.stop_gradient)(tensor)


def test_steps_of_ones_own_are_refused():
    class Own(keras.Model):  # type: ignore[misc]  # of no known type
        def __init__(self) -> None:
            super().__init__()
            self.dense = layers.Dense(1)

        def call(self, x, training=None):
            return self.dense(x)

        def train_step(self, data):
            return {}

    with strategy(), pytest.raises(RuntimeError, match=r"`train_step` .* has been overridden"):
        compiled(model=Own()).fit(batches(16), verbose=0)


def test_eager_models_are_refused():
    with strategy(), pytest.raises(RuntimeError, match="cannot run eagerly"):
        compiled(run_eagerly=True)


def test_fit_before_compile_and_outside_the_scope_is_refused():
    with strategy():
        model = line()
        with pytest.raises(RuntimeError, match="must compile"):
            model.fit(batches(16))
        compiled(model=model)
    with pytest.raises(RuntimeError, match=r"inside strategy\.scope"):
        model.fit(batches(16))


def test_variables_of_float64_are_refused():
    with strategy():
        double = layers.Dense(1, dtype="float64")
        model = keras.Sequential([keras.Input((1,), dtype="float64"), double])
        with pytest.raises(ValueError, match="float64"):
            compiled(model=model).fit(batches(16), verbose=0)


def test_without_a_configuration_nothing_runs():
    with strategy():
        ipu.config.reset_ipu_configuration()
        with pytest.raises(tf.errors.FailedPreconditionError, match="configure_ipu_system"):
            compiled().fit(batches(16), verbose=0)


@pytest.mark.parametrize(
    "options",
    [
        {"gradient_accumulation_steps_per_replica": 0},
        {"gradient_accumulation_steps_per_replica": 2.0},
        {"num_mini_batches": 2},
        {"opt": None},
        {"gradient_accumulation_reduction_method": "median"},
        {"offload_everything": True},
    ],
)
def test_options_of_accumulation_are_checked(options):
    with strategy(), pytest.raises(ValueError, match=r"."):
        line().set_gradient_accumulation_options(**options)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("set_pipelining_options", {"accumulate_outfeed": True}),
        ("set_pipelining_options", {"device_mapping": [0, 0]}),
        ("set_gradient_accumulation_options", {"use_v2_gradient_accumulation_optimizer": True}),
        ("fit", {"validation_data": (X, Y)}),
        ("fit", {"class_weight": {0: 1.0}}),
        ("fit", {"workers": 4}),
    ],
)
def test_what_is_not_emulated_is_refused_by_name(method, options):
    with strategy(), pytest.raises(NotImplementedError, match="not emulated"):
        getattr(compiled(), method)(**options)


@pytest.mark.parametrize("depth", [0, 256, "3"])
def test_the_depth_of_a_queue_is_one_to_255(depth):
    with strategy(), pytest.raises(ValueError, match="prefetch_depth"):
        line().set_infeed_queue_options(prefetch_depth=depth)


# Grouped trains with multiples of twice the stages and infers with multiples of them, interleaved
# with multiples of the stages.
@pytest.mark.parametrize(
    ("schedule", "training", "inference"), [("Grouped", 4, 2), ("Interleaved", 2, 2)]
)
def test_pipelines_have_to_fill(schedule, training, inference):
    kind = ipu.ops.pipelining_ops.PipelineSchedule[schedule]
    for count, is_right in ((1, False), (training - 1, False), (training, True)):
        with strategy(2):
            model = keras.Sequential([keras.Input((1,)), layers.Dense(1), layers.Dense(1)])
            model.set_pipeline_stage_assignment([0, 1])
            model.set_pipelining_options(
                gradient_accumulation_steps_per_replica=count, pipeline_schedule=kind
            )
            compiled(count, model)
            data = batches(16).repeat(count)
            if is_right:
                model.fit(data, verbose=0)
                assert int(model.optimizer.iterations.numpy()) == 1
                compiled(inference, model)
                assert model.predict(batches(16).repeat(inference)).shape == (16 * inference, 1)
            else:
                with pytest.raises(tf.errors.FailedPreconditionError, match="multiple of"):
                    model.fit(data, verbose=0)


def test_stages_need_ipus_and_an_accumulation():
    with strategy(1):
        model = keras.Sequential([keras.Input((1,)), layers.Dense(1), layers.Dense(1)])
        model.set_pipeline_stage_assignment([0, 1])
        with pytest.raises(ValueError, match="requires a multiple of 2 IPUs"):
            compiled(4, model).fit(batches(4), verbose=0)
    with strategy(2):
        model.set_pipelining_options()
        with pytest.raises(ValueError, match="set_pipelining_options"):
            model.fit(batches(4), verbose=0)


@pytest.mark.parametrize("stages", [[0], [1, 1], [0, 2], [1, 0], [0, 1.0], (0, 1)])
def test_stages_are_one_a_layer_and_rise_by_one(stages):
    with strategy(2):
        model = keras.Sequential([keras.Input((1,)), layers.Dense(1), layers.Dense(1)])
        with pytest.raises(ValueError, match="stages"):
            model.set_pipeline_stage_assignment(stages)


def test_loops_of_ones_own_and_other_modules_are_refused():
    with strategy():
        with pytest.raises(NotImplementedError, match="train Keras models with fit"):
            ipu.ipu_strategy.IPUStrategyV1().run(lambda: None)
    assert ipu.ipu_strategy.IPUStrategy().num_replicas_in_sync == 1
    with pytest.raises(AttributeError, match=r"emulated tensorflow\.python\.ipu has no 'loops'"):
        _ = ipu.loops
    assert ipu.__emulated__ is True
