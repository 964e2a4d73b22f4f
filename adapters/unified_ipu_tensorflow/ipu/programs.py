"""The two programs of a device: training and inference, each with native options of its own."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Sequence, Set

import numpy as np
import tensorflow as tf

from unified_ipu.adapter import (
    DeviceUpdate,
    MicroBatch,
    NativeCall,
    Tree,
    apply_native_calls,
    map_tree,
    native_arguments,
)
from unified_ipu.errors import ConfigError
from unified_ipu.plan import DeviceBatch
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
from unified_ipu_tensorflow.ipu.system import System

Calls = Sequence[NativeCall]

_AGAIN = ("model.fit", "model.predict", "optimizer.learning_rate.assign")


class TrainingProgram:
    """Runs updates through ``fit``: one for each call of the device.

    Args:
        model: The user's.
        loss: Of the job.
        driver: Of the optimizer, or None.
        trained: Variables of the model, with the constraints that Keras keeps on them.
        batch: What a call takes.
        calls: Of the training program.
        system: That the model was made in.
    """

    def __init__(
        self,
        model: Any,
        loss: RowLoss,
        driver: Any,
        *,
        trained: Sequence[Any],
        batch: DeviceBatch,
        calls: Calls,
        system: System,
    ) -> None:
        self._loss = loss
        self._driver = driver
        self._batch = batch
        self._calls = calls
        self._system = system
        self._in_sync = int(system.strategy.num_replicas_in_sync)
        # IPU Keras adds penalties in every micro-batch and replica, divided by those in sync.
        times = batch.accumulation * batch.local_replicas * batch.processes / self._in_sync
        with system.strategy.scope():
            self._model = Training(model, loss, trained, 1.0 / times)
        self._is_set_up = False
        self._seen: Set[Any] = set()

    def look_at(self, micro: MicroBatch) -> None:
        """Trace forward and loss once: it shows how many units a row has, and what is refused."""
        parts = training_parts(micro)
        specs = map_tree(parts, lambda leaf: tf.TensorSpec(leaf.shape, tf.as_dtype(leaf.dtype)))
        form = tuple((tuple(leaf.shape), leaf.dtype.name) for leaf in tf.nest.flatten(specs))
        if form in self._seen:
            return
        self._model.set_forms(forms_of(parts))

        def look(batch: Any) -> Any:
            values = self._model.call(batch, training=True)
            _ = self._model.losses
            return values

        tf.function(look, autograph=False).get_concrete_function(specs)
        self._seen.add(form)

    def run(self, updates: Sequence[DeviceUpdate], lr_factor: float) -> List[float]:
        """Run the updates of a call.

        Args:
            updates: Whole, in order.
            lr_factor: Multiplies the rate for this call.

        Returns:
            The loss of each update as the coefficients divided it, of this process.

        Raises:
            ConfigError: If the program has no optimizer, or IPU Keras refuses the model.
        """
        if self._driver is None:
            raise ConfigError("this program has no optimizer; pass optimizer= to compile to train")
        rate = self._driver.learning_rates()[0]
        coefficients = rows_of_coefficients(updates, weighs_rows=self._loss.weighs_rows)
        names = {"rate": rate * lr_factor, "coefficients": coefficients}
        heard: Dict[int, float] = {}
        with self._system.strategy.scope():
            self._set_up()
            (weights,), _ = _arguments(self._calls, "sample_weight", names)
            rows = training_data(updates, weights)
            positional, keywords = _arguments(self._calls, "dataset.batch", names)
            dataset = rows.batch(*positional, **keywords)
            native = self._driver.native
            assign = [call for call in self._calls if call.name == "optimizer.learning_rate.assign"]
            apply_native_calls(assign, {"optimizer": native}, names)
            try:
                self._fit({**names, "dataset": dataset}, heard)
            finally:
                native.learning_rate.assign(rate)
        return self._losses(len(updates), heard)

    def compile_anew(self) -> None:
        """Tell Keras everything again before the next call: the optimizer is another one."""
        self._is_set_up = False

    def _set_up(self) -> None:
        if self._is_set_up:
            return
        native, loss = self._driver.native, row_sum(tf.keras.losses.Loss)
        names = {**self._system.names, "optimizer": native, "loss": loss}
        objects = {"model": self._model, "loss": loss, "optimizer": native}
        apply_native_calls(_once(self._calls), objects, names)
        self._is_set_up = True

    def _fit(self, names: Mapping[str, Any], heard: Dict[int, float]) -> None:
        def listen(batch: int, logs: Any = None) -> None:
            heard[int(batch)] = float(logs["loss"])  # replicas report the same

        listener = tf.keras.callbacks.LambdaCallback(on_train_batch_end=listen)
        positional, keywords = _arguments(self._calls, "model.fit", names)
        try:
            self._model.fit(*positional, callbacks=[listener], verbose=0, **keywords)
        except ValueError as error:
            raise ConfigError(f"IPU Keras: {error}") from error

    def _losses(self, count: int, heard: Mapping[int, float]) -> List[float]:
        """Losses of updates from what Keras reports after steps.

        That is the mean over all steps so far, summed over replicas; so the steps of an update are
        the difference of two sums. Losses that are sums it multiplies by the replicas in sync.
        """
        found, before = [], 0.0
        for index in range(count):
            last = (index + 1) * self._batch.accumulation - 1
            after = heard[last] * (last + 1) / self._in_sync
            found.append(after - before)
            before = after
        return found


class InferenceProgram:
    """Runs forward through ``predict``.

    Args:
        model: The user's.
        optimizer: Keras' own, which ``compile`` wants and nobody uses.
        batch: What a call takes.
        calls: Of the inference program.
        system: That the model was made in.
    """

    def __init__(
        self, model: Any, optimizer: Any, *, batch: DeviceBatch, calls: Calls, system: System
    ) -> None:
        self._calls = calls
        self._system = system
        names = {**system.names, "optimizer": optimizer, "loss": None}
        with system.strategy.scope():
            self._model = Inference(model)
            apply_native_calls(_once(calls), {"model": self._model}, names)
        _, keywords = _arguments(calls, "model.compile", names)
        self.micro_batches_at_once = int(keywords["steps_per_execution"]) * batch.local_replicas

    def run(self, micro_batches: Sequence[MicroBatch]) -> List[Tree]:
        """Outputs of each micro-batch, numpy arrays."""
        rows = micro_batches[0].rows
        with self._system.strategy.scope():
            self._model.set_forms(forms_of(inference_parts(micro_batches[0])))
            dataset = inference_data(micro_batches).batch(rows, drop_remainder=True)
            positional, keywords = _arguments(self._calls, "model.predict", {"dataset": dataset})
            whole = self._model.predict(*positional, verbose=0, **keywords)
        starts = range(0, rows * len(micro_batches), rows)
        return [_rows(whole, start, rows) for start in starts]


def _rows(outputs: Tree, start: int, count: int) -> Tree:
    return map_tree(outputs, lambda leaf: np.asarray(leaf[start : start + count]))


def _once(calls: Calls) -> Calls:
    """Calls that are made once, and not again for every call of the device."""
    first = ("model.", "loss.", "optimizer.")
    return [call for call in calls if call.name.startswith(first) and call.name not in _AGAIN]


def _arguments(calls: Calls, name: str, names: Mapping[str, Any]) -> Any:
    value = next(call.value for call in calls if call.name == name)
    return native_arguments(value, names)
