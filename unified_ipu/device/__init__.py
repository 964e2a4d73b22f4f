"""What a device computes in one call, apart from any framework."""

from __future__ import annotations

from unified_ipu.device.coefficients import (
    loss_coefficients as loss_coefficients,
    micro_batch_coefficient as micro_batch_coefficient,
)

__all__ = ["loss_coefficients", "micro_batch_coefficient"]
