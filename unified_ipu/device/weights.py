"""Which side holds the newer weights, host or device."""

from __future__ import annotations

from typing import Callable


class WeightCopies:
    """Keeps count of the copies between a model on the host and a device program.

    ``version`` counts copies to the host, so that a second program over the same model can tell
    that the weights changed under it.
    """

    def __init__(self) -> None:
        self.host_is_stale = False
        self.version = 0

    def device_trained(self) -> None:
        """The device changed the weights."""
        self.host_is_stale = True

    def to_host(self, copy: Callable[[], None]) -> None:
        """Copy to the host, whether it is stale or not."""
        # First: the copy itself reads the host's tensors, which would ask for one more copy.
        self.host_is_stale = False
        copy()
        self.version += 1

    def to_device(self, copy: Callable[[], None]) -> None:
        """Copy to the device; what it had learnt since the last copy to the host is lost."""
        self.host_is_stale = False
        copy()
