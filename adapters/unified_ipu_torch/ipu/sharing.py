"""Programs of several devices over one model: each starts from what the last one came to.

Each program of a device trains a copy, so two of them over the same model, a generator and its
critic say, would not see one another's weights. The model on the host is where they meet.
"""

from __future__ import annotations

import weakref
from typing import Callable, List

import torch

from unified_ipu_torch.evaluation import version_of

_EVERYONE: weakref.WeakSet[Sharing] = weakref.WeakSet()


class Sharing:
    """What one device does about the others.

    Args:
        model: The user's.
        hand_over: Brings the weights of the device to the model, if they are newer there.
    """

    def __init__(self, model: torch.nn.Module, hand_over: Callable[[], None]) -> None:
        self._model = model
        self.hand_over = hand_over
        self._seen = self._versions()
        _EVERYONE.add(self)

    def catch_up(self) -> bool:
        """Let the others hand over; whether the model has changed since it was noted."""
        mine = {id(tensor) for tensor in self.tensors()}
        for other in list(_EVERYONE):
            if other is not self and any(id(tensor) in mine for tensor in other.tensors()):
                other.hand_over()
        return self._versions() != self._seen

    def note(self) -> None:
        """Take the model as it is for what the device has, or for what it is given next."""
        self._seen = self._versions()

    def leave(self) -> None:
        """Have nothing to hand over any more."""
        _EVERYONE.discard(self)

    def tensors(self) -> List[torch.Tensor]:
        """What the model holds now."""
        return [*self._model.parameters(), *self._model.buffers()]

    def _versions(self) -> List[int]:
        return [version_of(tensor) for tensor in self.tensors()]
