"""The networks of one framework; the other frameworks are not imported."""

from __future__ import annotations

import importlib
from typing import Any, Dict, Mapping

import numpy as np

MODELS = ("mlp", "convnet")
FRAMEWORKS = ("torch", "keras", "onnx")


def networks_of(framework: str) -> Any:
    """The module with the networks of ``"torch"``, ``"keras"`` or ``"onnx"``.

    It has ``build(model, dtype)``, ``loss()``, and ``NAMES``, the maps to the canonical names by
    model. Call it before ``session.scope()``, which sets up the frameworks that are imported.
    """
    return importlib.import_module(f"{framework}_models")


def initial_weights(weights: Mapping[str, Any]) -> Dict[str, Any]:
    """Random numbers in the form of ``weights``, the same in every framework."""
    rng = np.random.default_rng(0)
    found = {}
    for name in sorted(weights):
        value = weights[name]
        inputs = float(np.prod(value.shape[1:])) if value.ndim > 1 else 100.0
        found[name] = (rng.normal(size=value.shape) / np.sqrt(inputs)).astype(value.dtype)
    return found
