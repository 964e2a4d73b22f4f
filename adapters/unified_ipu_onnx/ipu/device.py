"""An ONNX model on IPUs: whole calls through PopART, the host's copy kept beside."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np
import torch

from unified_ipu.adapter import (
    DeviceTally,
    DeviceUpdate,
    Job,
    Lowering,
    Measure,
    Metric,
    MicroBatch,
    Place,
    Plan,
    TensorSpec,
    Tree,
)
from unified_ipu.errors import CapabilityError, ConfigError
from unified_ipu_onnx.errors import NAME
from unified_ipu_onnx.ipu.counting import Counting, counting_of
from unified_ipu_onnx.ipu.feeds import Arrays, graph_feeds, joined, shapes_of, signature
from unified_ipu_onnx.ipu.losses import COEFFICIENTS, TARGETS
from unified_ipu_onnx.ipu.model import DeviceModel
from unified_ipu_onnx.ipu.optimizers import NativeOptimizer
from unified_ipu_onnx.ipu.programs import Native, Program, inference_program, training_program
from unified_ipu_onnx.ipu.twin import HostTwin
from unified_ipu_onnx.lower_ipu import INFERENCE, TRAINING
from unified_ipu_onnx.reading import LoadedModel


class OnnxDevice:
    """The devices of one process; see ``unified_ipu.adapter.Device``.

    Args:
        job: Its model is the module that ``prepare`` made.
        source: The model that it was made from.
        plan: Already lowered without a refusal.
        place: Where this process stands.
        lowering: Of the plan.
        sdk: PopART.
        popdist: PopRun's module, or None.
        on_close: Is told the module once the device is left.

    Raises:
        CapabilityError: If PopART cannot do what the job asks for.
        ConfigError: If model, loss and optimizer cannot be driven together.
    """

    def __init__(
        self,
        job: Job,
        source: LoadedModel,
        plan: Plan,
        place: Place,
        *,
        lowering: Lowering,
        sdk: Any,
        popdist: Any = None,
        on_close: Callable[[Any], None],
    ) -> None:
        _check_job(job, plan)
        self._model = DeviceModel(source)
        self._native = Native(sdk, lowering, place.rank, popdist)
        self._twin = HostTwin(job, source, is_first=place.rank == 0, on_close=on_close)
        self._counting: Counting = counting_of(self._twin, self._model, job)
        self._optimizer: Optional[NativeOptimizer] = None
        if self._twin.optimizer is not None:
            calls = self._native.calls(TRAINING)
            self._optimizer = NativeOptimizer(self._twin.optimizer, self._twin.trained, calls, sdk)
        self._plan_updates = plan.batch.updates_per_call
        self._divides = plan.update.reduction == "mean"
        self.weighs_rows = self._counting.weighs_rows
        self.micro_batches_at_once = self._native.at_once(INFERENCE)
        self.notes = (*self._twin.notes, *self._model.notes)
        self._programs: Dict[Tuple[Any, ...], Program] = {}
        self._loaded: Optional[Program] = None  # whose weights on the device are those of the host
        self._host_is_stale = False

    def measure(self, micro: MicroBatch) -> Measure:
        """Count a micro-batch before it is fed."""
        return self._counting.measure(micro)

    def run(self, updates: Sequence[DeviceUpdate], *, lr_factor: float, seed: int) -> DeviceTally:
        """Run the updates of a call in one step of PopART."""
        del seed  # the lowering seeds the session, once
        optimizer = self._trained_by()
        feeds = joined(
            [
                self._feed(micro, coefficients)
                for update in updates
                for micro, coefficients in zip(update.micro_batches, update.coefficients)
            ]
        )
        shapes = {name: shape[1:] for name, shape in shapes_of(feeds).items()}
        # A whole call is what the lowering says; only a shorter one is a program of its own.
        count = len(updates)
        if count == self._plan_updates:
            count = self._native.batches(TRAINING)
        program = self._program((TRAINING, count), shapes, self._make_training)
        self._send(program)
        program.send_rates(self._native, optimizer.make, lr_factor)
        values = program.run(feeds)[program.loss].reshape(len(updates), -1)
        self._host_is_stale = True
        sums = values.astype(np.float64).sum(axis=1)
        weights = [update.weight if self._divides else 1.0 for update in updates]
        return DeviceTally(float(np.dot(sums, weights)))

    def infer(self, micro_batches: Sequence[MicroBatch]) -> Sequence[Any]:
        """Run the graph on micro-batches; one dict of outputs for each."""
        trees = [self._counting.inputs(micro) for micro in micro_batches]
        feeds = joined([graph_feeds(tree, self._model.dtypes) for tree in trees])
        shapes = {name: shape[1:] for name, shape in shapes_of(feeds).items()}
        program = self._program((INFERENCE, len(micro_batches)), shapes, self._make_inference)
        self._send(program)
        found = program.run(feeds)
        return [
            {name: value[index] for name, value in found.items()}
            for index in range(len(micro_batches))
        ]

    def score(
        self, micro: MicroBatch, result: Any, metrics: Mapping[str, Metric]
    ) -> Dict[str, Tuple[float, float]]:
        """Loss and metrics of outputs, on the host."""
        return self._twin.score(micro, result, metrics)

    def outputs(self, result: Any) -> Tree:
        """Outputs without the loss."""
        return self._twin.shown(result)

    def end_call(self, num_updates: int) -> None:
        """Step the scheduler."""
        self._twin.end_call(num_updates)

    def learning_rates(self) -> Sequence[float]:
        """Base rates, one a group."""
        return self._twin.learning_rates()

    def tensors(self) -> Sequence[TensorSpec]:
        """Parameters, buffers and slots, as on a host."""
        self._sync()
        return self._twin.tensors()

    def read(self, names: Sequence[str]) -> Dict[str, Any]:
        """Copies of what is on the device now."""
        self._sync()
        return self._twin.read(names)

    def write(self, tensors: Mapping[str, Any]) -> None:
        """Overwrite on the host; the device gets it before it runs."""
        self._sync()
        self._twin.write(tensors)
        self._loaded = None
        if not set(tensors) <= self._sent():
            self._programs.clear()  # what is not trained is compiled in

    def scalars(self) -> Dict[str, Any]:
        """As of a replica."""
        self._sync()
        return self._twin.scalars()

    def load_scalars(self, scalars: Mapping[str, Any]) -> None:
        """As of a replica."""
        self._sync()
        self._twin.load_scalars(scalars)
        self._loaded = None

    def forget_slots(self) -> None:
        """Drop the optimizer's state; the device gets zeros."""
        self._sync()
        self._twin.forget_slots()
        self._loaded = None

    def hand_back(self) -> None:
        """Put weights into the user's own model."""
        self._sync()
        self._twin.hand_back()

    def export_onnx(self, path: Path) -> None:
        """As of a replica."""
        self._sync()
        self._twin.export_onnx(path)

    def close(self) -> None:
        """Leave the device; the user's model keeps the trained weights."""
        self._sync()
        self._programs.clear()
        self._native.device.detach()
        self._twin.close()

    def _trained_by(self) -> NativeOptimizer:
        if self._optimizer is None:
            raise ConfigError("this program has no optimizer; pass optimizer= to compile to train")
        return self._optimizer

    def _feed(self, micro: MicroBatch, coefficients: Any) -> Arrays:
        feeds = graph_feeds(self._counting.inputs(micro), self._model.dtypes)
        rows = np.atleast_1d(np.asarray(coefficients, np.float64))
        targets = self._counting.targets(micro)
        if targets is not None:
            feeds[TARGETS] = targets
        feeds[COEFFICIENTS] = self._counting.coefficients(rows, targets)
        return feeds

    def _program(
        self,
        key: Tuple[Any, ...],
        shapes: Mapping[str, Tuple[int, ...]],
        make: Callable[[int, Mapping[str, Tuple[int, ...]]], Program],
    ) -> Program:
        whole = (*key, signature(shapes))
        if whole not in self._programs:
            self._sync()  # what is not trained is compiled in as it is now
            try:
                self._programs[whole] = make(key[1], shapes)
            except self._native.sdk.popart_exception as error:
                raise CapabilityError(NAME, f"PopART refuses the program: {error}") from error
        return self._programs[whole]

    def _make_training(self, updates: int, shapes: Mapping[str, Tuple[int, ...]]) -> Program:
        make = self._trained_by().make
        proto = self._model.with_shapes(shapes, self._twin.values(), self._twin.trained)
        return training_program(self._native, proto, self._counting, shapes, make, updates)

    def _make_inference(self, count: int, shapes: Mapping[str, Tuple[int, ...]]) -> Program:
        proto = self._model.with_shapes(shapes, self._twin.values(), self._twin.trained)
        whole = self.micro_batches_at_once // self._native.batches(INFERENCE)
        return inference_program(self._native, proto, self._model.outputs, count // whole)

    def _send(self, program: Program) -> None:
        """Bring the newest weights to the session that is to run."""
        if self._loaded is program:
            return
        self._sync()
        arrays = {name: tensor.detach().numpy() for name, tensor in self._twin.trained.items()}
        if program.trains and self._optimizer is not None:
            arrays.update(self._optimizer.state(program.used))
        program.send(arrays)
        self._loaded = program

    def _sync(self) -> None:
        """Bring the newest weights to the host."""
        program, optimizer = self._loaded, self._optimizer
        if not self._host_is_stale or program is None or optimizer is None:
            return
        trained = {n: p for n, p in self._twin.trained.items() if n in program.used}
        shapes = {name: tuple(tensor.shape) for name, tensor in trained.items()}
        state = {name: array.shape for name, array in optimizer.state(program.used).items()}
        arrays = program.fetch({**shapes, **state})
        with torch.no_grad():
            for name, tensor in trained.items():
                tensor.copy_(torch.from_numpy(arrays[name]))
        optimizer.take(arrays, program.used)
        self._host_is_stale = False

    def _sent(self) -> set[str]:
        """Names that can be written without compiling again."""
        names: List[str] = list(self._twin.trained)
        return {*names, *(s.name for s in self._twin.tensors() if s.role == "slot")}


def _check_job(job: Job, plan: Plan) -> None:
    module = job.model
    if job.objective is not None:
        raise CapabilityError(
            NAME,
            "objective= runs Python on tensors, which PopART cannot; pass one of "
            "unified_ipu.losses, or let the graph compute its loss",
        )
    if job.optimizer is not None and module.coupling:
        raise CapabilityError(
            NAME,
            f"training with batch statistics (node {module.coupling[0]!r}) is not written for "
            'PopART; use target = "cpu", or normalise without the batch',
        )
    if module.drawing and plan.ipu.random_layers == "refuse" and job.optimizer is not None:
        raise CapabilityError(
            NAME,
            f"random numbers of node {module.drawing[0]!r} are not keyed on a device; leave it "
            'out, or set ipu.random_layers = "native"',
        )
