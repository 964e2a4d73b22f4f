"""A compiled program: what a model became when it was captured, and its calls."""

from __future__ import annotations

import contextlib
import time
from typing import Any, Dict, Iterator, List, Optional, Sequence

import torch

from unified_ipu.device import Outputs, Position, fabric_of, infer, train
from unified_ipu_torch.emulated.poptorch import capture as watching, host_tensors
from unified_ipu_torch.emulated.poptorch.anchors import Anchors
from unified_ipu_torch.emulated.poptorch.context import Run, running
from unified_ipu_torch.emulated.poptorch.device_model import DeviceModel
from unified_ipu_torch.emulated.poptorch.device_optimizer import DeviceOptimizer
from unified_ipu_torch.emulated.poptorch.device_random import DeviceRandom
from unified_ipu_torch.emulated.poptorch.errors import Error
from unified_ipu_torch.emulated.poptorch.replica_arithmetic import TorchArithmetic
from unified_ipu_torch.emulated.poptorch.settings import SYNTHETIC_OFF, Settings
from unified_ipu_torch.emulated.poptorch.structures import flatten
from unified_ipu_torch.emulated.poptorch.timings import Timings


class Program:
    """Runs calls of a captured model.

    Args:
        call: The model.
        model: Its tensors on the device.
        settings: Of the options.
        final_loss: Which of the losses of a pass is differentiated; None in inference.
        on_device: Of every output whether the program computes it.
        num_losses: Of one pass.
        random: The device's.
        optimizer: Of a program that trains.
    """

    def __init__(
        self,
        call: Any,
        model: DeviceModel,
        settings: Settings,
        *,
        final_loss: Optional[int],
        num_losses: int,
        on_device: List[bool],
        random: DeviceRandom,
        optimizer: Optional[DeviceOptimizer],
    ) -> None:
        self.model = model
        self.settings = settings
        self.random = random
        self.optimizer = optimizer
        self.timings = Timings()
        self._call = call
        self._final_loss = final_loss
        self._num_losses = num_losses
        self._on_device = on_device
        self._inputs: Any = None
        self._rows: List[Optional[int]] = []
        self._outputs = Outputs(settings.selection, _add)
        self._anchors = Anchors(settings.anchors, _add)
        self._last: Dict[int, Position] = {}

    def run(self, inputs: Any) -> List[torch.Tensor]:
        """Run one call.

        Args:
            inputs: Bound arguments with the rows of the whole call.

        Returns:
            The outputs that the program computes.
        """
        given = inputs.flatten()
        self._inputs = inputs.map(host_tensors.to_device)
        held = self._inputs.flatten()
        self._rows = [
            tensor.shape[0] // self.settings.shape.slices if tensor.dim() else None
            for tensor in held
        ]
        self._outputs = Outputs(self.settings.selection, _add)
        self._anchors = Anchors(self.settings.anchors, _add)
        self.timings = Timings()
        self.model.enter()
        try:
            self._run_all()
        finally:
            self.model.leave(keep_assigned=False)
            self._inputs = None
        _copy_back(given, held)
        blocks = self._outputs.blocks()
        self.timings.finish(len(held), len(blocks))
        return [host_tensors.join(each) for each in blocks]

    def anchored(self) -> Dict[str, torch.Tensor]:
        """Anchored tensors of the last call by their short name."""
        return self._anchors.joined()

    def _run_all(self) -> None:
        shape = self.settings.shape
        if self.optimizer is None:
            infer(shape, self._infer_step)
            return
        description = self.optimizer.description
        train(
            shape,
            self.settings.reduction,
            self._train_step,
            self._apply,
            arithmetic=TorchArithmetic(description.fixed["accum_type"]),
            loss_scale=self.optimizer.loss_scale,
            fabric=fabric_of(self.settings.processes, self.settings.process),
        )

    def _infer_step(self, position: Position) -> None:
        with self.random.use(), half_is_possible():
            self._pass(position, Run(training=False, is_capture=False))

    def _train_step(self, position: Position) -> Dict[str, torch.Tensor]:
        run = Run(training=True, is_capture=False)
        with self.random.use(), torch.enable_grad(), watching.LossWatch(run), half_is_possible():
            self._pass(position, run)
            if len(run.losses) != self._num_losses or self._final_loss is None:
                raise Error(
                    f"the model computed {len(run.losses)} losses, and {self._num_losses} when it "
                    "was compiled; what a program does cannot change between calls"
                )
            loss = run.losses[self._final_loss]
            gradients = self._gradients(loss)
        self._anchors.take_pass(position, loss, gradients, self.model.parameters)
        self._last[position.replica] = position
        return gradients

    def _gradients(self, loss: torch.Tensor) -> Dict[str, torch.Tensor]:
        trained = self.model.trained()
        if not loss.requires_grad or self.optimizer is None:
            return {}
        seed = torch.full_like(loss, self.optimizer.loss_scale)
        found = torch.autograd.grad(loss, list(trained.values()), seed, allow_unused=True)
        return {name: each for name, each in zip(trained, found) if _is_used(each)}

    def _apply(self, gradients: Dict[str, torch.Tensor]) -> None:
        if self.optimizer is not None:
            shape, processes = self.settings.shape, self.settings.processes
            divisor = self.settings.reduction.divisor(
                shape.accumulation, shape.replicas * processes
            )
            self.optimizer.update(self.model.parameters, gradients, divisor)
            self._anchors.take_update(self._last.values(), self.model.parameters)

    def _pass(self, position: Position, run: Run) -> None:
        begin = time.perf_counter()
        micro = self._slice(self.settings.slice_of(position))
        if self.settings.synthetic == SYNTHETIC_OFF:
            self.timings.received(begin)
        buffers = self.model.buffers[position.replica]
        self.model.show(buffers)
        with running(run):
            result = self._call(*micro.args, **micro.kwargs)
        self.model.take_back_buffers(buffers)
        computed = [t for t, is_ours in zip(flatten(result), self._on_device) if is_ours]
        begin = time.perf_counter()
        self._outputs.take(position, [host_tensors.keep(tensor) for tensor in computed])
        if self.settings.synthetic == SYNTHETIC_OFF:
            self.timings.returned(self.settings.selection.block(position), begin)

    def _slice(self, index: int) -> Any:
        rows = iter(self._rows)

        def narrow(tensor: torch.Tensor) -> torch.Tensor:
            count = next(rows)
            part = tensor if count is None else tensor.narrow(0, index * count, count)
            return host_tensors.synthetic(part, self.settings)

        return self._inputs.map(narrow)


@contextlib.contextmanager
def half_is_possible() -> Iterator[None]:
    """Say it plainly where the host's torch has no kernel for float16.

    Raises:
        Error: Instead of torch's.
        RuntimeError: Torch's other ones.
    """
    try:
        yield
    except RuntimeError as error:
        if "not implemented for 'Half'" not in str(error):
            raise
        raise Error(
            f"torch {torch.__version__} on this host cannot compute this in float16: {error}. Run "
            "the model in float32, or with a newer torch",
            "unified_ipu_emulation",
        ) from error


def _is_used(gradient: Optional[torch.Tensor]) -> bool:
    return gradient is not None


def _add(total: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return total.add_(value)


def _copy_back(given: Sequence[torch.Tensor], held: Sequence[torch.Tensor]) -> None:
    """What the model changed in place in its inputs, the host sees too."""
    for host, device in zip(given, held):
        if device._version and not host.requires_grad:
            host.copy_(device)
