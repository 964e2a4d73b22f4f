"""Operators of PopTorch that torch does not have: most of them compute what they are given.

Settings of memory, layout or overlap mean nothing without hardware; their checks are kept.

Source: PopTorch 3.4, ``python/ops.py``.
"""

from __future__ import annotations

import sys
from typing import Any, Callable, Dict, Union

import torch

from unified_ipu_torch.emulated.poptorch.context import current_run
from unified_ipu_torch.emulated.poptorch.enums import MatMulSerializationMode, OverlapMode
from unified_ipu_torch.emulated.poptorch.errors import Error, require
from unified_ipu_torch.emulated.poptorch.log import note_once
from unified_ipu_torch.emulated.poptorch.print_format import PrintFormat
from unified_ipu_torch.emulated.poptorch.structures import flatten, rebuild

_REDUCTIONS: Dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": torch.sum,
    "mean": torch.mean,
    "none": torch.clone,
}


def _tensor(value: Any, words: str) -> None:
    if not isinstance(value, torch.Tensor):
        raise Error(f"{words} {type(value)} is not supported.")


def identity_loss(x: torch.Tensor, reduction: str) -> torch.Tensor:
    """Mark a tensor as a loss; the last one of a model is differentiated.

    Args:
        x: What was computed for it.
        reduction: "sum", "mean" or "none".

    Returns:
        The reduced tensor.

    Raises:
        AssertionError: If there is no such reduction.
    """
    require(reduction in _REDUCTIONS, f"Unsupported reduction type! ({reduction!r})")
    loss = _REDUCTIONS[reduction](x)
    run = current_run()
    if run is not None:
        run.add_loss(loss)
    return loss


def nop(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor; an operator that no optimisation removes."""
    _tensor(tensor, "nop must take a torch.tensor argument.")
    return tensor.clone()


def ipu_print_tensor(  # noqa: PLR0917  # the SDK's order
    tensor: torch.Tensor,
    title: str = "",
    print_gradient: bool = True,
    summarise_threshold: int = 1000,
    edge_items: int = 3,
    max_line_width: int = 80,
    digits: int = 4,
    float_format: str = "auto",
    separator: str = ", ",
    open_bracket: str = "(",
    close_bracket: str = ")",
) -> torch.Tensor:
    """Print a tensor, and in training its gradient, to the standard error whenever it is computed.

    Args:
        tensor: To print.
        title: In front of it; the gradient has "_gradient" behind.
        print_gradient: Whether the gradient is printed too.
        summarise_threshold: From how many elements on only the edges are shown; 0 shows all.
        edge_items: Elements at each edge.
        max_line_width: Longer lines are broken; 0 for never.
        digits: Of a number.
        float_format: "auto", "fixed", "scientific" or "none".
        separator: Between elements.
        open_bracket: In front of each axis.
        close_bracket: Behind it.

    Returns:
        The tensor; use it, as a device drops what nothing uses.

    Raises:
        KeyError: If there is no such format.
    """
    _tensor(tensor, "ipu print tensor must take a torch.tensor argument.")
    form = PrintFormat(
        summarise_threshold,
        edge_items,
        max_line_width,
        digits,
        float_format,
        separator,
        open_bracket,
        close_bracket,
    )
    run = current_run()
    printed = tensor.clone()
    if run is None or run.is_capture:
        return printed
    _print(title, tensor, form)
    if print_gradient and printed.requires_grad:
        hook: Any = printed.register_hook  # torch's, without types
        hook(lambda gradient: _print(f"{title}_gradient", gradient, form))
    return printed


def _print(title: str, tensor: torch.Tensor, form: PrintFormat) -> None:
    sys.stderr.write(f"{title}: {form.text(tensor)}\n")


def dynamic_slice(
    tensor: torch.Tensor, dim: int, start: torch.Tensor, size: int, step: int
) -> torch.Tensor:
    """A slice whose start is computed on the device.

    Args:
        tensor: To slice.
        dim: Along this.
        start: First index; one element.
        size: Distance from the start to the end.
        step: Between elements.

    Returns:
        ``size // step`` elements along ``dim``.

    Raises:
        Error: If an argument is of another type.
    """
    _tensor(tensor, "dynamic_slice must take a torch.tensor input.")
    _ints(dim=dim, size=size, step=step)
    _tensor(start, "Slice start argument to dynamic_slice must be a torch.tensor.")
    offsets = torch.arange(0, size, step)
    return tensor.index_select(dim, start.reshape(1).to(torch.int64) + offsets)


def dynamic_update(
    input: torch.Tensor, src: torch.Tensor, dim: int, start: torch.Tensor, size: int
) -> torch.Tensor:
    """A tensor with a slice replaced, whose start is computed on the device.

    Args:
        input: The tensor.
        src: The slice.
        dim: Along this.
        start: First index; one element.
        size: Elements of the slice along ``dim``.

    Returns:
        A new tensor.

    Raises:
        Error: If the arguments do not fit.
    """
    _tensor(input, "dynamic_update must take a torch.tensor input.")
    _ints(dim=dim, size=size)
    _tensor(start, "Slice start argument to dynamic_update must be a torch.tensor.")
    _tensor(src, "Src argument to dynamic_update must be a torch.tensor.")
    if input.dim() != src.dim():
        raise Error(
            f"input and src tensors must have same dimensionality. ({input.dim()}) vs ({src.dim()})"
        )
    if input.dtype != src.dtype:
        raise Error(f"input and src tensor must have same dtype. ({input.dtype} vs {src.dtype})")
    index = start.reshape(1).to(torch.int64) + torch.arange(size)
    return input.index_copy(dim, index, src)


def _ints(**values: Any) -> None:
    words = {"dim": "Dimension", "size": "Size", "step": "Step"}
    for name, value in values.items():
        if not isinstance(value, int):
            raise Error(f"{words[name]} must be an integer.")


def serializedMatMul(
    lhs: torch.Tensor,
    rhs: torch.Tensor,
    mode: MatMulSerializationMode,
    factor: int = 0,
    keep_precision: bool = False,
) -> torch.Tensor:
    """A matrix product that the hardware computes in parts to save memory.

    Args:
        lhs: Left factor.
        rhs: Right factor.
        mode: Along which dim.
        factor: Number of parts; divides the dim.
        keep_precision: Whether parts are added in float32.

    Returns:
        ``lhs @ rhs``.

    Raises:
        AssertionError: If an argument is of another type, or the parts do not divide the dim.
    """
    require(isinstance(keep_precision, bool), "keep_precision must be a bool")
    require(isinstance(factor, int), "factor must be an integer")
    require(isinstance(mode, MatMulSerializationMode), "mode must be a MatMulSerializationMode")
    sizes = {
        MatMulSerializationMode.InputChannels: lhs.shape[-2] if lhs.dim() > 1 else 1,
        MatMulSerializationMode.ReducingDim: lhs.shape[-1],
        MatMulSerializationMode.OutputChannels: rhs.shape[-1],
    }
    size = sizes.get(mode, factor)
    require(factor == 0 or size % factor == 0, f"factor {factor} does not divide {size} ({mode})")
    return torch.matmul(lhs, rhs)


def set_available_memory(tensor: torch.Tensor, available_memory_proportion: float) -> torch.Tensor:
    """The tensor; on hardware its operator may use so much memory.

    Args:
        tensor: Of a matrix product, convolution, lookup or index.
        available_memory_proportion: From 0 to 1.

    Returns:
        The tensor.

    Raises:
        AssertionError: If the proportion is outside of its range.
    """
    _tensor(tensor, "You may only set available memory for torch.tensor values.")
    require(
        0.0 <= available_memory_proportion <= 1.0,
        f"available_memory_proportion must be from 0 to 1, got {available_memory_proportion}",
    )
    note_once("set_available_memory", "memory of the hardware")
    return tensor.clone()


def recomputationCheckpoint(*tensors: Any) -> Any:
    """Tensors that the hardware keeps for the backward pass instead of computing them again.

    Args:
        tensors: One or several, or one list or tuple of them.

    Returns:
        The same structure; a tuple for several.

    Raises:
        ValueError: If one is no tensor.
    """
    if len(tensors) == 1 and isinstance(tensors[0], (tuple, list)):
        return type(tensors[0])(recomputationCheckpoint(tensor) for tensor in tensors[0])
    if not all(isinstance(tensor, torch.Tensor) for tensor in tensors):
        raise ValueError("All inputs must be tensors")
    kept = tuple(tensor.clone() for tensor in tensors)
    return kept[0] if len(kept) == 1 else kept


def set_overlap_for_input(input_tensors: Any, mode: Union[OverlapMode, str]) -> Any:
    """Inputs whose transfer the hardware overlaps with computation.

    Args:
        input_tensors: A tensor, or tuples, lists and dicts of them.
        mode: In which loop.

    Returns:
        The same structure.

    Raises:
        Error: If one is no input of the model.
    """
    run = current_run()
    if run is not None and run.is_capture:
        for tensor in flatten(input_tensors):
            if not any(tensor is given for given in run.inputs):
                raise Error(
                    "poptorch.set_overlap_for_input applied on a node which is not a tensor input "
                    "to the model.",
                    "poptorch_cpp_error",
                )
    return _overlapped(input_tensors, mode)


def set_overlap_for_output(output_tensors: Any, mode: Union[OverlapMode, str]) -> Any:
    """Outputs whose transfer the hardware overlaps with computation.

    Args:
        output_tensors: A tensor, or tuples, lists and dicts of them.
        mode: In which loop.

    Returns:
        The same structure, which the model has to return.
    """
    found = _overlapped(output_tensors, mode)
    run = current_run()
    if run is not None:
        run.overlapped_outputs.extend(flatten(found))
    return found


def _overlapped(tensors: Any, mode: Any) -> Any:
    if not flatten(tensors):
        raise Error(
            f"You may only set overlap for torch.tensor inputs. {type(tensors)} is not supported."
        )
    run = current_run()
    if run is not None:
        run.overlaps.append(OverlapMode(mode))
    return rebuild(tensors, [tensor.clone() for tensor in flatten(tensors)])
