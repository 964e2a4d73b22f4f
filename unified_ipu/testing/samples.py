"""Small fixed models and data that suites train on."""

from __future__ import annotations

from typing import Any, Dict, List, Sequence, Tuple

import numpy as np


def column(*values: float) -> Any:
    """One feature a row: ``[rows, 1]`` float64."""
    return np.array(values, np.float64).reshape(-1, 1)


def ones(rows: int, columns: int = 1) -> Any:
    """``[rows, columns]`` float64 of ones."""
    return np.ones((rows, columns))


def mlp_values(sizes: Sequence[int] = (3, 4, 2)) -> Tuple[List[Any], List[Any]]:
    """Weights ``[in, out]`` and biases ``[out]`` of a small MLP, float64."""
    rng = np.random.default_rng(7)
    pairs = list(zip(sizes, sizes[1:]))
    weights = [rng.uniform(-1.0, 1.0, pair) / np.sqrt(pair[0]) for pair in pairs]
    biases = [rng.uniform(-0.5, 0.5, pair[1]) for pair in pairs]
    return weights, biases


def canonical_mlp(sizes: Sequence[int] = (3, 4, 2)) -> Dict[str, Any]:
    """The same values by canonical name."""
    weights, biases = mlp_values(sizes)
    values = {f"weight.{layer}": weight for layer, weight in enumerate(weights)}
    values.update({f"bias.{layer}": bias for layer, bias in enumerate(biases)})
    return values


def regression(rows: int) -> Tuple[Any, Any]:
    """Inputs ``[rows, 3]`` and targets ``[rows, 2]``, float64."""
    rng = np.random.default_rng(11)
    x = rng.normal(size=(rows, 3))
    return x, np.tanh(x @ rng.normal(size=(3, 2))) + 0.1 * rng.normal(size=(rows, 2))


IGNORED = -7
CLASS_WEIGHTS = (1.0, 2.0, 0.5)  # exact in binary, so that W is exact


def classification(rows: int) -> Tuple[Any, Any]:
    """Inputs ``[rows, 3]`` float64 and classes ``[rows]`` int64, every fifth one ignored."""
    rng = np.random.default_rng(13)
    x = rng.normal(size=(rows, 3))
    classes = rng.integers(0, len(CLASS_WEIGHTS), rows)
    classes[::5] = IGNORED
    return x, classes
