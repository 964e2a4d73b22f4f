"""Tensors that come to torch from elsewhere, and leave it, sharing memory where that is safe."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np
import torch
from torch.utils import dlpack as _dlpack

from unified_ipu.adapter import (
    Bridge,
    Copies,
    CopyReason,
    array_of,
    check_dtype,
    is_aligned,
    named,
    owner_of,
)
from unified_ipu.errors import DataError

dlpack: Any = _dlpack  # not all of it is typed


def from_any(
    leaf: Any, *, path: str = "", is_fresh: bool = False, copies: Optional[Copies] = None
) -> torch.Tensor:
    """Return ``leaf`` as a torch tensor that may be written to.

    Args:
        leaf: A tensor of torch or of another framework, a numpy array, or what numpy reads.
        path: Of the leaf in its batch, for messages.
        is_fresh: That nobody else reads this memory again: then it is shared. A tensor of another
            framework is copied otherwise, since writing into it would change a constant there.
        copies: Is told of copies.

    Returns:
        The tensor; a torch tensor as it is, a writable numpy array by its memory.

    Raises:
        DataError: If torch has no such element type or layout; it names the leaf.
    """
    if isinstance(leaf, torch.Tensor):
        return leaf
    if isinstance(leaf, np.ndarray):
        return from_numpy(leaf, path=path, copies=copies)
    bridge = owner_of(leaf)
    if bridge is None:
        return from_numpy(array_of(leaf, path), path=path, copies=copies)
    counted = copies or Copies()
    try:
        capsule = bridge.export(leaf, path=path, is_fresh=is_fresh, copies=counted)
        tensor: torch.Tensor = dlpack.from_dlpack(capsule)
    except (RuntimeError, TypeError, ValueError, BufferError):
        return _by_way_of_numpy(bridge, leaf, path, counted)
    return tensor


def from_numpy(array: Any, *, path: str = "", copies: Optional[Copies] = None) -> torch.Tensor:
    """Return a tensor over the memory of ``array``, or over a copy if it may not be written to.

    Args:
        array: Any numpy array.
        path: Of the leaf in its batch, for messages.
        copies: Is told of copies.

    Returns:
        The tensor.

    Raises:
        DataError: If torch has no such element type.
    """
    # torch knows no read-only memory: a write would end the process in a mapped file, and change
    # what others read anywhere else.
    reason = CopyReason.READ_ONLY
    if array.flags.writeable:
        try:
            return torch.from_numpy(array)
        except (TypeError, ValueError):  # strides, byte order, or no such element type
            native = array.dtype.isnative
            reason = CopyReason.NOT_CONTIGUOUS if native else CopyReason.FOREIGN_ORDER
    own = np.array(array, dtype=array.dtype.newbyteorder("="), order="C")
    try:
        tensor = torch.from_numpy(own)
    except TypeError as error:
        raise DataError(
            f"{named(path)} has the element type {array.dtype}, which torch cannot take "
            f"({error}); convert it to numbers of another type"
        ) from error
    if copies is not None:
        copies.add(reason, own.nbytes)
    return tensor


def export(tensor: Any, *, path: str, is_fresh: bool, copies: Copies) -> Any:
    """See ``unified_ipu.adapter.Bridge``.

    Raises:
        DataError: If it cannot cross; it names the leaf.
    """
    tensor = _dense(tensor, path)
    check_dtype(str(tensor.dtype)[len("torch.") :], path=path, owner="torch tensor")
    before = tensor
    # Both views are read as plain memory by the taker: the sign would be lost without a word.
    tensor = tensor.resolve_conj().resolve_neg()
    reason = None if tensor is before else CopyReason.LAZY_VIEW
    if not tensor.is_contiguous():
        reason = CopyReason.NOT_CONTIGUOUS
        tensor = tensor.contiguous()
    if reason is None and not is_aligned(tensor.data_ptr()):
        reason = CopyReason.NOT_ALIGNED
    elif reason is None and not is_fresh:
        reason = CopyReason.ALIASED
    if reason in {CopyReason.NOT_ALIGNED, CopyReason.ALIASED}:
        tensor = tensor.clone()
    if reason is not None:
        copies.add(reason, tensor.numel() * tensor.element_size())
    return dlpack.to_dlpack(tensor)


def to_numpy(tensor: Any) -> Any:
    """See ``unified_ipu.adapter.Bridge``; bfloat16, which numpy lacks, comes as float32.

    Raises:
        DataError: If it is no dense tensor.
    """
    tensor = _dense(tensor, "").cpu().resolve_conj().resolve_neg()
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()


def _dense(tensor: Any, path: str) -> torch.Tensor:
    if not isinstance(tensor, torch.Tensor):
        raise DataError(f"{named(path)} is a {type(tensor).__qualname__}, no torch tensor")
    if tensor.layout != torch.strided or tensor.is_nested:
        raise DataError(
            f"{named(path)} is a torch tensor of layout {tensor.layout}; make it dense first "
            "(.to_dense(), or torch.nested.to_padded_tensor)"
        )
    if tensor.device.type not in {"cpu", "cuda"}:
        raise DataError(
            f"{named(path)} is a torch tensor on {tensor.device}, which has no memory that others "
            'can read; move it to "cpu" first'
        )
    # A taker knows nothing of autograd; without this the capsule would be refused or untracked.
    return tensor.detach() if tensor.requires_grad else tensor


def _by_way_of_numpy(bridge: Bridge, leaf: Any, path: str, copies: Copies) -> torch.Tensor:
    """Copy what this version of torch does not take as a capsule (bools, in old ones)."""
    array = np.array(bridge.to_numpy(leaf), order="C")
    copies.add(CopyReason.REFUSED, array.nbytes)
    return from_numpy(array, path=path)
