"""What moves bytes for a ``GeneralCommunicator``: the part that a transport has to bring."""

from __future__ import annotations

from typing import Callable, List, NamedTuple, Optional, Protocol, Sequence, Tuple

import numpy as np


class Waiting(NamedTuple):
    """What a rank does while it waits, for reports of a stall.

    Args:
        operation: In words, with its number.
        number: Of the collective; 0 for a message.
        describe: From a rank of the group to what it is known to have done last.
    """

    operation: str
    number: int
    describe: Callable[[int], str]


class Wire(Protocol):
    """Raw transfers in one group; all ranks call the same with equal lengths, one thread a rank.

    The communicator above makes sure of that: it compares signatures before anything is moved.
    Every wait ends with the error of the group when a rank gives up, dies, leaves or is too late.
    """

    @property
    def rank(self) -> int:
        """Index of this process in the group."""
        ...

    @property
    def members(self) -> Sequence[int]:
        """Ranks of the world, by rank of the group."""
        ...

    def gather(self, data: np.ndarray, waiting: Waiting) -> List[np.ndarray]:
        """Bytes ``[n]`` uint8 of all ranks, by rank; n is the same on all."""
        ...

    def broadcast(self, data: np.ndarray, root: int, waiting: Waiting) -> None:
        """Overwrite ``[n]`` uint8 with the root's."""
        ...

    def adds(self, dtype: np.dtype) -> bool:
        """Whether ``add`` takes that dtype."""
        ...

    def add(self, array: np.ndarray, waiting: Waiting) -> None:
        """Overwrite a flat array with its sum over ranks: the same bits on all, in any order."""
        ...

    def shift(self, data: np.ndarray, into: np.ndarray, waiting: Waiting) -> None:
        """Hand flat data to the next rank in a ring, and take the previous one's.

        Lengths may differ between ranks; ``into`` has that of the previous rank's.
        """
        ...

    def entered(self, rank: int) -> Tuple[int, str]:
        """The collective that a rank of the group was last seen waiting in: its number and words.

        The number is 0 where it has waited in none for long.
        """
        ...

    def look_also(self, look: Callable[[Sequence[int]], None]) -> None:
        """Have ``look`` called with late ranks of the world while a wait is long; it may raise."""
        ...

    def post(self, data: np.ndarray, to: int, waiting: Waiting) -> None:
        """Hand ``[n]`` uint8 to one rank; may return before it took them."""
        ...

    def take(self, source: int, waiting: Waiting) -> np.ndarray:
        """The next bytes that one rank has posted."""
        ...

    def split(self, members: Sequence[int], name: str) -> Wire:
        """The wire of some ranks of this group, made by all of them at once.

        Args:
            members: Ranks of this group.
            name: Unique in this group, the same on all members.
        """
        ...

    def announce(self, phase: Optional[str]) -> None:
        """Say that this rank is in a phase in which none may time out for it, or that it ended."""
        ...

    def abort(self, kind: str, text: str) -> None:
        """Give up for all ranks of the world; the first call of all of them counts.

        Args:
            kind: ``"lost"``, ``"timeout"`` or ``"mismatch"``: which error all ranks raise.
            text: Its message.
        """
        ...

    def check(self) -> None:
        """Raise if this rank knows that anyone has given up; cheap."""
        ...

    def close(self) -> None:
        """Leave; ranks that wait for this one raise ``PeerLostError``."""
        ...
