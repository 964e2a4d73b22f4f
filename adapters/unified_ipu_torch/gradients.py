"""Where gradients live: torch's own, views of the reducer's buffers, or staged from a device.

The three have one interface. ``prepare`` before each backward and ``collect`` after it hold against
user code that drops or replaces ``.grad`` (``optimizer.zero_grad()`` in an objective, backward with
``create_graph``): what was accumulated before stays.

Source: what keeps and what loses a gradient view was tried on torch 2.13; ``test_gradients.py``
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
from unified_ipu.errors import CapabilityError
from unified_ipu_torch.errors import NAME


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
        self._kept: List[Optional[torch.Tensor]] = [None] * len(parameters)

    def begin(self) -> None:
        """Start without gradients."""
        for parameter in self._parameters:
            parameter.grad = None
        self._kept = [None] * len(self._parameters)

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
        for index, kept in enumerate(self._kept):
            if kept is not None and kept.layout is not torch.strided:  # of sparse embeddings
                self._kept[index] = self._parameters[index].grad = kept.to_dense()
        return [kept is not None for kept in self._kept]

    def receive(self) -> None:
        """They are in place."""

    def close(self) -> None:
        """Nothing is foreign."""


class BoundGradients:
    """Several replicas on the CPU: each ``.grad`` is a view of a bucket, filled by autograd."""

    def __init__(
        self,
        parameters: Sequence[torch.nn.Parameter],
        slots: Sequence[Slot],
        buffers: Sequence[Any],
    ) -> None:
        self._parameters = parameters
        self._flat = [torch.from_numpy(buffer) for buffer in buffers]
        self._views = gradient_views(parameters, slots, self._flat)
        self._used = UseFlags(parameters)

    def begin(self) -> None:
        """Zero the buckets and point every ``.grad`` into them."""
        for flat in self._flat:
            flat.zero_()
        self._used.clear()
        self.prepare()

    def prepare(self) -> None:
        """Put the views back that user code replaced."""
        for parameter, view in zip(self._parameters, self._views):
            if parameter.grad is not view:
                parameter.grad = view

    def collect(self) -> None:
        """Copy a gradient that autograd did not add in place; it holds the whole sum."""
        for parameter, view in zip(self._parameters, self._views):
            gradient = parameter.grad
            if gradient is not view:
                if gradient is not None:
                    view.copy_(gradient.detach().to_dense())
                parameter.grad = view

    def finish(self) -> List[bool]:
        """The sums are in the buckets already."""
        return self._used.as_list()

    def receive(self) -> None:
        """The reducer wrote into the views."""
        self.prepare()

    def close(self) -> None:
        """Drop the views, whose memory goes away."""
        self._used.close()
        for parameter in self._parameters:
            parameter.grad = None
        self._views, self._flat = [], []


class StagedGradients:
    """Several replicas on a device: gradients stay there and are copied to the buckets once."""

    def __init__(
        self,
        parameters: Sequence[torch.nn.Parameter],
        slots: Sequence[Slot],
        buffers: Sequence[Any],
    ) -> None:
        self._parameters = parameters
        self._own = OwnGradients(parameters)
        self._views = gradient_views(parameters, slots, [torch.from_numpy(b) for b in buffers])

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


class UseFlags:
    """One flag a parameter: whether backward reached it since ``clear``."""

    def __init__(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        self._flags = [False] * len(parameters)
        self._nodes: List[Any] = []  # torch forgets a hook on a node that nobody holds
        self._handles = [self._watch(index, p) for index, p in enumerate(parameters)]

    def _watch(self, index: int, parameter: torch.nn.Parameter) -> Any:
        def reached(*_: Any) -> None:
            self._flags[index] = True

        if hasattr(parameter, "register_post_accumulate_grad_hook"):
            register: Any = parameter.register_post_accumulate_grad_hook
            return register(reached)
        # torch 2.0 has no such hook; the node that accumulates has one.
        expanded: Any = parameter.expand_as(parameter).grad_fn
        node = expanded.next_functions[0][0]
        self._nodes.append(node)
        return node.register_hook(reached)

    def clear(self) -> None:
        """Set all flags to False."""
        for index in range(len(self._flags)):
            self._flags[index] = False

    def as_list(self) -> List[bool]:
        """Copy of the flags."""
        return list(self._flags)

    def close(self) -> None:
        """Take the hooks off."""
        for handle in self._handles:
            handle.remove()
        self._nodes = []


def gradient_views(
    parameters: Sequence[torch.nn.Parameter],
    slots: Sequence[Slot],
    flat: Sequence[torch.Tensor],
) -> List[torch.Tensor]:
    """Views of the buckets with each parameter's own strides (channels_last included).

    Raises:
        CapabilityError: If a slot asks for another layout than the parameter's.
    """
    views = []
    for parameter, slot in zip(parameters, slots):
        if slot.permutation is not None:
            raise CapabilityError(NAME, f"{slot.name!r}: permuted gradients are not written")
        part = flat[slot.bucket][slot.offset : slot.offset + parameter.numel()]
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
        if gradient.is_cpu and gradient.is_contiguous():
            flat = gradient.numpy()
            total += float(np.vdot(flat, flat).real)
        elif gradient.is_cpu:
            flat = gradient.numpy().ravel("K")  # no copy while the memory is dense
            total += float(np.dot(flat, flat))
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
