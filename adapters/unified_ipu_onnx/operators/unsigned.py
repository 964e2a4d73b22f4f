"""Arithmetic of uint16, uint32 and uint64, for which torch has types and few kernels."""

from __future__ import annotations

from typing import Any, Callable, Dict

import numpy as np
import torch

Binary = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

_WIDE = {
    getattr(torch, name) for name in ("uint16", "uint32", "uint64") if hasattr(torch, name)
}  # absent before torch 2.3

_NUMPY: Dict[str, Callable[[Any, Any], Any]] = {
    "Add": np.add, "Div": np.floor_divide, "Equal": np.equal, "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal, "Less": np.less, "LessOrEqual": np.less_equal,
    "Max": np.maximum, "Min": np.minimum, "Mod": np.remainder, "Mul": np.multiply,
    "Sub": np.subtract,
}  # fmt: skip


def with_unsigned(name: str, function: Binary) -> Binary:
    """Return the function, which asks numpy where torch has no kernel for the type.

    Args:
        name: Of the operator; others than arithmetic and comparison are returned as they are.
        function: Torch's.
    """
    by_numpy = _NUMPY.get(name)
    if by_numpy is None:
        return function

    def run(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        try:
            return function(a, b)
        except NotImplementedError:
            if a.dtype not in _WIDE:
                raise
            return torch.from_numpy(np.asarray(by_numpy(a.cpu().numpy(), b.cpu().numpy()))).to(
                a.device
            )

    return run
