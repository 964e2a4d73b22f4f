"""Tensors that come to TensorFlow from elsewhere, and leave it, sharing memory where it is safe."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Optional

import numpy as np
import tensorflow as tf

from unified_ipu.adapter import (
    Bridge,
    Copies,
    CopyReason,
    array_of,
    check_dtype,
    crossing_dtypes,
    is_aligned,
    named,
    owner_of,
)
from unified_ipu.errors import DataError

_LINE = 64  # bytes; where memory must start that TensorFlow shares
_CROSSING = frozenset(tf.as_dtype(name) for name in crossing_dtypes())
_ADVICE = {
    "RaggedTensor": "make it dense: .to_tensor()",
    "SparseTensor": "make it dense: tf.sparse.to_dense",
    "IndexedSlices": "make it dense: tf.convert_to_tensor",
    "ResourceVariable": "read it: .read_value()",
}


def from_any(
    leaf: Any, *, path: str = "", is_fresh: bool = False, copies: Optional[Copies] = None
) -> Any:
    """Return ``leaf`` as an eager tensor.

    Args:
        leaf: An eager tensor, a tensor of another framework, a numpy array, or what numpy reads.
        path: Of the leaf in its batch, for messages.
        is_fresh: That nobody writes into this memory again: then it is shared if it is dense and
            on a 64-byte line. It is copied otherwise, since TensorFlow takes its tensors for
            constants.
        copies: Is told of copies.

    Returns:
        The tensor.

    Raises:
        DataError: If TensorFlow has no such element type or layout; it names the leaf.
    """
    if is_eager(leaf):
        return leaf
    counted = copies or Copies()
    bridge = None if isinstance(leaf, np.ndarray) else owner_of(leaf)
    if bridge is None:
        return _from_numpy(array_of(leaf, path), path=path, is_fresh=is_fresh, copies=counted)
    try:
        capsule = bridge.export(leaf, path=path, is_fresh=is_fresh, copies=counted)
        return tf.experimental.dlpack.from_dlpack(capsule)
    except (RuntimeError, TypeError, ValueError, tf.errors.OpError):
        return _by_way_of_numpy(bridge, leaf, counted)


def export(tensor: Any, *, path: str, is_fresh: bool, copies: Copies) -> Any:
    """See ``unified_ipu.adapter.Bridge``.

    Raises:
        DataError: If it cannot cross; it names the leaf.
    """
    check_tensor(tensor, path)
    if not is_fresh:
        # A constant, a cached row or what a captured one shares: a write would show everywhere.
        tensor = tf.raw_ops.DeepCopy(x=tensor)
        copies.add(CopyReason.ALIASED, num_bytes(tensor))
    return tf.experimental.dlpack.to_dlpack(tensor)


def to_numpy(tensor: Any) -> Any:
    """See ``unified_ipu.adapter.Bridge``; the array is read-only, and text comes as bytes objects.

    Raises:
        DataError: If it is no eager tensor.
    """
    if not is_eager(tensor):
        raise DataError(_not_eager(tensor, ""))
    if tensor.dtype in _CROSSING and tensor.dtype != tf.bfloat16 and tensor.shape.num_elements():
        return np.asarray(memoryview(tensor))
    return tensor.numpy()


def copied(array: Any, dtype: Optional[str] = None) -> Any:
    """Return a tensor with memory of its own, made by one copy.

    ``tf.constant`` makes two in new versions, and in 2.6 none where the array starts on a 64-byte
    line. So the copy is made here, to where TensorFlow can use it as it lies.

    Args:
        array: A numpy array of numbers.
        dtype: Cast to it on the way; None keeps the type.
    """
    if not array.size:
        return tf.constant(array, dtype)
    kind = np.dtype(dtype) if dtype else array.dtype.newbyteorder("=")
    size = array.size * kind.itemsize
    whole = np.empty(size + _LINE, np.uint8)
    first = -whole.ctypes.data % _LINE
    own = whole[first : first + size].view(kind).reshape(array.shape)
    np.copyto(own, array, casting="same_kind")
    try:
        return tf.experimental.dlpack.from_dlpack(own.__dlpack__())
    except (AttributeError, RuntimeError, TypeError, ValueError, BufferError, tf.errors.OpError):
        return tf.constant(own)  # numpy before 1.22 has no capsules, and some types have none


def check_tensor(tensor: Any, path: str) -> None:
    """Refuse what would end the process in a DLPack call.

    Raises:
        DataError: If it is no eager tensor of numbers; it names the leaf.
    """
    if not is_eager(tensor):
        raise DataError(_not_eager(tensor, path))
    if tensor.dtype not in _CROSSING:
        check_dtype(tensor.dtype.name, path=path, owner="TensorFlow tensor")


def is_eager(thing: Any) -> bool:
    """Whether it is a tensor with values."""
    return isinstance(thing, tf.Tensor) and isinstance(thing, _eager_type())


@lru_cache(maxsize=1)
def _eager_type() -> Any:
    # It has no public name in 2.6. Asked for late, since the first tensor fixes TensorFlow's
    # devices and threads.
    return type(tf.constant(0))


def num_bytes(tensor: Any) -> int:
    """Bytes of the elements of an eager tensor."""
    return int(tensor.shape.num_elements()) * int(tensor.dtype.size)


def _not_eager(tensor: Any, path: str) -> str:
    kind = type(tensor).__name__
    advice = _ADVICE.get(kind, "pass an eager tensor, as tf.data and eager operations return them")
    return f"{named(path)} is a {kind}, no dense tensor of TensorFlow; {advice}"


def _from_numpy(array: Any, *, path: str, is_fresh: bool, copies: Copies) -> Any:
    check_dtype(array.dtype.name, path=path, owner="numpy array")
    reason = _copy_reason(array, is_fresh=is_fresh)
    if reason is None:
        try:
            return tf.experimental.dlpack.from_dlpack(array.__dlpack__())
        except (RuntimeError, TypeError, ValueError, BufferError, tf.errors.OpError):
            reason = CopyReason.REFUSED
    copies.add(reason, array.nbytes)
    return copied(array)


def _copy_reason(array: Any, *, is_fresh: bool) -> Optional[CopyReason]:
    if not array.dtype.isnative:
        return CopyReason.FOREIGN_ORDER
    if not array.flags.c_contiguous:
        return CopyReason.NOT_CONTIGUOUS
    if not is_fresh:
        return CopyReason.ALIASED
    if not is_aligned(array.ctypes.data):
        return CopyReason.NOT_ALIGNED
    if not array.flags.writeable:
        return CopyReason.READ_ONLY  # numpy gives no capsule of it
    return None if hasattr(array, "__dlpack__") else CopyReason.REFUSED  # numpy before 1.22


def _by_way_of_numpy(bridge: Bridge, leaf: Any, copies: Copies) -> Any:
    """Copy what this version of TensorFlow does not take as a capsule (bools, in old ones)."""
    array = np.ascontiguousarray(bridge.to_numpy(leaf))
    copies.add(CopyReason.REFUSED, array.nbytes)
    return copied(array)
