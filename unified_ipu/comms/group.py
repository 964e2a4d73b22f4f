"""One rank's place in a group: entering, meeting, leaving, and the staging areas in turn."""

from __future__ import annotations

from typing import List, Sequence

import numpy as np

from unified_ipu.comms.lanes import NUM_STAGES, Lanes
from unified_ipu.comms.segment import Segment
from unified_ipu.comms.signature import Signature
from unified_ipu.comms.watch import Watch
from unified_ipu.errors import CollectiveError


class Group:
    """The barriers of a communicator, kept in step over errors.

    A collective is ``enter``, any number of ``meet``, ``finish``. One that all ranks refuse leaves
    them in step; one that is interrupted does not, so the next ``enter`` is refused.
    """

    def __init__(self, segment: Segment, offset: int, watch: Watch, members: Sequence[int]) -> None:
        self.watch = watch
        self.members = tuple(members)
        self.rank = self.members.index(watch.board.rank)
        self.size = len(self.members)
        self.lanes = Lanes(segment, offset, watch, self.rank, self.members)
        self.stage_bytes = self.lanes.stage_bytes
        self._inside = ""
        self._closed = False
        self._uses = 0

    def enter(self, signature: Signature, number: int = 0) -> List[int]:
        """Meet at the beginning of a collective and compare signatures.

        Returns:
            The ``number`` of every rank.

        Raises:
            CollectiveError: If ranks disagree, one of them cannot do it, or one is lost.
        """
        if self._inside or self._closed:
            self._refuse(signature)
        if self.watch.board.aborted:
            raise self.watch.board.error()
        self._inside = signature.text
        try:
            self.lanes.enter(signature, number)
        except CollectiveError:
            # All ranks raise here, so all count from 0 again and stay in step.
            self._inside = ""
            self._uses = 0
            raise
        return self.lanes.numbers()

    def meet(self) -> None:
        """Wait for all ranks inside a collective."""
        self.lanes.meet()

    def finish(self) -> None:
        """End the collective."""
        self._inside = ""

    def next_stages(self) -> List[np.ndarray]:
        """Every rank's staging area for the next piece, ``[stage_bytes]`` uint8.

        ``NUM_STAGES`` take turns. Whoever writes one again must have met all others after they
        read it: with three, a piece may be loaded while the one before is still taken out.
        """
        self._uses = (self._uses + 1) % NUM_STAGES
        return [stages[self._uses] for stages in self.lanes.stages]

    def close(self) -> None:
        """Say that this rank will not come again."""
        if not self._closed:
            self._closed = True
            self.lanes.leave()

    def _refuse(self, signature: Signature) -> None:
        self.watch.check()
        if self._closed:
            raise CollectiveError(f"{signature.text}: this communicator is closed")
        raise CollectiveError(
            f"{signature.text}: {self._inside} was interrupted before, so the ranks are out of "
            "step; end the job, or abort() so that the others end too"
        )
