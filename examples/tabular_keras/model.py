"""A small network for rows of a table. Knows nothing of how it is trained."""

from __future__ import annotations

from typing import Any

import keras


def network(num_values: int, *, dropout: float = 0.2) -> Any:
    """Two hidden layers with batch normalisation; returns the score of each of two classes."""
    return keras.Sequential(
        [
            keras.Input((num_values,)),
            keras.layers.Dense(64, activation="silu"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(dropout),
            keras.layers.Dense(32, activation="silu"),
            keras.layers.Dense(2),
        ]
    )
