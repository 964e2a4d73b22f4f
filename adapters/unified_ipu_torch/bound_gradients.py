"""Gradients that are views of the reducer's buffers, in shared memory."""

from __future__ import annotations

from functools import partial
from typing import Any, List, Sequence

import torch

from unified_ipu.adapter import Slot
from unified_ipu_torch.gradients import gradient_views
from unified_ipu_torch.half_kernels import as_tensor

LARGE_BYTES = 1 << 20  # below, calling a hook costs more than the memory is worth


class BoundGradients:
    """Several replicas on the CPU: each ``.grad`` is a view of a bucket.

    The first gradient of an update is autograd's own tensor, copied into the bucket; later ones
    autograd adds in place. That spares zeroing the bucket and reading the zeros back, and tells
    without a hook which parameters were used. Large ones are copied, and let go, as soon as
    backward has made them, so that the gradients are in memory once and not twice.
    """

    def __init__(
        self,
        parameters: Sequence[torch.nn.Parameter],
        slots: Sequence[Slot],
        buffers: Sequence[Any],
    ) -> None:
        self._parameters = parameters
        flat = [as_tensor(buffer) for buffer in buffers]
        for buffer in flat:
            buffer.zero_()  # the gaps between the slots stay 0
        self._views = gradient_views(parameters, slots, flat)
        self._used = [False] * len(parameters)
        self._is_ours = False
        self._hooks: List[Any] = []
        if hasattr(torch.Tensor, "register_post_accumulate_grad_hook"):  # torch 2.1
            for index, parameter in enumerate(parameters):
                if parameter.numel() * parameter.element_size() >= LARGE_BYTES:
                    register: Any = parameter.register_post_accumulate_grad_hook
                    self._hooks.append(register(partial(self._copy_at_once, index)))

    def begin(self) -> None:
        """Start without gradients."""
        self._used = [False] * len(self._parameters)
        for parameter in self._parameters:
            parameter.grad = None

    def prepare(self) -> None:
        """Put the views back that user code replaced."""
        for parameter, view, is_used in zip(self._parameters, self._views, self._used):
            wanted = view if is_used else None
            if parameter.grad is not wanted:
                parameter.grad = wanted
        self._is_ours = True

    def collect(self) -> None:
        """Copy what autograd did not add in place; such a tensor holds the whole sum."""
        self._is_ours = False
        for index, (parameter, view) in enumerate(zip(self._parameters, self._views)):
            gradient = parameter.grad
            if gradient is not view and gradient is not None:
                self._copy(index, gradient)

    def _copy(self, index: int, gradient: torch.Tensor) -> None:
        view = self._views[index]
        if gradient.requires_grad or gradient.layout is not torch.strided:
            gradient = gradient.detach().to_dense()
        view.copy_(gradient)
        self._parameters[index].grad = view
        self._used[index] = True

    def _copy_at_once(self, index: int, parameter: torch.Tensor) -> None:
        # Another program over the same parameters, or the user's own code, may run backward too.
        gradient = parameter.grad
        if self._is_ours and gradient is not None and gradient is not self._views[index]:
            self._copy(index, gradient)

    def finish(self) -> List[bool]:
        """The sums are in the buckets already; what was not used counts as 0 there."""
        for view, is_used in zip(self._views, self._used):
            if not is_used:
                view.zero_()
        return list(self._used)

    def receive(self) -> None:
        """The reducer wrote into the views."""
        for parameter, view in zip(self._parameters, self._views):
            if parameter.grad is not view:
                parameter.grad = view

    def close(self) -> None:
        """Drop the views, whose memory goes away."""
        for hook in self._hooks:
            hook.remove()
        for parameter in self._parameters:
            parameter.grad = None
        self._views, self._used, self._hooks = [], [], []
