"""Sessions: a graph compiled for a device, its weights, and runs of it.

Source: PopART of SDK 3.4, ``python/popart/python_files/session.py``, ``willow/src/session.cpp``
and ``willow/src/popx/devicex.cpp``.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, Dict, List, Optional, Union

import numpy as np
import torch
from onnx import ModelProto

from unified_ipu.device import Outputs, Position, infer, train
from unified_ipu_onnx.emulated.popart.arithmetic import TorchArithmetic, Update
from unified_ipu_onnx.emulated.popart.data_flow import DataFlow, InputShapeInfo
from unified_ipu_onnx.emulated.popart.devices import DeviceInfo
from unified_ipu_onnx.emulated.popart.enums import DeviceConnectionType, SyntheticDataMode
from unified_ipu_onnx.emulated.popart.errors import NotEmulatedError, popart_exception
from unified_ipu_onnx.emulated.popart.execution import execution_of, selection_of
from unified_ipu_onnx.emulated.popart.feeding import Feeding, inputs_of
from unified_ipu_onnx.emulated.popart.host_weights import HostWeights
from unified_ipu_onnx.emulated.popart.log import note_once
from unified_ipu_onnx.emulated.popart.optimizers import Optimizer
from unified_ipu_onnx.emulated.popart.patterns import Patterns
from unified_ipu_onnx.emulated.popart.program import Program, check_device_types, seed_of
from unified_ipu_onnx.emulated.popart.protos import check_model, load
from unified_ipu_onnx.emulated.popart.session_options import SessionOptions, note_without_effect
from unified_ipu_onnx.emulated.popart.step_io import PyStepIO, PyWeightsIO
from unified_ipu_onnx.emulated.popart.tensor_info import TensorInfo

Model = Union[str, bytes, Path]


class _Session:
    """What both sessions do; only a training session has a loss."""

    _loss: Optional[str] = None

    def _set_up(
        self,
        model: Model,
        flow: DataFlow,
        device: DeviceInfo,
        shapes: Optional[InputShapeInfo],
        options: Optional[SessionOptions],
    ) -> None:
        self.dataFlow = flow
        self._device = device
        self._options = copy.deepcopy(options or SessionOptions())
        self._proto: ModelProto = load(model)
        check_model(self._proto)
        self._inputs = inputs_of(self._proto, shapes or InputShapeInfo())
        check_device_types(self._proto, self._inputs)
        trains = self._loss is not None
        self._execution = execution_of(self._options, flow, device, trains=trains)
        self._selections = {n: selection_of(flow, n, self._execution.shape) for n in flow.anchors()}
        note_without_effect(self._options)
        self._feeding = Feeding(self._proto, self._inputs, self._options.syntheticDataMode)
        self._host = HostWeights(self._proto)
        self._is_prepared, self._has_weights = False, False
        self._seed, self._runs = 0, 0
        self._state: Dict[str, torch.Tensor] = {}
        self._program = Program(self._proto, self._inputs, flow.anchors(), self._loss)
        self._make_update(self._program)
        self._host.hold({**self._program.weights, **self._state})

    @property
    def replicationFactor(self) -> int:
        """Replicas of this process."""
        return self._execution.shape.replicas

    @property
    def accumulationFactor(self) -> int:
        """Micro-batches of a replica behind an update."""
        return self._execution.shape.accumulation

    def prepareDevice(self, loadEngine: bool = True) -> None:
        """Get ready to run; the graph was compiled, and refused, when the session was made."""
        if not self._is_prepared:
            self._is_prepared = True
            if loadEngine:
                self.loadEngineAndConnectStreams()

    def loadEngineAndConnectStreams(self) -> None:
        """Load the program; weights that another session has on the device are lost, and ours.

        Raises:
            popart_exception: Before ``prepareDevice``.
        """
        self._prepared()
        self._device.loaded, self._has_weights = self, False

    def initAnchorArrays(self) -> Dict[str, np.ndarray]:
        """Allocate the arrays that runs fill; axes of 1 before a tensor's own are dropped."""
        found = {}
        for name, selection in self._selections.items():
            info = self.getInfo(name)
            shape = [axis for axis in selection.axes if axis != 1]
            found[name] = np.empty([*shape, *info.shape()], info.data_type_lcase())
        return found

    def getInfo(self, name: str) -> TensorInfo:
        """Shape and type of an input, a weight or an anchor, of one micro-batch.

        Raises:
            NotEmulatedError: For another tensor.
        """
        program = self._program
        if name in self._inputs:
            return self._inputs[name]
        if name in program.weights:
            return TensorInfo(program.weights[name].numpy())
        if name not in program.infos:
            raise NotEmulatedError(f"getInfo of {name!r}, which is no input, weight or anchor")
        return program.infos[name]

    def setRandomSeed(self, seedValue: int) -> None:
        """Seed all random numbers of the runs to come.

        Raises:
            popart_exception: Before ``prepareDevice``.
        """
        self._prepared()
        self._seed, self._runs = int(seedValue), 0

    def getRandomSeed(self) -> int:
        """Return the seed."""
        self._prepared()
        return self._seed

    def getCycleCount(self, id: str = "") -> int:
        """Return 0: nothing here counts cycles."""
        del id
        note_once("cycles", "getCycleCount has no meaning without a device: 0")
        return 0

    def weightsFromHost(self) -> None:
        """Copy weights and the optimizer's state to the device.

        Raises:
            popart_exception: Before ``prepareDevice``.
        """
        program = self._prepared()
        self._device.loaded = self
        self._host.to_device({**program.weights, **self._state})
        self._has_weights = True

    def weightsToHost(self) -> None:
        """Copy weights and the optimizer's state from the device, for ``readWeights``.

        Raises:
            popart_exception: Before ``prepareDevice``.
        """
        program = self._prepared()
        self._check_loaded()
        if self._options.syntheticDataMode is SyntheticDataMode.Off:
            self._host.from_device({**program.weights, **self._state})

    def readWeights(self, weightsIo: PyWeightsIO) -> None:
        """Fill arrays with what ``weightsToHost`` copied last."""
        self._prepared()
        self._host.read(weightsIo.weights)

    def writeWeights(self, weightsIo: PyWeightsIO) -> None:
        """Take over weights, for ``weightsFromHost`` to copy.

        Raises:
            popart_exception: If weights are constant.
        """
        self._prepared()
        self._check_not_constant("writeWeights")
        self._host.write(weightsIo.weights)

    def modelToHost(self, fn: str) -> None:
        """Write a model with the device's weights and the optimizer's state as initializers.

        Raises:
            popart_exception: Before ``prepareDevice``.
        """
        self.weightsToHost()
        Path(fn).write_bytes(self._host.model().SerializeToString())

    def resetHostWeights(
        self, model: Model, ignoreWeightsInModelWithoutCorrespondingHostWeight: bool = False
    ) -> None:
        """Take over the weights of another model, for ``weightsFromHost`` to copy.

        Raises:
            popart_exception: If weights are constant, or the model has others.
        """
        self._prepared()
        self._check_not_constant("resetHostWeights")
        ignores = ignoreWeightsInModelWithoutCorrespondingHostWeight
        self._host.reset(load(model), ignore_unknown=ignores)

    def run(self, stepio: PyStepIO, debugName: str = "") -> None:
        """Run one step, and fill the anchors' arrays.

        Args:
            stepio: Inputs of ``batchesPerStep x accumulationFactor x replicas`` micro-batches.
            debugName: Without effect.

        Raises:
            popart_exception: If an array is missing or does not fit, or nothing is ready to run.
        """
        del debugName
        program = self._ready()
        shape = self._execution.shape
        generator = torch.Generator().manual_seed(self._seed)
        feeds = self._feeding.steps(stepio.inputs, shape, generator)
        outputs = {n: Outputs(s, np.add) for n, s in self._selections.items()}
        count = self._runs
        self._runs += 1

        def micro_step(position: Position) -> Dict[str, torch.Tensor]:
            gradients: Dict[str, torch.Tensor] = {}
            found = program.run(
                self._feeding.at(feeds, position, shape),
                seed=seed_of(self._seed, count, position),
                gradients=gradients,
                factor=self._execution.seed_factor * self._loss_scale(),
            )
            for name, kept in outputs.items():
                kept.take(position, [found[name]])
            return gradients

        with torch.random.fork_rng(devices=[]):
            self._drive(micro_step)
        for name, kept in outputs.items():
            _fill(name, stepio.outputs, kept.blocks()[0])

    def _make_update(self, program: Program) -> None:
        """Nothing to update in inference."""

    def _drive(self, micro_step: Any) -> None:
        infer(self._execution.shape, micro_step)

    def _loss_scale(self) -> float:
        return 1.0

    def _prepared(self) -> Program:
        if not self._is_prepared:
            raise popart_exception("prepareDevice() must be called before this")
        return self._program

    def _ready(self) -> Program:
        if self._device.connectionType is DeviceConnectionType.Never:
            raise popart_exception("Offline IPU device is not configured for execution")
        program = self._prepared()
        if not self._device.isAttached:
            if self._device.connectionType is not DeviceConnectionType.OnDemand:
                raise popart_exception("the device was detached; attach() it before run")
            self._device.attach()
        constant = self._loss is None and self._options.constantWeights
        if constant or not program.weights:
            self._device.loaded = self  # it is loaded again by itself
        self._check_loaded()
        if not self._has_weights and not constant and program.weights:
            raise popart_exception(
                "Must call weightsFromHost before run as the model has initializers"
            )
        return program

    def _check_loaded(self) -> None:
        if self._device.loaded is not self:
            raise popart_exception(
                "another session was loaded on this device since: the weights of this one are not "
                "there any more; call weightsFromHost()"
            )

    def _check_not_constant(self, what: str) -> None:
        if self._loss is None and self._options.constantWeights:
            raise popart_exception(
                f"Cannot call {what} when constantWeights is set. Set `constantWeights` to False "
                "in the `SessionOption`s when initialising the session to enable this behaviour."
            )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise NotEmulatedError(f"{type(self).__name__}.{name}")


class InferenceSession(_Session):
    """Runs a graph.

    Args:
        fnModel: Bytes or a path.
        dataFlow: Executions a step, and what comes back.
        deviceInfo: Where it runs.
        inputShapeInfo: Shapes that the model leaves open.
        patterns: Without effect.
        userOptions: Copied.
        name: Without effect.
    """

    def __init__(
        self,
        fnModel: Model,
        dataFlow: DataFlow,
        deviceInfo: DeviceInfo,
        inputShapeInfo: Optional[InputShapeInfo] = None,
        patterns: Optional[Patterns] = None,
        userOptions: Optional[SessionOptions] = None,
        name: str = "inference",
    ) -> None:
        del patterns, name
        if not dataFlow.nAnchors():
            raise popart_exception("User must specify an anchor tensor when doing inference.")
        self._set_up(fnModel, dataFlow, deviceInfo, inputShapeInfo, userOptions)


class TrainingSession(_Session):
    """Trains the weights of a graph.

    Args:
        fnModel: Bytes or a path.
        dataFlow: Updates a step, and what comes back.
        loss: Name of the scalar whose gradient is taken.
        optimizer: Copied.
        deviceInfo: Where it runs.
        inputShapeInfo: Shapes that the model leaves open.
        patterns: Without effect.
        userOptions: Copied.
        name: Without effect.
    """

    def __init__(  # noqa: PLR0917  as in the SDK
        self,
        fnModel: Model,
        dataFlow: DataFlow,
        loss: str,
        optimizer: Optimizer,
        deviceInfo: DeviceInfo,
        inputShapeInfo: Optional[InputShapeInfo] = None,
        patterns: Optional[Patterns] = None,
        userOptions: Optional[SessionOptions] = None,
        name: str = "training",
    ) -> None:
        del patterns, name
        self._loss, self._trained_by = loss, copy.deepcopy(optimizer)
        self._set_up(fnModel, dataFlow, deviceInfo, inputShapeInfo, userOptions)

    def updateOptimizerFromHost(self, optimizer: Optimizer) -> None:
        """Take over the values of an optimizer that are not constant.

        Raises:
            popart_exception: If anything else differs, or before ``prepareDevice``.
        """
        self._prepared()
        self._trained_by.check_replacement(optimizer)
        self._trained_by = copy.deepcopy(optimizer)
        self._update.optimizer = self._trained_by

    def _make_update(self, program: Program) -> None:
        is_mean = self._execution.reduction.accumulation != "sum"
        if is_mean and self._trained_by.clipping and self.accumulationFactor > 1:
            raise NotEmulatedError("clip_norm_settings with a mean over micro-batches")
        self._state = self._host.slots_of(program.weights)
        self._update = Update(program.weights, self._state, self._trained_by)

    def _loss_scale(self) -> float:
        return self._trained_by.getLossScalingVal()

    def _drive(self, micro_step: Any) -> None:
        execution = self._execution
        accumulates = self._options.enableGradientAccumulation
        with torch.no_grad():
            train(
                execution.shape,
                execution.reduction,
                micro_step,
                self._update.apply,
                arithmetic=TorchArithmetic(self._trained_by, accumulates=accumulates),
                loss_scale=self._loss_scale(),
                fabric=execution.fabric,
            )


def _fill(name: str, arrays: Dict[str, np.ndarray], blocks: List[np.ndarray]) -> None:
    if name not in arrays:
        raise popart_exception(f"no output array for the anchor {name!r}")
    array, value = arrays[name], np.stack(blocks)
    if array.size != value.size or array.dtype != value.dtype:
        raise popart_exception(
            f"the array of anchor {name!r} must hold {value.size} elements of {value.dtype}, it "
            f"holds {array.size} of {array.dtype}; make it with initAnchorArrays()"
        )
    array[...] = value.reshape(array.shape)
