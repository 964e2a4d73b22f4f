"""Small torch models that the conformance kit trains; imports torch."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence

import numpy as np
import torch

DTYPES = {"float32": torch.float32, "float64": torch.float64}


def linear(weight: Any, bias: Optional[Any], dtype: str) -> torch.nn.Linear:
    """A layer with these values; ``weight`` is ``[in, out]``."""
    weight = np.asarray(weight)
    inputs, outputs = weight.shape
    layer = torch.nn.Linear(inputs, outputs, bias=bias is not None, dtype=DTYPES[dtype])
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(weight.T.copy()))
        if bias is not None:
            layer.bias.copy_(torch.tensor(np.asarray(bias)))
    return layer


def mlp(weights: Sequence[Any], biases: Sequence[Any], dtype: str) -> torch.nn.Sequential:
    """Linear layers with tanh between."""
    layers: List[torch.nn.Module] = []
    for weight, bias in zip(weights, biases):
        layers += [linear(weight, bias, dtype), torch.nn.Tanh()]
    return torch.nn.Sequential(*layers[:-1])


def parameter(value: float, dtype: str) -> torch.nn.Parameter:
    """One number, ``[1]``."""
    return torch.nn.Parameter(torch.tensor([value], dtype=DTYPES[dtype]))


class Branches(torch.nn.Module):
    """Uses a or b, always ``frozen``, and never c."""

    def __init__(self, values: Dict[str, float], dtype: str) -> None:
        super().__init__()
        for name, value in values.items():
            self.register_parameter(name, parameter(value, dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``value * (a or b) + frozen``."""
        chosen = self.get_parameter("b" if bool(x[0, 1]) else "a")
        return x[:, :1] * chosen + self.get_parameter("frozen")


class Scale(torch.nn.Module):
    """Multiplies with a parameter that it is given."""

    def __init__(self, weight: torch.nn.Parameter) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x * weight``."""
        return x * self.weight


class Tied(torch.nn.Module):
    """Two layers that share one parameter."""

    def __init__(self, value: float, dtype: str) -> None:
        super().__init__()
        self.first = Scale(parameter(value, dtype))
        self.second = Scale(self.first.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x * weight * weight``."""
        scaled: torch.Tensor = self.second(self.first(x))
        return scaled
