"""Leaves of tf.data elements: which can be handed over, and their memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from unified_ipu.errors import DataError


def dense(path: str, leaf: Any) -> Any:
    """Return the leaf as a dense tensor of bools or numbers.

    Raises:
        DataError: If it is none.
    """
    if isinstance(leaf, (tf.RaggedTensor, tf.SparseTensor)):
        raise DataError(
            f"leaf {path} is a {type(leaf).__name__}; make it dense (.to_tensor() or "
            "tf.sparse.to_dense) with one shape for all samples"
        )
    try:
        tensor = tf.convert_to_tensor(leaf)
    except (TypeError, ValueError) as error:
        raise DataError(f"leaf {path} is a {type(leaf).__name__}, no tensor: {error}") from error
    kind = tensor.dtype
    is_number = kind.is_integer or kind.is_floating or kind.is_complex or kind.is_bool
    if not is_number or kind.as_numpy_dtype not in _NUMPY_TYPES:
        raise DataError(
            f"leaf {path} has the element type {kind.name}; batches hold bools and numbers that "
            "numpy knows: leave it out, or encode it with tf.cast, tf.bitcast or a vocabulary"
        )
    return tensor


_NUMPY_TYPES = frozenset(
    {
        np.bool_,
        *(np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64),
        *(np.float16, np.float32, np.float64, np.complex64, np.complex128),
    }
)


def memory_of(tensor: Any) -> np.ndarray:
    """The tensor's own memory; valid as long as the tensor is."""
    if not tensor.shape.num_elements():
        empty: np.ndarray = tensor.numpy()
        return empty
    return np.asarray(memoryview(tensor))
