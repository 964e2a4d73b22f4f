"""The random numbers of a device: a stream of its own beside the host's.

torch has one generator a process; the device's state is put into it for as long as a micro-batch
runs. A lock keeps programs of other threads out meanwhile.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Iterator, List

import torch

_lock = threading.RLock()


class DeviceRandom:
    """A stream of random numbers.

    Args:
        seed: Where it starts.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._state = torch.Generator().manual_seed(seed).get_state()

    @property
    def state(self) -> List[int]:
        """The seed, then the state of the generator byte by byte."""
        return [self.seed, *self._state.tolist()]

    @state.setter
    def state(self, state: List[int]) -> None:
        self.seed = state[0]
        if len(state) > 1:
            self._state = torch.tensor(state[1:], dtype=torch.uint8)
        else:
            self._state = torch.Generator().manual_seed(state[0]).get_state()

    @contextlib.contextmanager
    def use(self, *, keep: bool = True) -> Iterator[None]:
        """Draw from this stream whatever torch draws inside.

        Args:
            keep: Whether the stream goes on from where the code inside leaves it.
        """
        with _lock:
            host = torch.get_rng_state()
            torch.set_rng_state(self._state)
            try:
                yield
            finally:
                if keep:
                    self._state = torch.get_rng_state()
                torch.set_rng_state(host)
