"""Compilation: one pass over the model that checks everything and changes nothing.

The ladder, in PopTorch's order: rows of the inputs, options, the pass itself (reads, shapes,
blocks), the one loss, the state of the model, the pipeline, the IPUs.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, Optional

import torch

from unified_ipu_torch.emulated.poptorch import anchors, host_tensors
from unified_ipu_torch.emulated.poptorch.backend_options import validate_options
from unified_ipu_torch.emulated.poptorch.capture import LossWatch, OperatorWatch
from unified_ipu_torch.emulated.poptorch.context import Run, running
from unified_ipu_torch.emulated.poptorch.device_model import DeviceModel
from unified_ipu_torch.emulated.poptorch.device_optimizer import DeviceOptimizer
from unified_ipu_torch.emulated.poptorch.device_random import DeviceRandom
from unified_ipu_torch.emulated.poptorch.enums import OverlapMode
from unified_ipu_torch.emulated.poptorch.errors import Error
from unified_ipu_torch.emulated.poptorch.log import logger
from unified_ipu_torch.emulated.poptorch.placement import BlockSequence, check_ipus, check_overlap
from unified_ipu_torch.emulated.poptorch.program import Program, half_is_possible
from unified_ipu_torch.emulated.poptorch.settings import Settings
from unified_ipu_torch.emulated.poptorch.structures import flatten

CPP = "poptorch_cpp_error"


@dataclass(frozen=True)
class Compiled:
    """A program and what its outputs look like.

    Args:
        program: To run.
        structure: What the model returned when it was captured.
        on_device: Of each tensor in it whether the program computes it.
        input_names: Of the bound arguments.
    """

    program: Program
    structure: Any
    on_device: List[bool]
    input_names: List[str]

    def tensor_names(self) -> List[str]:
        """Names of the program's tensors."""
        return anchors.tensor_names(
            self.program.model.parameters,
            self.input_names,
            training=self.program.settings.training,
        )


def compile_model(
    model: Any,
    inputs: Any,
    options: Any,
    description: Optional[Any],
    *,
    seed: int,
) -> Compiled:
    """Capture a model and check that a device could run it.

    Args:
        model: To call, not watched.
        inputs: Bound arguments with the rows of a whole call.
        options: Of the executor.
        description: Of the optimizer; None compiles for inference.
        seed: Of the device.

    Returns:
        The program; no update has been made.

    Raises:
        Error: If a device could not run it.
    """
    micro = _first_micro_batch(inputs, options)
    validate_options(options.toDict())
    if options._Popart.options["instrumentWithHardwareCycleCounter"]:
        raise Error("Cycle count logging is only supported on actual IPU hardware.", CPP)
    settings = Settings.read(options, training=description is not None)
    device_model = DeviceModel(model, settings.shape.replicas)
    _check_updatable(options, device_model)
    optimizer = None
    if description is not None:
        optimizer = DeviceOptimizer(description, device_model.host_parameters())
    random = DeviceRandom(seed)
    capture = _Capture(device_model, settings, options)
    result = capture.run(model, micro, random)
    anchors.check(settings.anchors, device_model.trained(), training=settings.training)
    on_device = capture.check(result)
    return Compiled(
        Program(
            model,
            device_model,
            settings,
            final_loss=capture.final_loss,
            num_losses=len(capture.losses),
            on_device=on_device,
            random=random,
            optimizer=optimizer,
        ),
        result,
        on_device,
        [*inputs.arg_names, *inputs.kwargs],
    )


class _Capture:
    """The pass that compiles.

    Args:
        model: Its tensors on the device.
        settings: Of the options.
        options: Of the executor.
    """

    def __init__(self, model: DeviceModel, settings: Settings, options: Any) -> None:
        self._model = model
        self._settings = settings
        self._options = options
        self._blocks = BlockSequence(options._execution_strategy)
        self._buffers: Dict[str, torch.Tensor] = {
            name: buffer.clone() for name, buffer in model.buffers[0].items()
        }
        self._watch: Any = None
        self._overlaps = False
        self._overlapped: List[torch.Tensor] = []
        self.losses: List[torch.Tensor] = []
        self.final_loss: Optional[int] = None

    def run(self, call: Any, micro: Any, random: DeviceRandom) -> Any:
        state = [*self._model.parameters.values(), *self._buffers.values()]
        self._watch = OperatorWatch([*state, *micro.flatten()], self._blocks.operator)
        run = Run(
            training=self._settings.training,
            is_capture=True,
            on_loss=self._watch.take_loss,
            placement=self._blocks,
            inputs=micro.flatten(),
        )
        with self._shown(), random.use(keep=False), running(run), half_is_possible():
            with torch.enable_grad() if run.training else contextlib.nullcontext():
                with LossWatch(run), self._watch:
                    result = call(*micro.args, **micro.kwargs)
            self._model.check_unchanged(self._buffers)
        self.losses = run.losses
        self._overlaps = any(mode != OverlapMode.NoOverlap for mode in run.overlaps)
        self._overlapped = run.overlapped_outputs
        return result

    def check(self, result: Any) -> List[bool]:
        """What can be told after the pass.

        Returns:
            Of each output whether it is computed on the device.

        Raises:
            Error: If a device could not run it.
        """
        settings = self._settings
        if settings.training:
            self.final_loss = self._watch.final_loss(self.losses)
            if self.losses[self.final_loss].numel() != 1:
                raise Error(
                    "Loss tensor must be a scalar tensor, the final loss has shape "
                    f"{tuple(self.losses[self.final_loss].shape)}; reduce it with "
                    'poptorch.identity_loss(..., reduction="sum" or "mean")',
                    "popart_exception",
                )
        if not {id(tensor) for tensor in self._overlapped} <= {id(t) for t in flatten(result)}:
            raise Error(
                "poptorch.set_overlap_for_output applied on a node which is not a tensor output "
                "to the model.",
                CPP,
            )
        if self._overlaps:
            tiles = int(self._options.toDict().get("numIOTiles", 0))
            check_overlap(self._options._execution_strategy, tiles, settings.selection.mode)
        if not settings.may_change_buffers:
            self._check_buffers()
        self._blocks.check(
            is_training=settings.training,
            accumulation=settings.shape.accumulation,
            iterations=settings.shape.iterations,
        )
        if self._blocks.ipus():
            replicas, is_rounded = settings.shape.replicas, self._options.auto_round_num_ipus
            check_ipus(self._blocks.ipus(), replicas, is_rounded=is_rounded)
        found = [self._watch.is_on_device(tensor) for tensor in flatten(result)]
        if not all(found):
            logger.warning("Output expected to be on the IPU but is on cpu")
        return found

    def _check_buffers(self) -> None:
        free = self._model.normalisation_buffers()
        for name, buffer in self._buffers.items():
            if buffer._version and name not in free:
                raise Error(
                    "PopTorch does not support broadcasting buffers. If your model is able to "
                    "tolerate buffers becoming out of sync between replicas, you can disable "
                    "buffer broadcasting using poptorch.Options.broadcastBuffers(False). The "
                    f"buffer is {name}.",
                    CPP,
                )

    @contextlib.contextmanager
    def _shown(self) -> Iterator[None]:
        strategy = self._options._execution_strategy
        strategy.onStartTracing()
        self._model.enter()
        try:
            self._model.show_host_attributes(self._buffers)
            yield
        finally:
            self._model.leave(keep_assigned=True)
            strategy.onEndTracing()


def _first_micro_batch(inputs: Any, options: Any) -> Any:
    rows = {id(tensor): host_tensors.micro_rows(tensor, options) for tensor in inputs.flatten()}

    def narrow(tensor: torch.Tensor) -> torch.Tensor:
        part = tensor.narrow(0, 0, rows[id(tensor)]) if tensor.dim() else tensor
        return host_tensors.to_device(part)

    return inputs.map(narrow)


def _check_updatable(options: Any, model: DeviceModel) -> None:
    for name in options._Popart.options.get("updatableNamedBuffers", []):
        if name not in model.buffers[0]:
            raise Error(f"Invalid updatable buffer {name}", CPP)
