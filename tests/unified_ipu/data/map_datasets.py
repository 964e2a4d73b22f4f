"""Map-style datasets that data processes of the tests load."""

from __future__ import annotations

import os
import random
import sys

import numpy as np


class Squares:
    """Each sample says what it is, who made it and what was drawn for it."""

    def __init__(self, size=40, bad=-1):
        self.size = size
        self.bad = bad

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        if index == self.bad:
            raise ValueError(f"no square for {index}")
        return {
            "square": np.full(3, index * index),
            "pid": os.getpid(),
            "drawn": np.array([random.random(), np.random.random()]),
        }


class Counted:
    """Draws for samples from 10 on, and counts."""

    def __init__(self):
        self.calls = []

    def __len__(self):
        return 20

    def __getitem__(self, index):
        self.calls.append(index)
        return random.random() if index >= 10 else 0.0


class NeedsLock:
    """Holds what cannot be pickled."""

    def __init__(self):
        self.file = sys.stdout

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return index


def squares():
    return Squares(40)


def collate(samples):
    return np.array([sample["square"][0] for sample in samples]), np.array(
        [len(samples)] * len(samples)
    )
