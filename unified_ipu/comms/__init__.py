"""How ranks talk: communicators, the shared-memory transport and the gradient reducer."""

from __future__ import annotations

from unified_ipu.comms.kernels import Buffer as Buffer
from unified_ipu.comms.kernels import Kernels as Kernels

__all__ = ["Buffer", "Kernels"]
