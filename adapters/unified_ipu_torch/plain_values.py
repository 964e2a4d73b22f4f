"""Python values of optimizers and schedulers as JSON values, and back to the same types."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import torch

from unified_ipu.errors import ConfigError

_TAG = "__python__"  # marks what JSON has no form for


def to_plain(value: Any, what: str) -> Any:
    """Turn a value into JSON values that ``from_plain`` turns back.

    Args:
        value: Numbers, text, None, or tuples, lists, dicts and Counters of them.
        what: It belongs to, for the message.

    Raises:
        ConfigError: If part of it is something else.
    """
    if isinstance(value, (bool, int, str)) or value is None:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {_TAG: "float", "value": repr(value)}
    if isinstance(value, np.generic):
        return to_plain(value.item(), what)
    if isinstance(value, torch.Tensor) and value.ndim == 0:
        return to_plain(value.item(), what)
    if isinstance(value, (tuple, list)) and type(value) in {tuple, list}:
        items = [to_plain(item, what) for item in value]
        return items if isinstance(value, list) else {_TAG: "tuple", "value": items}
    if isinstance(value, dict):
        return _plain_dict(value, what)
    raise ConfigError(
        f"{what} holds a {type(value).__qualname__}, which a checkpoint cannot: it holds tensors a "
        "parameter, numbers, text, and lists, tuples and dicts of these"
    )


def _plain_dict(value: Any, what: str) -> Any:
    is_counter = isinstance(value, Counter)
    if not is_counter and _TAG not in value and all(isinstance(key, str) for key in value):
        return {key: to_plain(item, what) for key, item in value.items()}
    pairs = [[to_plain(key, what), to_plain(item, what)] for key, item in value.items()]
    return {_TAG: "counter" if is_counter else "dict", "value": pairs}


def from_plain(value: Any) -> Any:
    """Turn JSON values back into what ``to_plain`` was given."""
    if isinstance(value, list):
        return [from_plain(item) for item in value]
    if not isinstance(value, dict):
        return value
    kind = value.get(_TAG)
    if kind is None:
        return {key: from_plain(item) for key, item in value.items()}
    inner = value["value"]
    if kind == "float":
        return float(inner)
    if kind == "tuple":
        return tuple(from_plain(item) for item in inner)
    pairs = [(from_plain(key), from_plain(item)) for key, item in inner]
    return Counter(dict(pairs)) if kind == "counter" else dict(pairs)
