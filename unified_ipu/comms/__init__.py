"""How ranks talk: communicators, the shared-memory transport and the gradient reducer."""

from __future__ import annotations

from unified_ipu.comms.arranged import ArrangedCommunicator as ArrangedCommunicator
from unified_ipu.comms.communicator import Communicator as Communicator
from unified_ipu.comms.connect import connect as connect, local_group as local_group
from unified_ipu.comms.dump import has_ended as has_ended
from unified_ipu.comms.general import GeneralCommunicator as GeneralCommunicator
from unified_ipu.comms.kernels import Buffer as Buffer, Kernels as Kernels
from unified_ipu.comms.kernels_numpy import NumpyKernels as NumpyKernels
from unified_ipu.comms.reducer import Reducer as Reducer
from unified_ipu.comms.reduction import (
    GradientReducer as GradientReducer,
    NonFinite as NonFinite,
    Reduction as Reduction,
)
from unified_ipu.comms.segment import available_bytes as available_bytes
from unified_ipu.comms.signature import build_signature as build_signature
from unified_ipu.comms.staged import check_root as check_root
from unified_ipu.comms.wire import Waiting as Waiting, Wire as Wire

__all__ = [
    "ArrangedCommunicator",
    "Buffer",
    "Communicator",
    "GeneralCommunicator",
    "GradientReducer",
    "Kernels",
    "NonFinite",
    "NumpyKernels",
    "Reducer",
    "Reduction",
    "Waiting",
    "Wire",
    "available_bytes",
    "build_signature",
    "check_root",
    "connect",
    "has_ended",
    "local_group",
]
