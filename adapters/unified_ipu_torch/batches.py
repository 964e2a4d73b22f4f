"""A micro-batch as native tensors: numpy memory is aliased, never copied without need."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

import numpy as np
import torch

from unified_ipu.adapter import Copies, MicroBatch, Tree, leaves, map_tree
from unified_ipu.errors import DataError
from unified_ipu_torch.bridge import from_any


class Batch(NamedTuple):
    """One micro-batch, ready for the model.

    Args:
        tree: All of it, native tensors.
        rows: Number of rows, padding included.
        counted: ``[rows]`` bool on the host, False for padding; None when every row counts.
        host_tree: As it came, so that targets can be counted without asking the device.
    """

    tree: Tree
    rows: int
    counted: Optional[Any]
    host_tree: Tree

    @property
    def num_counted(self) -> int:
        """Number of rows that are no padding."""
        return self.rows if self.counted is None else int(np.count_nonzero(self.counted))


def read_batch(micro: MicroBatch, device: torch.device, copies: Optional[Copies] = None) -> Batch:
    """Bring a micro-batch to the device.

    Args:
        micro: Its leaves are numpy arrays, torch tensors, or anything numpy can view.
        device: Where the model is.
        copies: Is told of copies.

    Returns:
        The batch; on the CPU its tensors share the memory of writable arrays.

    Raises:
        DataError: If a leaf cannot be a torch tensor; it names the leaf.
    """
    counted = None if micro.sample_weight is None else _padding(micro.sample_weight)
    try:
        tensors = to_tensors(micro.tree, device, copies)
    except DataError:
        for path, leaf in leaves(micro.tree):
            from_any(leaf, path=path)  # fails again, by its name
        raise
    return Batch(tensors, micro.rows, counted, micro.tree)


def _padding(sample_weight: Any) -> Optional[Any]:
    counted = np.asarray(sample_weight) != 0
    return None if counted.all() else counted


def call_model(model: Any, x: Any) -> Any:
    """Call with keywords for a dict, with positions for a tuple or list."""
    if isinstance(x, dict):
        return model(**x)
    if isinstance(x, (tuple, list)):
        return model(*x)
    return model(x)


def select_rows(tree: Tree, keep: Any) -> Tree:
    """Rows of every tensor that has them where ``keep`` is True; other leaves stay."""
    mask = torch.as_tensor(keep)

    def cut(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and leaf.ndim and leaf.shape[0] == mask.shape[0]:
            return leaf[mask.to(leaf.device)]
        return leaf

    return map_tree(tree, cut)


def to_tensors(tree: Tree, device: torch.device, copies: Optional[Copies] = None) -> Tree:
    """Tensors on ``device`` for every array of a tree."""
    if type(tree) is tuple:  # nearly always; saves the general walk
        found = []
        for child in tree:
            is_here = isinstance(child, torch.Tensor) and child.device == device
            found.append(child if is_here else to_tensors(child, device, copies))
        return tuple(found)
    if isinstance(tree, (dict, list, tuple)):
        return map_tree(tree, lambda leaf: to_tensor(leaf, device, copies))
    return to_tensor(tree, device, copies)


def to_tensor(leaf: Any, device: torch.device, copies: Optional[Copies] = None) -> torch.Tensor:
    """One leaf on ``device``.

    Raises:
        DataError: If it cannot be a torch tensor.
    """
    tensor = from_any(leaf, copies=copies)
    if tensor.device != device:
        tensor = tensor.to(device, non_blocking=True)
    return tensor


def to_numpy(tree: Tree) -> Tree:
    """Numpy arrays on the host for every tensor of a tree; numbers become 0-d arrays."""

    def convert(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            leaf = leaf.detach().cpu()
            return (leaf.float() if leaf.dtype == torch.bfloat16 else leaf).numpy()
        return leaf if leaf is None else np.asarray(leaf)

    return map_tree(tree, convert)


class _Writable:
    """Read-only memory under an interface that says otherwise; see ``alias``."""

    def __init__(self, array: Any) -> None:
        self._array = array  # keeps the memory alive
        self.__array_interface__ = dict(array.__array_interface__)
        self.__array_interface__["data"] = (array.__array_interface__["data"][0], False)


def alias(array: Any) -> torch.Tensor:
    """Tensor over the memory of a numpy array.

    torch has no read-only tensors and warns about read-only arrays (results of TensorFlow, slots
    of a ring), so those are wrapped. Files mapped read-only are copied: a model that writes
    into its input would end the process there. So are layouts that torch cannot express.

    Raises:
        DataError: If torch has no such dtype.
    """
    if not array.flags.writeable:
        array = np.array(array) if _is_mapped_file(array) else np.asarray(_Writable(array))
    try:
        return torch.from_numpy(array)
    except (TypeError, ValueError):
        pass  # negative strides, foreign byte order, or no such dtype
    try:
        return torch.from_numpy(np.array(array, dtype=array.dtype.newbyteorder("="), order="C"))
    except (TypeError, ValueError) as error:
        raise DataError(
            f"a leaf of the batch has dtype {array.dtype} and shape {array.shape}, which torch "
            f"cannot take ({error}); return numbers of another type from the pipeline"
        ) from error


def _is_mapped_file(array: Any) -> bool:
    base = array
    while isinstance(base, np.ndarray):
        if isinstance(base, np.memmap):
            return True
        base = base.base
    return False
