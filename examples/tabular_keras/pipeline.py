"""The PyTorch side: one measurement at a time. Only the data process imports this."""

from __future__ import annotations

from typing import Tuple

import numpy as np
import torch
from torch.utils.data import Dataset

from tumours import load_tumours

NOISE = 0.3  # of the standard deviation of each value


class NoisyTumours(Dataset[Tuple[torch.Tensor, torch.Tensor]]):
    """Measurements with a little noise, which is another in each epoch.

    Before each sample torch's generator is seeded from (seed, epoch, index), so a run can be
    repeated and resumed whatever the number of data processes.
    """

    def __init__(self, values: np.ndarray, labels: np.ndarray) -> None:
        self.values, self.labels = torch.from_numpy(values), torch.from_numpy(labels)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Tuple[torch.Tensor, torch.Tensor]:
        values = self.values[index]
        return values + NOISE * torch.randn_like(values), self.labels[index]


def train() -> NoisyTumours:
    """Return the dataset; called once, in the data process."""
    return NoisyTumours(*load_tumours()[0])
