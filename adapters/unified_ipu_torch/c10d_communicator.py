"""The communicator over c10d: gloo for what lies on the host, NCCL or RCCL for CUDA tensors."""

from __future__ import annotations

from unified_ipu.comms import GeneralCommunicator, Wire


class C10dCommunicator(GeneralCommunicator):
    """``Communicator`` over torch's process groups."""

    def _over(self, wire: Wire) -> C10dCommunicator:
        return C10dCommunicator(wire)
