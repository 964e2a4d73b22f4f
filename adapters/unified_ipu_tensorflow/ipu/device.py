"""Trains and runs a Keras model on IPUs: whole calls through ``fit`` and ``predict``."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Sequence, Tuple

import numpy as np
import tensorflow as tf

from unified_ipu.adapter import (
    DeviceTally,
    DeviceUpdate,
    Job,
    Measure,
    Metric,
    MicroBatch,
    NativeCall,
    Plan,
    TensorSpec,
    Tree,
    apply_native_calls,
    native_arguments,
)
from unified_ipu.errors import ConfigError
from unified_ipu.plan import device_batch
from unified_ipu_tensorflow.batches import map_tree
from unified_ipu_tensorflow.errors import translated
from unified_ipu_tensorflow.ipu.drivers import build_driver
from unified_ipu_tensorflow.ipu.feeding import (
    forms_of,
    inference_data,
    inference_parts,
    rows_of_coefficients,
    training_data,
    training_parts,
)
from unified_ipu_tensorflow.ipu.models import Inference, Training, row_sum
from unified_ipu_tensorflow.ipu.row_losses import RowLoss
from unified_ipu_tensorflow.ipu.scoring import Scoring
from unified_ipu_tensorflow.ipu.system import System
from unified_ipu_tensorflow.model_checks import layers_that_see_the_micro_batch
from unified_ipu_tensorflow.names import named_variables
from unified_ipu_tensorflow.tensors import Catalog, trainable_variables

Calls = Sequence[NativeCall]


class KerasDevice:
    """See ``unified_ipu.adapter.Device``.

    Args:
        job: Checked by ``build_device``.
        plan: Of the session.
        calls: The lowering's.
        system: That the model was made in.
        loss: Of the job.

    Raises:
        ConfigError: If model, optimizer and schedule cannot be driven together.
    """

    def __init__(
        self, job: Job, plan: Plan, *, calls: Calls, system: System, loss: RowLoss
    ) -> None:
        self._job = job
        self._system = system
        self._in_sync = int(system.strategy.num_replicas_in_sync)
        self._loss = loss
        self._is_mean = plan.update.reduction == "mean"
        self._batch = device_batch(plan)[0]
        self._training: Calls = [call for call in calls if call.program == "training"]
        self._inference: Calls = [call for call in calls if call.program == "inference"]
        self.weighs_rows = loss.weighs_rows
        self.notes: Tuple[str, ...] = layers_that_see_the_micro_batch(job.model)
        named = named_variables(job.model)
        self._driver = build_driver(
            job.optimizer, trainable_variables(named, job.model), job.trainable, job.schedule
        )
        self._catalog = Catalog(named, self._driver)
        self._scoring = Scoring(job)
        with system.strategy.scope():
            self._trainer = self._make_trainer()
            self._predictor = Inference(job.model)
        self._is_set_up = False
        self._traced: Dict[Any, bool] = {}
        self.micro_batches_at_once = self._set_up_inference()

    def _make_trainer(self) -> Any:
        trained = [] if self._driver is None else list(self._driver.trained.values())
        # IPU Keras adds penalties in every micro-batch and replica, divided by those in sync.
        replicas = self._batch.local_replicas * self._batch.processes
        times = self._batch.accumulation * replicas / self._in_sync
        return Training(self._job.model, self._loss, trained, 1.0 / times)

    def measure(self, micro: MicroBatch) -> Measure:
        """W and the factors of a micro-batch."""
        with translated():
            self._look_at(micro)
            return self._loss.measure(micro)

    def _look_at(self, micro: MicroBatch) -> None:
        """Trace forward and loss once: it shows how many units a row has, and what is refused."""
        parts = training_parts(micro)
        specs = map_tree(parts, lambda leaf: tf.TensorSpec(leaf.shape, tf.as_dtype(leaf.dtype)))
        form = tuple((tuple(leaf.shape), leaf.dtype.name) for leaf in tf.nest.flatten(specs))
        if form in self._traced:
            return
        self._trainer.set_forms(forms_of(parts))

        def look(batch: Any) -> Any:
            values = self._trainer.call(batch, training=True)
            _ = self._trainer.losses
            return values

        tf.function(look, autograph=False).get_concrete_function(specs)
        self._traced[form] = True

    def run(self, updates: Sequence[DeviceUpdate], *, lr_factor: float, seed: int) -> DeviceTally:
        """Run the updates of a call: one ``fit`` over their micro-batches.

        Raises:
            ConfigError: If the program has no optimizer, or IPU Keras refuses the model.
        """
        del seed  # the device draws by itself, see ipu.random_layers
        if self._driver is None:
            raise ConfigError("this program has no optimizer; pass optimizer= to compile to train")
        rate = self._driver.learning_rates()[0]
        coefficients = rows_of_coefficients(updates, weighs_rows=self.weighs_rows)
        names = {"rate": rate * lr_factor, "coefficients": coefficients}
        with translated(), self._system.strategy.scope():
            self._set_up()
            weights = _argument(self._training, "sample_weight", names)
            rows = training_data(updates, weights)
            dataset = _made(self._training, "dataset.batch", rows.batch, names)
            assign = [call for call in self._training if call.name.startswith("optimizer.learning")]
            apply_native_calls(assign, {"optimizer": self._driver.native}, names)
            heard: Dict[int, float] = {}
            try:
                self._fit({**names, "dataset": dataset}, heard)
            finally:
                self._driver.native.learning_rate.assign(rate)
        return DeviceTally(self._loss_sum(updates, heard))

    def _fit(self, names: Mapping[str, Any], heard: Dict[int, float]) -> None:
        positional, keywords = _call(self._training, "model.fit", names)
        try:
            self._trainer.fit(*positional, callbacks=[_listener(heard)], verbose=0, **keywords)
        except ValueError as error:
            raise ConfigError(f"IPU Keras: {error}") from error

    def _set_up(self) -> None:
        if self._is_set_up:
            return
        native, loss = self._driver.native, row_sum(tf.keras.losses.Loss)
        names = {**self._system.names, "optimizer": native, "loss": loss}
        objects = {"model": self._trainer, "loss": loss, "optimizer": native}
        apply_native_calls([c for c in self._training if _sets_up(c)], objects, names)
        self._is_set_up = True

    def _loss_sum(self, updates: Sequence[DeviceUpdate], heard: Mapping[int, float]) -> float:
        """S over a call.

        Keras reports the mean over all steps so far, summed over replicas, of what was divided by W
        already; so the steps of an update are the difference of two sums. Losses that are sums
        it multiplies by the replicas in sync.
        """
        total, before = 0.0, 0.0
        for index, update in enumerate(updates):
            last = (index + 1) * self._batch.accumulation - 1
            after = heard[last] * (last + 1) / self._in_sync
            total += (after - before) * (update.weight if self._is_mean else 1.0)
            before = after
        return total

    def _set_up_inference(self) -> int:
        optimizer = "sgd" if self._driver is None else self._driver.native
        names = {**self._system.names, "optimizer": optimizer, "loss": None}
        with self._system.strategy.scope():
            apply_native_calls(
                [call for call in self._inference if _sets_up(call)],
                {"model": self._predictor},
                names,
            )
        _, keywords = _call(self._inference, "model.compile", names)
        return int(keywords["steps_per_execution"]) * self._batch.local_replicas

    def infer(self, micro_batches: Sequence[MicroBatch]) -> Sequence[Any]:
        """Outputs of each micro-batch, numpy arrays."""
        rows = micro_batches[0].rows
        with translated(), self._system.strategy.scope():
            self._predictor.set_forms(forms_of(inference_parts(micro_batches[0])))
            dataset = inference_data(micro_batches).batch(rows, drop_remainder=True)
            positional, keywords = _call(self._inference, "model.predict", {"dataset": dataset})
            whole = self._predictor.predict(*positional, verbose=0, **keywords)
        starts = range(0, rows * len(micro_batches), rows)
        return [_rows(whole, start, rows) for start in starts]

    def score(
        self, micro: MicroBatch, result: Any, metrics: Mapping[str, Metric]
    ) -> Dict[str, Tuple[float, float]]:
        """Loss and metrics of one micro-batch, on the host."""
        with translated():
            return self._scoring.score(micro, result, metrics)

    def outputs(self, result: Any) -> Tree:
        """They are on the host already."""
        return result

    def end_call(self, num_updates: int) -> None:
        """Step the schedule once for each update that happened."""
        if self._driver is not None:
            self._driver.end_call(num_updates)

    def learning_rates(self) -> List[float]:
        """Base rates now."""
        return [] if self._driver is None else list(self._driver.learning_rates())

    def tensors(self) -> Sequence[TensorSpec]:
        """Parameters, buffers and slots."""
        return self._catalog.specs()

    def read(self, names: Sequence[str]) -> Dict[str, Any]:
        """Copies; TensorFlow brings a variable back from the device when it is read."""
        return self._catalog.read(names)

    def write(self, tensors: Mapping[str, Any]) -> None:
        """Overwrite the named tensors."""
        self._catalog.write(tensors)

    def scalars(self) -> Dict[str, Any]:
        """Optimizer and schedule without their tensors, as JSON values."""
        own = {} if self._driver is None else self._driver.scalars()
        return {"learning_rates": self.learning_rates(), **own}

    def load_scalars(self, scalars: Mapping[str, Any]) -> None:
        """Take over what ``scalars`` returned, in the same optimizer and schedule.

        Raises:
            ConfigError: If it is of another optimizer.
        """
        if self._driver is None:
            if "optimizer" in scalars:
                raise ConfigError(
                    "the state was saved with an optimizer, this program has none; compile it with "
                    "the same one"
                )
        elif self._driver.load_scalars(scalars):
            self._is_set_up = False

    def forget_slots(self) -> None:
        """Drop the optimizer's state of every parameter."""
        if self._driver is not None:
            self._driver.forget_slots()

    def close(self) -> None:
        """Give the optimizer its rate back; the model keeps the trained weights."""
        if self._driver is not None:
            self._driver.close()


def _listener(heard: Dict[int, float]) -> Any:
    """Keep the loss that Keras reports after each step it tells of; replicas report the same."""

    def listen(batch: int, logs: Any = None) -> None:
        heard[int(batch)] = float(logs["loss"])

    return tf.keras.callbacks.LambdaCallback(on_train_batch_end=listen)


def _rows(outputs: Tree, start: int, count: int) -> Tree:
    return map_tree(outputs, lambda leaf: np.asarray(leaf[start : start + count]))


def _sets_up(call: NativeCall) -> bool:
    """Whether a call is made once, and not again for every call of the device."""
    is_of_program = call.name.split(".")[0] in {"model", "loss", "optimizer"}
    again = ("model.fit", "model.predict", "optimizer.learning_rate.assign")
    return is_of_program and call.name not in again


def _call(calls: Calls, name: str, names: Mapping[str, Any]) -> Any:
    value = next(call.value for call in calls if call.name == name)
    return native_arguments(value, names)


def _argument(calls: Calls, name: str, names: Mapping[str, Any]) -> Any:
    return _call(calls, name, names)[0][0]


def _made(calls: Calls, name: str, function: Any, names: Mapping[str, Any]) -> Any:
    positional, keywords = _call(calls, name, names)
    return function(*positional, **keywords)
