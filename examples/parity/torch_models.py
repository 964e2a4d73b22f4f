"""The networks in PyTorch. Their names, and their order of axes, are the canonical ones."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Dict

import torch
from torch import nn

NAMES: Dict[str, Any] = {"mlp": None, "convnet": None}  # the canonical ones


def build(model: str, dtype: str) -> nn.Module:
    """Make ``"mlp"`` or ``"convnet"`` in ``"float32"`` or ``"float64"``."""
    made = mlp() if model == "mlp" else convnet()
    return made.to(getattr(torch, dtype))


def mlp() -> nn.Module:
    """Two hidden layers on flattened digits."""
    return nn.Sequential(
        OrderedDict(
            flatten=nn.Flatten(),
            fc1=nn.Linear(784, 128),
            tanh1=nn.Tanh(),
            fc2=nn.Linear(128, 64),
            tanh2=nn.Tanh(),
            fc3=nn.Linear(64, 10),
        )
    )


def convnet() -> nn.Module:
    """Two convolutions and two dense layers; smooth, so rounding cannot flip a maximum."""
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(1, 8, kernel_size=5, padding=2),
            silu1=nn.SiLU(),
            pool1=nn.AvgPool2d(2),
            conv2=nn.Conv2d(8, 16, kernel_size=5, padding=2),
            silu2=nn.SiLU(),
            pool2=nn.AvgPool2d(2),
            flatten=nn.Flatten(),
            fc1=nn.Linear(16 * 7 * 7, 64),
            silu3=nn.SiLU(),
            fc2=nn.Linear(64, 10),
        )
    )


def loss() -> nn.Module:
    """Cross entropy of the logits, a mean over samples."""
    return nn.CrossEntropyLoss()
