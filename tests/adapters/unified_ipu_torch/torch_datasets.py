"""Map-style datasets of torch that data processes of the tests load."""

from __future__ import annotations

import os
import random
from typing import Any, Dict

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset


class Draws(Dataset):
    """Each sample is what three libraries draw, and who drew it."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Dict[str, Any]:
        return {
            "torch": torch.rand(()),
            "numpy": np.random.random(),
            "random": random.random(),
            "pid": os.getpid(),
            "index": index,
        }


class Count(IterableDataset):
    """An iterable dataset of 12 tensors."""

    def __iter__(self) -> Any:
        return (torch.full((2,), k) for k in range(12))


def count() -> Any:
    return Count()
