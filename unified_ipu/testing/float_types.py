"""The float type that scenarios run in: float64, or what a device computes in; and its rounding.

Every tolerance of a device in float32 is in this module; those of float64 stand in the tests.
"""

from __future__ import annotations

import contextlib
from typing import Any, Callable, ContextManager, Optional

import numpy as np
import pytest

from unified_ipu.plan import runs_whole_calls

MODELS = ("linear", "mlp", "branches", "dropout_probe", "normalised", "tied", "cross_entropy")
"""Methods of a subject that make something with floats in it."""

FLOAT32_LITERAL = 2e-6
"""Of a number that few operations lead to: 16 roundings."""
FLOAT32_FIFTY_UPDATES = 1e-4
"""Of a number after at most 50 updates (L5.3)."""


def float_type(subject: Any, target: str) -> str:
    """In which type models compute and data are: the device's on devices, else float64.

    Args:
        subject: Its optional attribute ``device_dtype`` is the type of its device.
        target: Of the plan.
    """
    if not runs_whole_calls(target):
        return "float64"
    return str(getattr(subject, "device_dtype", "float64"))


def float_type_of(ranks: Any) -> str:
    """The float type that ranks compute in; an author's own say it by an attribute ``dtype``."""
    return str(getattr(ranks, "dtype", "float64"))


def in_float_type(tree: Any, dtype: str) -> Any:
    """A tree whose float64 arrays are of that type; all else is as it was."""
    if dtype == "float64":
        return tree
    if isinstance(tree, dict):
        return {key: in_float_type(child, dtype) for key, child in tree.items()}
    if isinstance(tree, (tuple, list)):
        return type(tree)(in_float_type(child, dtype) for child in tree)
    if isinstance(tree, np.ndarray) and tree.dtype == np.float64:
        return tree.astype(dtype)
    return tree


class DeviceSubject:
    """A subject as scenarios use it on a device: what it makes fits the device.

    Models are made as users make them there, in the scope of a session: the one that the rank has
    opened last. They have the device's float type, unless they are asked for one.

    Args:
        subject: Of the adapter.
        dtype: Of the models.
    """

    def __init__(self, subject: Any, dtype: str) -> None:
        self._subject = subject
        self._own = {} if dtype == "float64" else {"dtype": dtype}
        self._scope: Callable[[], ContextManager[None]] = contextlib.nullcontext

    def make_in(self, session: Any) -> None:
        """Make models in the scope of that session from now on."""
        self._scope = session.scope

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._subject, name)
        if name not in MODELS:
            return found

        def made(*args: Any, **kwargs: Any) -> Any:
            with self._scope():
                return found(*args, **{**self._own, **kwargs})

        return made


def near(
    ranks: Any,
    expected: Any,
    *,
    rel: float,
    float32: float = FLOAT32_LITERAL,
    size: Optional[float] = None,
) -> Any:
    """``pytest.approx`` with the tolerance of the float type that ranks compute in.

    Args:
        ranks: Of the test.
        expected: A number, or numbers.
        rel: In float64, relative.
        float32: The same in float32.
        size: Of what was added up to get there, where that is more than what is left.
    """
    if float_type_of(ranks) == "float64":
        return pytest.approx(expected, rel=rel)
    return pytest.approx(expected, rel=float32, abs=None if size is None else float32 * size)
