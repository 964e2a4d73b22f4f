"""A small convolutional network for 28x28 digits. Knows nothing of how it is trained."""

from __future__ import annotations

import torch
from torch import nn


class Net(nn.Module):
    """Two convolutions and two dense layers, with dropout before each of the latter.

    Smooth throughout: rounding cannot flip a maximum, so runs on other numbers of replicas stay
    close for long.
    """

    def __init__(self, *, dropout: float = 0.25) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, kernel_size=5, padding=2),
            nn.SiLU(),
            nn.AvgPool2d(2),
            nn.Conv2d(16, 32, kernel_size=5, padding=2),
            nn.SiLU(),
            nn.AvgPool2d(2),
            nn.Flatten(),
        )
        self.classifier = nn.Sequential(
            nn.Dropout(dropout),
            nn.Linear(32 * 7 * 7, 128),
            nn.SiLU(),
            nn.Dropout(dropout),
            nn.Linear(128, 10),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the score of each class, ``[n, 10]``, for images ``[n, 1, 28, 28]``."""
        scores: torch.Tensor = self.classifier(self.features(images))
        return scores
