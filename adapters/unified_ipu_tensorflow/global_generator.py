"""What ``keras.random`` draws from where it is given no generator, while a model runs here."""

from __future__ import annotations

from typing import Any, Optional

import tensorflow as tf

_NAME = "global_seed_generator"


class StandIn:
    """Takes the place of Keras 3's global ``SeedGenerator``, whose state stays as it is.

    It has no state of its own either: each draw in a forward pass gets the seed of the pass and the
    number of the draw. Whether a model draws from it shows when it is traced.

    Args:
        is_used: Whether it must have a seed from the start.
    """

    def __init__(self, *, is_used: bool) -> None:
        self.is_used = is_used
        """Whether a model drew from it."""
        self._seed: Optional[Any] = None
        self._draws = 0
        self._replaced: Optional[Any] = None
        self._is_installed = False

    def install(self, seed: Optional[Any]) -> None:
        """Stand in from now on, with a seed (int64 ``[2]``), or None to see if one is needed."""
        self._seed, self._draws = seed, 0
        if not self._is_installed:
            state: Any = _state_of_keras()
            self._replaced = state.get_global_attribute(_NAME)
            state.set_global_attribute(_NAME, self)
            self._is_installed = True

    def remove(self) -> None:
        """Let Keras have its own generator back."""
        self._seed = None
        if self._is_installed:
            state: Any = _state_of_keras()
            state.set_global_attribute(_NAME, self._replaced)
            self._replaced = None
            self._is_installed = False

    def next(self, ordered: bool = True) -> Any:
        """Seed of the next draw, as ``SeedGenerator.next`` returns it."""
        del ordered
        self.is_used = True
        self._draws += 1
        seed = tf.zeros([2], tf.int64) if self._seed is None else tf.cast(self._seed, tf.int64)
        return seed + tf.constant([0, self._draws], tf.int64)


def _state_of_keras() -> Any:
    from keras.src.backend.common import global_state

    return global_state
