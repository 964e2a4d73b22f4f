"""Where gradients live: TensorFlow's own tensors, or the reducer's buffers.

TensorFlow cannot be told where to put a gradient, so it is copied out once; the way back is an
alias of the buffer, made once, which every operation reads anew. Nobody may assign such an alias to
a variable: the variable would become the buffer, and the next update would rewrite it.

Source: which imports alias, copy or abort was tried on TensorFlow 2.6.3 and 2.21;
``test_gradients.py`` holds it.
"""

from __future__ import annotations

import math
import sys
from typing import Any, List, Optional, Protocol, Sequence, Tuple

import numpy as np
import tensorflow as tf

from unified_ipu.adapter import Slot, is_aligned
from unified_ipu_tensorflow.half_kernels import as_half


class Gradients(Protocol):
    """The gradients of one replica's trained variables over one update."""

    def begin(self) -> None:
        """Forget the update before."""
        ...

    def add(self, gradients: Sequence[Optional[Any]]) -> None:
        """Add those of one micro-batch, in the layout of the buckets; None was not used."""
        ...

    def finish(self) -> List[bool]:
        """Bring the sums to where the reducer reads; return the use flags."""
        ...

    def receive(self) -> List[Optional[Any]]:
        """Return the gradients for the optimizer, in the layout of the variables."""
        ...

    def close(self) -> None:
        """Let go of foreign memory."""
        ...


class OwnGradients:
    """One replica: TensorFlow's own tensors, no buffer, no copy."""

    def __init__(self, num_variables: int) -> None:
        self._sums: List[Optional[Any]] = [None] * num_variables

    def begin(self) -> None:
        """Start without gradients."""
        self._sums = [None] * len(self._sums)

    def add(self, gradients: Sequence[Optional[Any]]) -> None:
        """The first is kept, later ones are added."""
        for index, gradient in enumerate(gradients):
            if gradient is not None:
                before = self._sums[index]
                self._sums[index] = gradient if before is None else before + gradient

    def finish(self) -> List[bool]:
        """A variable without a gradient was not used."""
        return [gradient is not None for gradient in self._sums]

    def receive(self) -> List[Optional[Any]]:
        """They are in place."""
        return self._sums

    def squared_norm(self) -> float:
        """Sum of squares over all of them; not finite exactly if an element is not finite.

        A fast pass in the tensors' own type comes first; where that overflows, float64 decides.
        """
        arrays = [np.asarray(gradient) for gradient in self._sums if gradient is not None]
        with np.errstate(all="ignore"):
            total = sum(float(np.dot(flat, flat)) for flat in map(np.ravel, arrays))
            if math.isfinite(total):
                return total
            total = sum(float(np.square(array, dtype=np.float64).sum()) for array in arrays)
        # Only finite float64 gradients beyond 1e154 get here with an infinite sum.
        if math.isinf(total) and all(bool(np.isfinite(array).all()) for array in arrays):
            return sys.float_info.max
        return total

    def non_finite(self) -> List[int]:
        """Indices of those that are not finite."""
        return [
            index
            for index, gradient in enumerate(self._sums)
            if gradient is not None and not bool(np.isfinite(np.asarray(gradient)).all())
        ]

    def close(self) -> None:
        """Nothing is foreign."""
        self.begin()


class StagedGradients:
    """Several replicas, buckets in half precision: sums in float32, rounded once into the buffers.

    Args:
        slots: One a trained variable.
        buffers: The reducer's: float16, or the bits of bfloat16 as uint16.
    """

    def __init__(self, slots: Sequence[Slot], buffers: Sequence[Any]) -> None:
        self._own = OwnGradients(len(slots))
        flat = [as_half(buffer) for buffer in buffers]
        for buffer in flat:
            buffer[...] = 0  # the gaps between the slots stay 0
        self._views = [_view(slot, flat) for slot in slots]
        self._back = [_inverse(slot.permutation) for slot in slots]

    def begin(self) -> None:
        """Start without gradients."""
        self._own.begin()

    def add(self, gradients: Sequence[Optional[Any]]) -> None:
        """As where there is one replica."""
        self._own.add(gradients)

    def finish(self) -> List[bool]:
        """Round the sums into the buffers; what was not used counts as 0 there."""
        with np.errstate(over="ignore"):  # an overflow is found by all ranks together
            for view, total in zip(self._views, self._own.receive()):
                if total is None:
                    view[...] = 0
                else:
                    view[...] = np.asarray(total).astype(view.dtype)
        return self._own.finish()

    def receive(self) -> List[Optional[Any]]:
        """What the reducer wrote, as float32."""
        found: List[Optional[Any]] = []
        for view, back in zip(self._views, self._back):
            tensor = tf.constant(view.astype(np.float32))
            found.append(tensor if back is None else tf.transpose(tensor, back))
        return found

    def close(self) -> None:
        """Drop the views, whose memory goes away."""
        self._views = []
        self._own.begin()


class BoundGradients:
    """Several replicas: sums in the reducer's buffers.

    Args:
        slots: One a trained variable.
        buffers: The reducer's, one-dimensional numpy arrays on 64-byte lines.
    """

    def __init__(self, slots: Sequence[Slot], buffers: Sequence[Any]) -> None:
        for buffer in buffers:
            buffer[...] = 0  # the gaps between the slots stay 0
        self._views = [_view(slot, buffers) for slot in slots]
        self._aliases = [alias(view) for view in self._views]
        self._back = [_inverse(slot.permutation) for slot in slots]
        self._used = [False] * len(self._views)

    def begin(self) -> None:
        """Start without gradients."""
        self._used = [False] * len(self._views)

    def add(self, gradients: Sequence[Optional[Any]]) -> None:
        """The first is copied into the buffer, which spares clearing it; later ones are added."""
        for index, gradient in enumerate(gradients):
            if gradient is None:
                continue
            view = self._views[index]
            if self._used[index]:
                np.add(view, np.asarray(gradient), out=view)
            else:
                np.copyto(view, np.asarray(gradient))
                self._used[index] = True

    def finish(self) -> List[bool]:
        """What was not used counts as 0 in the buffer."""
        for view, is_used in zip(self._views, self._used):
            if not is_used:
                view[...] = 0
        return list(self._used)

    def receive(self) -> List[Optional[Any]]:
        """What the reducer wrote, under the aliases."""
        found: List[Optional[Any]] = []
        for view, shared, back in zip(self._views, self._aliases, self._back):
            tensor = tf.constant(view) if shared is None else shared
            found.append(tensor if back is None else tf.transpose(tensor, back))
        return found

    def close(self) -> None:
        """Drop views and aliases, whose memory goes away."""
        self._views, self._aliases, self._used = [], [], []


def alias(view: Any) -> Optional[Any]:
    """An eager tensor over the memory of a numpy array, or None where TensorFlow would copy it.

    It shows what is written there later; that is tried here, since it depends on the version.

    Args:
        view: Dense and writable; its content is the same afterwards.
    """
    if not view.size or not is_aligned(view.ctypes.data):
        return None  # unaligned memory would end the process in the first operation
    if hasattr(view, "__dlpack__"):
        tensor = tf.experimental.dlpack.from_dlpack(view.__dlpack__())
    else:
        tensor = tf.convert_to_tensor(view)
    first = view.flat[0]
    try:
        view.flat[0] = 1.0 if first != 1.0 else 2.0
        follows = np.asarray(tensor).flat[0] == view.flat[0]
    finally:
        view.flat[0] = first
    return tensor if follows else None


def _view(slot: Slot, buffers: Sequence[Any]) -> Any:
    size = math.prod(slot.shape)
    return buffers[slot.bucket][slot.offset : slot.offset + size].reshape(slot.shape)


def _inverse(permutation: Optional[Tuple[int, ...]]) -> Optional[List[int]]:
    return None if permutation is None else [int(axis) for axis in np.argsort(permutation)]
