"""How tensors of the host become inputs of the device, and outputs tensors of the host.

Source: PopTorch 3.4, ``poptorch/source/PoplarExecutable.cpp`` (types and shapes).
"""

from __future__ import annotations

from typing import Any, List

import torch

from unified_ipu_torch.emulated.poptorch.device_model import device_type
from unified_ipu_torch.emulated.poptorch.errors import Error, require
from unified_ipu_torch.emulated.poptorch.log import logger
from unified_ipu_torch.emulated.poptorch.settings import (
    SYNTHETIC_NORMAL,
    SYNTHETIC_OFF,
    SYNTHETIC_ZEROS,
    Settings,
)

_INT32 = torch.iinfo(torch.int32)


def micro_rows(tensor: torch.Tensor, options: Any) -> int:
    """Rows of one micro-batch of an input; 1 for an input of no axis.

    Args:
        tensor: As the host sends it.
        options: Of the executor.

    Returns:
        The rows.

    Raises:
        AssertionError: If the rows do not divide.
    """
    rows = tensor.shape[0] if tensor.dim() else 1
    streams = options.replication_factor // options.input_group_size
    slices = options.device_iterations * streams * options.Training.gradient_accumulation
    require(
        rows % slices == 0,
        f"Invalid batch dimension: In the input {tensor.shape}, the batch dimension ({rows}) must "
        f"be a multiple of Options.deviceIterations({options.device_iterations}) * "
        f"(Options.replicationFactor({options.replication_factor}) / "
        f"Options.inputReplicaGrouping.input_group_size({options.input_group_size})) * "
        "Options.Training.gradientAccumulation"
        f"({options.Training.gradient_accumulation}) = {slices} because it is used to calculate "
        "the batch size which will be executed on the device in any given iteration.",
    )
    return int(rows // slices)


def to_device(tensor: torch.Tensor) -> torch.Tensor:
    """An input as the device has it, apart from the host's memory.

    Args:
        tensor: Of the host.

    Returns:
        float64 and bfloat16 as float32; int64 as it is, since torch wants it for indices.

    Raises:
        Error: If an integer does not fit into the device's int32, or the tensor has no element.
    """
    if tensor.numel() == 0:
        shape = ", ".join(map(str, tensor.shape))
        raise Error(
            f"Zero-sized tensors are unsupported (Got shape [{shape}])", "poptorch_cpp_error"
        )
    if tensor.dtype == torch.int64:
        low, high = torch.aminmax(tensor)
        if int(low) < _INT32.min or int(high) > _INT32.max:
            raise Error(
                f"an int64 input has values from {int(low)} to {int(high)}; the device has int32",
                "unified_ipu_emulation",
            )
    if tensor.requires_grad:
        logger.warning(
            "Input tensor has requires_grad=True set. This tensor will be detached because "
            "backward pass via inputs is not supported."
        )
    return tensor.detach().to(device_type(tensor.dtype), copy=True)


def synthetic(tensor: torch.Tensor, settings: Settings) -> torch.Tensor:
    """What the device makes up instead of an input, if it was told to.

    Integers are 0: noise would be no valid index.

    Args:
        tensor: Of the device.
        settings: Of the program.

    Returns:
        The tensor itself if the host's data is used.
    """
    if settings.synthetic == SYNTHETIC_OFF:
        return tensor
    if settings.synthetic == SYNTHETIC_ZEROS or not tensor.is_floating_point():
        return torch.zeros_like(tensor)
    if settings.synthetic == SYNTHETIC_NORMAL:
        return torch.randn_like(tensor)
    return torch.rand_like(tensor)


def keep(tensor: torch.Tensor) -> torch.Tensor:
    """An output of a micro-batch, apart from the device's memory; int32 and float32 at most."""
    narrow = {torch.int64: torch.int32, torch.float64: torch.float32}
    return tensor.detach().to(narrow.get(tensor.dtype, tensor.dtype), copy=True)


def join(blocks: List[torch.Tensor]) -> torch.Tensor:
    """The blocks of one output, along axis 0; one block stays as it is."""
    if len(blocks) == 1:
        return blocks[0]
    return torch.cat(blocks) if blocks[0].dim() else torch.stack(blocks)
