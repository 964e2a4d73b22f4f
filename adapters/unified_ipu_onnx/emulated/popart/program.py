"""A compiled graph with its weights on the device: runs micro-batches, one after the other."""

from __future__ import annotations

import math
from typing import Any, Dict, List, Mapping, Optional, Sequence

import numpy as np
import torch
from onnx import ModelProto, ValueInfoProto

from unified_ipu.device import Position
from unified_ipu.errors import UnifiedIpuError
from unified_ipu_onnx.emulated.popart.errors import NotEmulatedError, popart_exception
from unified_ipu_onnx.emulated.popart.names import reservedGradientPrefix
from unified_ipu_onnx.emulated.popart.tensor_info import NUMPY_TYPES, ON_DEVICE, TensorInfo
from unified_ipu_onnx.module import GraphModule
from unified_ipu_onnx.trainable import uses_of

Arrays = Mapping[str, np.ndarray]
_GRADIENT = reservedGradientPrefix()


class Program:
    """A graph on one device; all replicas share its weights, which are equal on all.

    Args:
        proto: The model.
        inputs: Shape and type of a micro-batch of every input.
        anchors: Values to return; ``Gradient___x`` is the one of tensor ``x``.
        loss: Name of the scalar to differentiate; None for inference.

    Raises:
        popart_exception: If something in it is not computed here.
    """

    def __init__(
        self,
        proto: ModelProto,
        inputs: Mapping[str, TensorInfo],
        anchors: Sequence[str],
        loss: Optional[str],
    ) -> None:
        self.inputs, self.loss = dict(inputs), loss
        values = [name for name in anchors if not name.startswith(_GRADIENT)]
        try:
            self.module = GraphModule.from_model(_with_outputs(proto, values, loss))
        except UnifiedIpuError as error:
            raise popart_exception(str(error)) from error
        self.module.train(loss is not None)
        names = self.module.initializer_names
        self.weights = {names[n]: p.data for n, p in self.module.named_parameters()}
        self._parameters = {names[n]: p for n, p in self.module.named_parameters()}
        # A device computes gradients of all that its graph has a way to: whether a micro-batch took
        # that way does not matter, and replicas that took another one reduce the same tensors.
        reached = uses_of(_with_outputs(proto, [], loss)).weights if loss is not None else set()
        self._reached = [name for name in self._parameters if name in reached]
        self._values = values
        self._of = [name[len(_GRADIENT) :] for name in anchors if name.startswith(_GRADIENT)]
        self._check(anchors)
        self.infos = self._dry_run()

    def _check(self, anchors: Sequence[str]) -> None:
        if self.loss is None and self._of:
            raise popart_exception(f"an inference session has no {anchors[0]!r}: no gradients")
        if self.loss is not None and self.module.coupling:
            raise NotEmulatedError(
                f"training with batch statistics (node {self.module.coupling[0]!r}): its running "
                "statistics follow the number of its outputs in PopART"
            )
        if self.module.fallbacks:
            raise NotEmulatedError(f"node {self.module.fallbacks[0].label!r}")
        for name in self._of:
            if name not in self.module.computed_names():
                raise popart_exception(f"No tensor {_GRADIENT + name!r}: the loss does not need it")

    def _dry_run(self) -> Dict[str, TensorInfo]:
        """Run once on zeros: what shapes and types come out.

        Raises:
            popart_exception: If the graph does not run, or the loss is no scalar.
        """
        feeds = {
            name: np.zeros(info.shape(), NUMPY_TYPES[info.dataType()])
            for name, info in self.inputs.items()
        }
        with torch.random.fork_rng(devices=[]):
            found = self.run(feeds, seed=0, gradients={}, factor=1.0)
        infos = {name: TensorInfo(value) for name, value in found.items()}
        if self.loss is not None and math.prod(self._loss_shape) != 1:
            raise popart_exception(
                f"the loss {self.loss!r} must be a scalar, its shape is {self._loss_shape}"
            )
        return infos

    def run(
        self, feeds: Arrays, *, seed: int, gradients: Dict[str, torch.Tensor], factor: float
    ) -> Dict[str, np.ndarray]:
        """Run one micro-batch, forward and, with a loss, backward.

        Args:
            feeds: Its inputs.
            seed: Of its random numbers.
            gradients: Gets the gradient of every weight that the loss reaches, zeros where this
                micro-batch took another branch.
            factor: Multiplies the loss before backward.

        Returns:
            The anchored values.

        Raises:
            popart_exception: If a node cannot compute what it is given.
        """
        tensors = {name: torch.from_numpy(np.array(value)) for name, value in feeds.items()}
        for name in self._of:
            if name in tensors and tensors[name].dtype.is_floating_point:
                tensors[name].requires_grad_()
        if self.module.drawing:
            torch.manual_seed(seed)
        wanted = [*self._values, *self._of, *filter(None, [self.loss])]
        try:
            with torch.set_grad_enabled(self.loss is not None):
                values = self.module.run(tensors, wanted)
        except UnifiedIpuError as error:
            raise popart_exception(str(error)) from error
        found = {name: values[name] for name in self._values}
        if self.loss is not None:
            found.update(self._backward(values, gradients, factor))
        return {name: _array(value) for name, value in found.items()}

    def _backward(
        self, values: Mapping[str, Any], gradients: Dict[str, torch.Tensor], factor: float
    ) -> Dict[str, torch.Tensor]:
        loss = values[str(self.loss)]
        self._loss_shape = list(loss.shape)
        gradients.update({n: torch.zeros_like(self._parameters[n]) for n in self._reached})
        if loss.numel() != 1 or not loss.requires_grad:
            return {f"{_GRADIENT}{n}": torch.zeros_like(values[n]) for n in self._of}
        inner = {f"{_GRADIENT}{n}": values[n] for n in self._of if values[n].requires_grad}
        at: List[torch.Tensor] = [*self._parameters.values(), *inner.values()]
        found: Any
        seed = torch.full_like(loss, factor)
        found = torch.autograd.grad(loss, at, seed, allow_unused=True)
        count = len(self._parameters)
        pairs = dict(zip(self._parameters, found))
        gradients.update({name: value for name, value in pairs.items() if value is not None})
        anchored = {
            name: torch.zeros_like(value) if gradient is None else gradient
            for (name, value), gradient in zip(inner.items(), found[count:])
        }
        for name in self._of:
            if f"{_GRADIENT}{name}" not in anchored:
                raise popart_exception(f"tensor {name!r} has no gradient")
        return anchored


def _with_outputs(proto: ModelProto, values: Sequence[str], loss: Optional[str]) -> ModelProto:
    """A copy whose outputs are what is asked for, so that nothing else is computed.

    Raises:
        popart_exception: If nothing gives one of them.
    """
    copy = ModelProto()
    copy.CopyFrom(proto)
    graph = copy.graph
    known = {value.name for value in graph.input} | {t.name for t in graph.initializer}
    known |= {name for node in graph.node for name in node.output}
    described = {value.name: value for value in (*graph.output, *graph.value_info)}
    wanted = dict.fromkeys([*values, *filter(None, [loss])])
    del graph.output[:]
    for name in wanted:
        if name not in known:
            raise popart_exception(f"No tensor {name!r} in the graph")
        graph.output.append(described.get(name, ValueInfoProto(name=name)))
    return copy


def _array(value: torch.Tensor) -> np.ndarray:
    """What the host sees; a device has no int64 and no float64."""
    array: np.ndarray = value.detach().numpy()
    narrower = {np.dtype(np.int64): np.int32, np.dtype(np.float64): np.float32}
    return array.astype(narrower.get(array.dtype, array.dtype), copy=False)


def seed_of(seed: int, run: int, position: Position) -> int:
    """Seed of one micro-batch: other ones in each run, iteration, step and replica."""
    key = (seed, run, position.iteration, position.step, position.replica)
    return int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0] >> np.uint64(1))


def check_device_types(proto: ModelProto, inputs: Mapping[str, TensorInfo]) -> None:
    """Refuse what a device has no type for.

    Raises:
        popart_exception: Naming the tensor.
    """
    for name, info in inputs.items():
        if info.dataType() not in ON_DEVICE:
            raise popart_exception(
                f"input {name!r} is {info.data_type()}, which no device has; use FLOAT, FLOAT16 or "
                "INT32"
            )
    for tensor in proto.graph.initializer:
        if tensor.data_type == tensor.DOUBLE:
            raise popart_exception(
                f"weight {tensor.name!r} is DOUBLE, which no device has; convert the model to FLOAT"
            )
