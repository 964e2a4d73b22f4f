"""The links between the devices of several processes.

Hardware has them; an emulated device must be given them. Whoever starts the processes connects a
fabric, the emulated SDK finds it here, and never learns who it was.
"""

from __future__ import annotations

import threading
from typing import Any, Optional, Protocol

from unified_ipu.errors import ConfigError


class Fabric(Protocol):
    """Processes whose devices reduce gradients together."""

    @property
    def rank(self) -> int:
        """Of this process."""
        ...

    @property
    def size(self) -> int:
        """Number of processes."""
        ...

    def sum(self, array: Any) -> Any:
        """The sum of a numpy array over all processes; every process calls it in the same order."""
        ...


class Alone:
    """The fabric of one process."""

    rank = 0
    size = 1

    def sum(self, array: Any) -> Any:
        """The array itself."""
        return array


class _Connected(threading.local):
    """The links of a thread: ranks may be threads, each with devices of its own."""

    fabric: Optional[Fabric] = None


_connected = _Connected()


def connect_fabric(fabric: Optional[Fabric]) -> None:
    """Give the emulated devices of this thread their links, or take them away with None."""
    _connected.fabric = fabric


def fabric_of(processes: int, rank: int = 0) -> Fabric:
    """The links of a device that was configured for so many processes.

    Args:
        processes: By the native settings.
        rank: Of this process, by the native settings.

    Raises:
        ConfigError: If there are no links, or other ones than the settings say.
    """
    if processes == 1:
        return Alone()
    found = _connected.fabric
    if found is None:
        raise ConfigError(
            f"the native settings say process {rank} of {processes}, but nothing links the "
            "emulated devices of these processes; start them through unified_ipu, or run one"
        )
    if (found.rank, found.size) != (rank, processes):
        raise ConfigError(
            f"the native settings say process {rank} of {processes}, the links say "
            f"{found.rank} of {found.size}; make them agree"
        )
    return found
