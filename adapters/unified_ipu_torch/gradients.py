"""Where gradients live: torch's own, or staged from a device (or bound, see ``bound_gradients``).

The three have one interface. ``prepare`` before each backward and ``collect`` after it hold against
user code that drops or replaces ``.grad`` (``optimizer.zero_grad()`` in an objective, backward with
``create_graph``): what was accumulated before stays.

Source: what keeps and what loses a gradient view was tried on torch 2.13; ``test_update.py``
holds it.
"""

from __future__ import annotations

import math
import sys
from contextlib import contextmanager
from typing import Any, Iterator, List, Optional, Protocol, Sequence

import numpy as np
import torch

from unified_ipu.adapter import Slot
from unified_ipu_torch.half_kernels import as_tensor


class Gradients(Protocol):
    """The gradients of one replica's trained parameters."""

    def begin(self) -> None:
        """Forget the update before."""
        ...

    def prepare(self) -> None:
        """Make sure backward adds to what was accumulated."""
        ...

    def collect(self) -> None:
        """Make sure backward added to where we look."""
        ...

    def finish(self) -> List[bool]:
        """Bring the sums to where the reducer reads; return the use flags."""
        ...

    def receive(self) -> None:
        """Bring the reduced gradients back to where the optimizer reads."""
        ...

    def close(self) -> None:
        """Let go of foreign memory."""
        ...


class OwnGradients:
    """One replica: autograd's own tensors, no buffer, no copy."""

    def __init__(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        self._parameters = parameters
        self._none: List[Optional[torch.Tensor]] = [None] * len(parameters)
        self._kept = self._none

    def begin(self) -> None:
        """Start without gradients."""
        for parameter in self._parameters:
            parameter.grad = None
        self._kept = self._none

    def prepare(self) -> None:
        """Put back what user code dropped."""
        for parameter, kept in zip(self._parameters, self._kept):
            if parameter.grad is not kept:
                parameter.grad = kept

    def collect(self) -> None:
        """Remember autograd's tensors."""
        self._kept = [parameter.grad for parameter in self._parameters]

    def finish(self) -> List[bool]:
        """A parameter without a gradient was not used."""
        used = []
        for index, kept in enumerate(self._kept):
            if kept is not None and kept.layout is not torch.strided:  # of sparse embeddings
                self._kept[index] = self._parameters[index].grad = kept.to_dense()
            used.append(kept is not None)
        return used

    def receive(self) -> None:
        """They are in place."""

    def close(self) -> None:
        """Nothing is foreign."""


class StagedGradients:
    """Several replicas on a device, or other axes or types in the buckets: copied there once."""

    def __init__(
        self,
        parameters: Sequence[torch.nn.Parameter],
        slots: Sequence[Slot],
        buffers: Sequence[Any],
    ) -> None:
        self._parameters = parameters
        self._own = OwnGradients(parameters)
        self._views = gradient_views(parameters, slots, [as_tensor(b) for b in buffers])

    def begin(self) -> None:
        """Start without gradients."""
        self._own.begin()

    def prepare(self) -> None:
        """Put back what user code dropped."""
        self._own.prepare()

    def collect(self) -> None:
        """Remember autograd's tensors."""
        self._own.collect()

    def finish(self) -> List[bool]:
        """Copy to the host; unused ones count as 0 there."""
        used = self._own.finish()
        for parameter, view in zip(self._parameters, self._views):
            if parameter.grad is None:
                view.zero_()
            else:
                view.copy_(parameter.grad)
        return used

    def receive(self) -> None:
        """Copy the reduced gradients back, also to parameters that only other ranks used."""
        for parameter, view in zip(self._parameters, self._views):
            if parameter.grad is None:
                parameter.grad = torch.empty_like(parameter)
            parameter.grad.copy_(view)

    def close(self) -> None:
        """Drop the views."""
        self._views = []
        self._own.begin()


def gradient_views(
    parameters: Sequence[torch.nn.Parameter],
    slots: Sequence[Slot],
    flat: Sequence[torch.Tensor],
) -> List[torch.Tensor]:
    """Views of the buckets with each parameter's own strides (channels_last included).

    Where a slot has axes of its own, the view has the parameter's shape and strides that fit it.
    """
    views = []
    for parameter, slot in zip(parameters, slots):
        part = flat[slot.bucket][slot.offset : slot.offset + parameter.numel()]
        if slot.permutation is not None:
            inverse = np.argsort(slot.permutation).tolist()
            views.append(part.view(slot.shape).permute(inverse))
            continue
        strides = parameter.stride()
        if torch.empty_like(parameter).stride() == strides:  # dense, so the strides fit the slot
            views.append(part.as_strided(parameter.shape, strides, part.storage_offset()))
        else:
            views.append(part.view(parameter.shape))
    return views


@contextmanager
def without_gradient(
    parameters: Sequence[torch.nn.Parameter], active: Sequence[bool]
) -> Iterator[None]:
    """Take the gradient away inside, where ``active`` is False, so the optimizer skips it."""
    hidden = [(p, p.grad) for p, is_active in zip(parameters, active) if not is_active]
    for parameter, _ in hidden:
        parameter.grad = None
    try:
        yield
    finally:
        for parameter, gradient in hidden:
            parameter.grad = gradient


def squared_norm(gradients: Sequence[torch.Tensor]) -> float:
    """Sum of squares over all tensors; not finite exactly if an element is not finite.

    A fast pass in the tensors' own type comes first; where that overflows, float64 decides.
    """
    total = 0.0
    for gradient in gradients:
        if gradient.is_cpu:
            flat = gradient.numpy().ravel("K")  # no copy while the memory is dense
            total += float(np.vdot(flat, flat))  # unlike `dot`, it warns of no overflow
        else:
            norm = float(torch.linalg.vector_norm(gradient))
            total += norm * norm
    if math.isfinite(total):
        return total
    total = sum(float(gradient.double().square().sum()) for gradient in gradients)
    # Only finite float64 gradients beyond 1e154 get here with an infinite sum.
    if math.isinf(total) and all(bool(torch.isfinite(g).all()) for g in gradients):
        return sys.float_info.max
    return total
