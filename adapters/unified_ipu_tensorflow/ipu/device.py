"""Trains and runs a Keras model on IPUs: whole calls through ``fit`` and ``predict``."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Sequence, Tuple

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
)
from unified_ipu.errors import ConfigError
from unified_ipu.plan import device_batch
from unified_ipu_tensorflow.errors import translated
from unified_ipu_tensorflow.ipu.drivers import build_driver
from unified_ipu_tensorflow.ipu.programs import InferenceProgram, TrainingProgram
from unified_ipu_tensorflow.ipu.row_losses import RowLoss
from unified_ipu_tensorflow.ipu.scoring import Scoring
from unified_ipu_tensorflow.ipu.system import System
from unified_ipu_tensorflow.model_checks import layers_that_see_the_micro_batch
from unified_ipu_tensorflow.names import named_variables
from unified_ipu_tensorflow.tensors import Catalog, trainable_variables


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
        CapabilityError: If a device program cannot do what the optimizer's settings say.
    """

    def __init__(
        self, job: Job, plan: Plan, *, calls: Sequence[NativeCall], system: System, loss: RowLoss
    ) -> None:
        self._loss = loss
        self._is_mean = plan.update.reduction == "mean"
        self.weighs_rows = loss.weighs_rows
        self.notes: Tuple[str, ...] = layers_that_see_the_micro_batch(job.model)
        named = named_variables(job.model)
        own = trainable_variables(named, job.model)
        self._driver = build_driver(job.optimizer, own, job.trainable, job.schedule)
        self._catalog = Catalog(named, self._driver)
        self._scoring = Scoring(job)
        batch = device_batch(plan)[0]
        self._training = TrainingProgram(
            job.model,
            loss,
            self._driver,
            trained=[] if self._driver is None else [own[name] for name in self._driver.trained],
            batch=batch,
            calls=[call for call in calls if call.program == "training"],
            system=system,
        )
        self._inference = InferenceProgram(
            job.model,
            "sgd" if self._driver is None else self._driver.native,
            batch=batch,
            calls=[call for call in calls if call.program == "inference"],
            system=system,
        )
        self.micro_batches_at_once = self._inference.micro_batches_at_once

    def measure(self, micro: MicroBatch) -> Measure:
        """W and the factors of a micro-batch."""
        with translated():
            self._training.look_at(micro)
            return self._loss.measure(micro)

    def run(self, updates: Sequence[DeviceUpdate], *, lr_factor: float, seed: int) -> DeviceTally:
        """Run the updates of a call: one ``fit`` over their micro-batches."""
        del seed  # the device draws by itself, see ipu.random_layers
        with translated():
            losses = self._training.run(updates, lr_factor)
        weights = [update.weight if self._is_mean else 1.0 for update in updates]
        return DeviceTally(sum(loss * weight for loss, weight in zip(losses, weights)))

    def infer(self, micro_batches: Sequence[MicroBatch]) -> Sequence[Any]:
        """Outputs of each micro-batch, numpy arrays."""
        with translated():
            return self._inference.run(micro_batches)

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
            self._training.compile_anew()

    def forget_slots(self) -> None:
        """Drop the optimizer's state of every parameter."""
        if self._driver is not None:
            self._driver.forget_slots()

    def close(self) -> None:
        """Give the optimizer its rate back; the model keeps the trained weights."""
        if self._driver is not None:
            self._driver.close()
