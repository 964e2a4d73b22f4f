"""Sessions of PopART, configured by the lowering, and the arrays that go in and out."""

from __future__ import annotations

import importlib
from typing import Any, Callable, Dict, FrozenSet, List, Mapping, Sequence, Tuple

import numpy as np
from onnx import ModelProto

from unified_ipu.adapter import (
    Lowering,
    NativeCall,
    apply_native_calls,
    native_arguments,
    native_value,
)
from unified_ipu.errors import CapabilityError
from unified_ipu_onnx.errors import NAME
from unified_ipu_onnx.ipu.counting import Counting
from unified_ipu_onnx.ipu.model import place_memory
from unified_ipu_onnx.lower_ipu import INFERENCE, TRAINING
from unified_ipu_onnx.reading import opsets_of
from unified_ipu_onnx.trainable import uses_of

Arrays = Mapping[str, np.ndarray]
_MEMORY = "node.attribute.__available_memory"
_OF_POPDIST = frozenset(
    {
        "opts.enableDistributedReplicatedGraphs",
        "opts.enableReplicatedGraphs",
        "opts.globalReplicaOffset",
        "opts.globalReplicationFactor",
        "opts.replicatedGraphCount",
    }
)
_RATES, _SEED = "session.updateOptimizerFromHost", "session.setRandomSeed"


class Native:
    """What the lowering says, carried out on PopART.

    Args:
        sdk: PopART.
        lowering: Of the plan.
        process: Index of this process.
        popdist: Says which replicas are this process's, if PopRun started it.

    Raises:
        CapabilityError: If it says what this device path cannot do.
    """

    def __init__(self, sdk: Any, lowering: Lowering, process: int, popdist: Any = None) -> None:
        self.sdk = sdk
        self._popdist = popdist
        self._calls = {
            program: [call for call in lowering.calls if call.program == program]
            for program in (TRAINING, INFERENCE)
        }
        self._names: Dict[str, Any] = {"popart": sdk, "process_id": process}
        names = {call.name for call in self.calls(TRAINING)}
        if any(name.startswith("popart.GraphTransformer") for name in names):
            raise CapabilityError(
                NAME, 'precision.compute: only "float32" is written for PopART today'
            )
        if "DeviceManager.createOfflineIPUDevice" in names:
            raise CapabilityError(
                NAME, "ipu.offline_compile compiles and does not run; leave it out to train"
            )
        self.device = self._acquire()

    def calls(self, program: str) -> List[NativeCall]:
        """Of one program, in order."""
        return self._calls[program]

    def options(self, program: str) -> Any:
        """Options of a session."""
        opts, calls = self.sdk.SessionOptions(), self._calls[program]
        if self._popdist is not None:
            calls = [call for call in calls if call.name not in _OF_POPDIST]
        apply_native_calls(calls, {"opts": opts}, self._names)
        if self._popdist is not None:
            module = importlib.import_module(f"{self._popdist.__name__}.popart")
            module.configureSessionOptions(opts)
        return opts

    def value(self, program: str, name: str) -> Any:
        """The value of a call."""
        return native_value(self._calls[program], name, self._names)

    def flow(self, program: str, anchors: Sequence[str], batches: int) -> Any:
        """What a step takes and gives back."""
        kind = self.value(program, "popart.DataFlow.anchorReturnType")
        return self.sdk.DataFlow(batches, dict.fromkeys(anchors, kind))

    def batches(self, program: str) -> int:
        """Updates or executions of a whole step."""
        return int(self.value(program, "popart.DataFlow.batchesPerStep"))

    def at_once(self, program: str) -> int:
        """Micro-batches of a whole step."""
        names = ("opts.accumulationFactor", "opts.replicatedGraphCount")
        counts = [int(self.value(program, name)) for name in names]
        return self.batches(program) * counts[0] * counts[1]

    def place(self, builder: Any, proto: ModelProto, program: str) -> None:
        """Annotate nodes."""
        if any(call.name == _MEMORY for call in self._calls[program]):
            place_memory(builder, proto, float(self.value(program, _MEMORY)))

    def seed(self, session: Any, program: str) -> None:
        """Seed a prepared session."""
        calls = [call for call in self._calls[program] if call.name == _SEED]
        apply_native_calls(calls, {"session": session}, self._names)

    def send_rates(self, session: Any, make: Any, factor: float) -> None:
        """Send the optimizer's values of one call, if the lowering says so."""
        names = {**self._names, "optimizer": make, "rate": factor}
        calls = [call for call in self._calls[TRAINING] if call.name == _RATES]
        apply_native_calls(calls, {"session": session}, names)

    def _acquire(self) -> Any:
        manager = self.sdk.DeviceManager()
        for call in self._calls[TRAINING]:
            first, _, method = call.name.partition(".")
            if first == "DeviceManager":
                positional, keywords = native_arguments(call.value, self._names)
                return getattr(manager, method)(*positional, **keywords)
        raise CapabilityError(NAME, "the lowering acquires no device")


class Program:
    """A prepared session.

    Args:
        native: The lowering on PopART.
        session: Not prepared yet.
        program: ``"training"`` or ``"inference"``.
        loss: Name of the scalar that is differentiated, if it trains.
        used: Weights that it depends on: the others have no gradient, and the device no copy.
    """

    def __init__(
        self,
        native: Native,
        session: Any,
        program: str,
        loss: str = "",
        used: FrozenSet[str] = frozenset(),
    ) -> None:
        self.loss, self.used, self.trains = loss, used, program == TRAINING
        self._sdk, self._session = native.sdk, session
        session.prepareDevice()
        native.seed(session, program)
        self._anchors: Dict[str, np.ndarray] = session.initAnchorArrays()

    def send(self, weights: Arrays) -> None:
        """Bring weights and state to the device."""
        arrays = {name: np.array(value, order="C") for name, value in weights.items()}
        self._session.writeWeights(self._sdk.PyWeightsIO(arrays))
        self._session.weightsFromHost()

    def fetch(self, shapes: Mapping[str, Tuple[int, ...]]) -> Dict[str, np.ndarray]:
        """Bring weights and state from the device.

        Args:
            shapes: Of what is asked for.
        """
        arrays = {name: np.empty(shape, np.float32) for name, shape in shapes.items()}
        self._session.weightsToHost()
        self._session.readWeights(self._sdk.PyWeightsIO(arrays))
        return arrays

    def run(self, feeds: Arrays) -> Dict[str, np.ndarray]:
        """Run a step; every anchor comes as ``[micro-batches, *shape]``, in the order fed."""
        self._session.run(self._sdk.PyStepIO(dict(feeds), self._anchors))
        found = {}
        for name, array in self._anchors.items():
            # Leading axes of 1 are gone: what is left is known from the tensor's own shape.
            own = self._session.getInfo(name).shape()
            found[name] = array.reshape([-1, *own]).copy()
        return found

    def send_rates(self, native: Native, make: Any, factor: float) -> None:
        """Send the optimizer's values of one call."""
        native.send_rates(self._session, make, factor)


def training_program(
    native: Native,
    proto: ModelProto,
    counting: Counting,
    shapes: Mapping[str, Tuple[int, ...]],
    make: Callable[[float], Any],
    updates: int,
) -> Program:
    """Compile a session that trains.

    Args:
        native: The lowering on PopART.
        proto: With static shapes.
        counting: Adds the loss.
        shapes: Of everything that a micro-batch is fed with.
        make: The optimizer with its rates times a factor.
        updates: Of a step.
    """
    sdk = native.sdk
    builder = sdk.Builder(proto.SerializeToString())
    native.place(builder, proto, TRAINING)
    loss = counting.build(builder, sdk, int(opsets_of(proto.opset_import)[""]), shapes)
    model = builder.getModelProto()
    session = sdk.TrainingSession(
        fnModel=model,
        dataFlow=native.flow(TRAINING, [loss], updates),
        loss=loss,
        optimizer=make(1.0),
        deviceInfo=native.device,
        userOptions=native.options(TRAINING),
    )
    return Program(native, session, TRAINING, loss, _used(model, loss))


def _used(model: bytes, loss: str) -> FrozenSet[str]:
    """Weights that the loss has a gradient for."""
    proto = ModelProto.FromString(model)
    del proto.graph.output[:]
    proto.graph.output.add(name=loss)
    return frozenset(uses_of(proto).weights)


def inference_program(
    native: Native, proto: ModelProto, outputs: Sequence[str], executions: int
) -> Program:
    """Compile a session that runs the graph.

    Args:
        native: The lowering on PopART.
        proto: With static shapes.
        outputs: That come back.
        executions: Of a step.
    """
    sdk = native.sdk
    builder = sdk.Builder(proto.SerializeToString())
    native.place(builder, proto, INFERENCE)
    session = sdk.InferenceSession(
        fnModel=builder.getModelProto(),
        dataFlow=native.flow(INFERENCE, outputs, executions),
        deviceInfo=native.device,
        userOptions=native.options(INFERENCE),
    )
    return Program(native, session, INFERENCE)
