"""Values as a log can hold them."""

from __future__ import annotations

import math
from typing import Any, Mapping


def finite_or_none(value: Any) -> Any:
    """Replace floats that are not finite by None, inside mappings too: JSON has no nan."""
    if isinstance(value, Mapping):
        return {name: finite_or_none(child) for name, child in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
