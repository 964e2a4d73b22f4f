"""How the device adds gradients: in the type of its accumulators, and finishes in float32."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from unified_ipu.device import Fabric


@dataclass(frozen=True)
class TorchArithmetic:
    """The arithmetic of ``unified_ipu.device`` on tensors.

    Args:
        accum_type: Of accumulators.
    """

    accum_type: torch.dtype = torch.float32

    def start(self, gradient: Any) -> Any:
        """An accumulator of its own."""
        return gradient.detach().to(self.accum_type, copy=True)

    def add(self, total: Any, value: Any) -> Any:
        """The sum, in place of ``total``."""
        return total.add_(value)

    def scale(self, value: Any, factor: float) -> Any:
        """The product, in place."""
        return value.mul_(factor)

    def finish(self, total: Any, factor: float) -> Any:
        """The product in float32."""
        return total.to(torch.float32) * factor

    def across(self, total: Any, fabric: Fabric) -> Any:
        """The sum over processes."""
        found = fabric.sum(total.contiguous().numpy())
        return torch.as_tensor(found, dtype=total.dtype).reshape(total.shape)
