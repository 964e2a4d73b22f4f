"""The generators that samples draw from, seeded for each sample; only if they draw at all.

Seeding costs some 30 us a sample, most samples draw nothing. So the first micro-batches are made
without it, and one that turns out to have drawn is made again, seeded, as are all from then on.
"""

from __future__ import annotations

import random
import sys
from typing import Any, List, Optional, Tuple

import numpy as np

from unified_ipu.data.dataset_source import Collate, DatasetSource
from unified_ipu.data.mixing import sample_seeds
from unified_ipu.data.source import Tree


class SeededFetching:
    """Fetches samples so that what they draw depends on (seed, epoch, sample) only.

    That is what they draw from Python's ``random``, ``numpy.random`` and torch, if it is imported;
    generators of their own are their own business.

    Args:
        samples: The dataset.
        collate: Turns a list of samples into a batch; None stacks their leaves.
        seed: The plan's.
    """

    def __init__(self, samples: Any, collate: Optional[Collate], *, seed: int) -> None:
        self._plain = DatasetSource(samples, collate)
        self._seeded = _SeededDataset(samples)
        self._with_seeds = DatasetSource(self._seeded, collate)
        self._seed = seed
        self._draws = False

    def fetch(self, ids: np.ndarray, epoch: int) -> Tree:
        """Return the samples ``ids`` ``[n]`` of an epoch as one tree of new arrays."""
        if not self._draws:
            before = _states()
            tree = self._plain.fetch(ids)
            self._draws = _states() != before
            if not self._draws:
                return tree
        self._seeded.words = dict(
            zip(ids.tolist(), sample_seeds(self._seed, epoch, ids).view(np.uint32))
        )
        return self._with_seeds.fetch(ids)


class _SeededDataset:
    def __init__(self, samples: Any) -> None:
        self._samples = samples
        self.words: Any = {}

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> Any:
        _seed(self.words[index])
        return self._samples[index]


def _seed(words: np.ndarray) -> None:
    """Put all generators where four 32-bit ``words`` say."""
    number = int.from_bytes(words.tobytes()[:8], "little")
    random.seed(number)
    np.random.seed(words)
    torch: Any = sys.modules.get("torch")  # the user's; nothing is imported here
    if torch is not None:
        torch.default_generator.manual_seed(number)


def _states() -> Tuple[Any, ...]:
    """States of all generators, to be compared."""
    legacy: Any = np.random.get_state()
    states: List[Any] = [random.getstate(), legacy[1].tobytes(), legacy[2:]]
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        states.append(torch.default_generator.get_state().numpy().tobytes())
    return tuple(states)
