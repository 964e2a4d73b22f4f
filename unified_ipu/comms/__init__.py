"""How ranks talk: communicators, the shared-memory transport and the gradient reducer."""

from __future__ import annotations

from unified_ipu.comms.communicator import Communicator as Communicator
from unified_ipu.comms.connect import connect as connect, local_group as local_group
from unified_ipu.comms.kernels import Buffer as Buffer, Kernels as Kernels
from unified_ipu.comms.kernels_numpy import NumpyKernels as NumpyKernels
from unified_ipu.comms.reducer import Reducer as Reducer
from unified_ipu.comms.reduction import NonFinite as NonFinite, Reduction as Reduction
from unified_ipu.comms.segment import available_bytes as available_bytes

__all__ = [
    "Buffer",
    "Communicator",
    "Kernels",
    "NonFinite",
    "NumpyKernels",
    "Reducer",
    "Reduction",
    "available_bytes",
    "connect",
    "local_group",
]
