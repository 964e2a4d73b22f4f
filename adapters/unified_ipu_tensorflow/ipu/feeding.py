"""Micro-batches of a call as the data set that IPU Keras takes its batches from.

One batch a micro-batch, in the order in which the infeed deals them: step after step, and in a step
replica after replica, which is the core's own order.
"""

from __future__ import annotations

from typing import Any, Dict, Sequence

import numpy as np
import tensorflow as tf

from unified_ipu.adapter import (
    DeviceUpdate,
    MicroBatch,
    host_batch,
    inputs_of,
    map_tree,
    split_batch,
)
from unified_ipu.errors import CapabilityError
from unified_ipu_tensorflow.errors import NAME
from unified_ipu_tensorflow.ipu.models import Form

_INT32 = np.iinfo(np.int32)


def training_parts(micro: MicroBatch) -> Dict[str, Any]:
    """Inputs and targets of a micro-batch, in the types of devices."""
    x, y, _ = split_batch(micro.tree)
    parts = {"x": x} if y is None else {"x": x, "y": y}
    return {name: map_tree(part, on_device) for name, part in parts.items()}


def inference_parts(micro: MicroBatch) -> Dict[str, Any]:
    """Inputs of a micro-batch, in the types of devices."""
    return {"x": map_tree(inputs_of(micro.tree), on_device)}


def on_device(leaf: Any) -> Any:
    """An array in a type that a device has.

    Raises:
        CapabilityError: If a whole number does not fit, or it is no number.
    """
    array = np.asarray(leaf)
    if array.dtype == np.float64:
        return array.astype(np.float32)
    if array.dtype.kind in "iu" and array.dtype != np.int32:
        if array.size and not (_INT32.min <= array.min() and array.max() <= _INT32.max):
            raise CapabilityError(
                NAME, f"a batch holds {array.dtype} beyond int32, the only whole numbers of IPUs"
            )
        return array.astype(np.int32)
    if array.dtype.kind not in "bfi":
        raise CapabilityError(NAME, f"a batch holds {array.dtype}, which no IPU computes with")
    return array


def forms_of(parts: Any) -> Any:
    """Shapes of one row of every leaf."""
    return map_tree(parts, lambda leaf: Form(leaf.shape[1:]))


def training_data(updates: Sequence[DeviceUpdate], coefficients: Any) -> Any:
    """The rows of a call, one an element: inputs, targets that nobody reads, sample weights.

    Args:
        updates: Of the call.
        coefficients: One number a row, ``[rows of the call]``.
    """
    micro_batches = [micro for update in updates for micro in update.micro_batches]
    parts = host_batch([training_parts(micro) for micro in micro_batches])
    weights = np.asarray(coefficients, np.float32)
    return tf.data.Dataset.from_tensor_slices((parts, np.zeros_like(weights), weights))


def inference_data(micro_batches: Sequence[MicroBatch]) -> Any:
    """The rows of some micro-batches, one an element."""
    return tf.data.Dataset.from_tensor_slices(
        (host_batch([inference_parts(micro) for micro in micro_batches]),)
    )


def rows_of_coefficients(updates: Sequence[DeviceUpdate], *, weighs_rows: bool) -> Any:
    """One coefficient a row; a micro-batch's own one is shared out to its rows."""
    found = []
    for update in updates:
        coefficients = np.asarray(update.coefficients, np.float64)
        if not weighs_rows:
            rows = update.micro_batches[0].rows
            coefficients = np.repeat(coefficients[:, None] / rows, rows, axis=1)
        found.append(coefficients.reshape(-1))
    return np.concatenate(found)
