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

    def sum(self, array: Any, name: str = "") -> Any:
        """The sum of a numpy array over all processes; every process calls it in the same order.

        Args:
            array: Of the same shape and type everywhere.
            name: What it is; an error on all processes where they differ.
        """
        ...


class Alone:
    """The fabric of one process."""

    rank = 0
    size = 1

    def sum(self, array: Any, name: str = "") -> Any:
        """The array itself."""
        del name
        return array


class Naming:
    """A fabric for one tensor, whose sums say which it is.

    Args:
        fabric: The links.
        name: Of the tensor.
    """

    def __init__(self, fabric: Fabric, name: str) -> None:
        self.rank, self.size = fabric.rank, fabric.size
        self._fabric, self._name = fabric, name

    def sum(self, array: Any, name: str = "") -> Any:
        """The sum, under the name of the tensor."""
        return self._fabric.sum(array, name or self._name)


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
