"""Buffers that differ between ranks: a checkpoint keeps each one's, so that saving changes none."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Sequence

import numpy as np

from unified_ipu.adapter import Executor, TensorSpec
from unified_ipu.comms import Communicator
from unified_ipu.session.agreement import synchronised_buffers

Tensors = Dict[str, Any]


class Buffers:
    """The buffers of all ranks at one moment; making one is collective and changes nothing.

    Args:
        executor: Of the program.
        communicator: Of all replicas.
    """

    def __init__(self, executor: Executor, communicator: Communicator) -> None:
        self.together: Tensors = {}
        """What they are as one model, by each one's rule; empty with one rank."""
        self.of_ranks: List[Tensors] = []
        """Those that differ between ranks, by rank; empty if none does."""
        self.trained: List[bool] = []
        """Which ranks ever had samples."""
        specs = executor.tensors()
        if communicator.size == 1 or not buffer_names(specs):
            return
        self.together = synchronised_buffers(executor, communicator, specs)
        for spec in specs:
            if spec.name in self.together and spec.dtype == "bfloat16":
                self.together[spec.name] = _rounded(self.together[spec.name])
        self.trained = communicator.all_gather_value(bool(getattr(executor, "has_trained", True)))
        own = executor.read(buffer_names(specs))
        everyone = {name: _of_all(communicator, own[name], name) for name in own}
        differing = [name for name, values in everyone.items() if _differ(values)]
        if differing:
            self.of_ranks = [
                {name: everyone[name][rank] for name in differing}
                for rank in range(communicator.size)
            ]


def buffer_names(specs: Sequence[TensorSpec]) -> List[str]:
    """Names of all buffers, tied ones once."""
    return [spec.name for spec in specs if spec.role == "buffer" and spec.tied_to is None]


def load_own(executor: Executor, own: Mapping[str, Any], *, has_trained: bool) -> None:
    """Give this rank its own buffers back."""
    executor.write(own)
    if hasattr(executor, "has_trained"):
        executor.has_trained = has_trained


def _of_all(communicator: Communicator, value: np.ndarray, name: str) -> List[np.ndarray]:
    flat = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
    parts = communicator.all_gather(flat, name=name)
    return [np.array(part).view(value.dtype).reshape(value.shape) for part in parts]


def _differ(values: Sequence[np.ndarray]) -> bool:
    return any(value.tobytes() != values[0].tobytes() for value in values)


def _rounded(values: np.ndarray) -> np.ndarray:
    """Round float32 to the nearest bfloat16, ties to even; NaN stays NaN."""
    words = np.ascontiguousarray(values, np.float32).view(np.uint32).astype(np.uint64)
    nearest = (words + 0x7FFF + ((words >> 16) & 1)) & 0xFFFF0000
    nearest = np.where(np.isnan(values), 0x7FC00000, nearest)
    found: np.ndarray = nearest.astype(np.uint32).view(np.float32).reshape(values.shape)
    return found
