"""Fourier transforms; complex numbers are pairs in the last axis."""

from __future__ import annotations

from typing import Optional, Sequence

import torch

from unified_ipu_onnx.nodes import Node
from unified_ipu_onnx.registry import Function, Operator


def dft_of_attribute(node: Node) -> Function:
    """Over the axis of the attribute; before operator set 20."""
    transform = _Transform(node)
    axis = node.integer("axis", 1)
    return lambda x, length=None: transform(x, length, axis)


def dft(node: Node) -> Function:
    """Over the axis of the third input."""
    transform = _Transform(node)
    return lambda x, length=None, axis=(-2,): transform(x, length, int(axis[0]))


class _Transform:
    def __init__(self, node: Node) -> None:
        self._inverse = bool(node.integer("inverse"))
        self._onesided = bool(node.integer("onesided"))

    def __call__(self, x: torch.Tensor, length: Optional[Sequence[int]], axis: int) -> torch.Tensor:
        values, along = _complex(x), axis % x.dim()
        size = int(length[0]) if length else None
        if self._inverse and self._onesided:
            signal: torch.Tensor = torch.fft.irfft(values, size, along)
            return signal.unsqueeze(-1)
        if self._inverse:
            return torch.view_as_real(torch.fft.ifft(values, size, along))
        if self._onesided and not values.is_complex():
            return torch.view_as_real(torch.fft.rfft(values, size, along))
        found: torch.Tensor = torch.fft.fft(values, size, along)
        if self._onesided:
            found = found.narrow(along, 0, found.shape[along] // 2 + 1)
        return torch.view_as_real(found)


def _complex(x: torch.Tensor) -> torch.Tensor:
    """Complex view of pairs; numbers without an imaginary part stay real."""
    return x.squeeze(-1) if x.shape[-1] == 1 else torch.view_as_complex(x.contiguous())


def stft(node: Node) -> Function:
    """Transform of windows that move by a step: ``[batch, frames, frequencies, 2]``."""
    onesided = bool(node.integer("onesided", 1))

    def run(
        signal: torch.Tensor,
        step: Sequence[int],
        window: Optional[torch.Tensor] = None,
        length: Optional[Sequence[int]] = None,
    ) -> torch.Tensor:
        values = signal.squeeze(-1) if signal.dim() == 3 and signal.shape[-1] == 1 else signal
        values = _complex(signal) if values.dim() == 3 else values
        if window is None and not length:
            raise node.refuse("it has neither a window nor a frame_length; give one")
        size = int(length[0]) if length else int(window.shape[0]) if window is not None else 0
        frames = values.unfold(1, size, int(step[0]))
        if window is not None:
            frames = frames * window
        if onesided and not frames.is_complex():
            return torch.view_as_real(torch.fft.rfft(frames))
        found = torch.fft.fft(frames)
        return torch.view_as_real(found[..., : size // 2 + 1] if onesided else found)

    return run


OPERATORS = (
    Operator("DFT", 17, dft_of_attribute, ints=(1,)),
    Operator("DFT", 20, dft, ints=(1, 2)),
    Operator("STFT", 17, stft, ints=(1, 3)),
)
