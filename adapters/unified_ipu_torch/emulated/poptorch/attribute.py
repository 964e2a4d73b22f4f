"""``poptorch.Attribute``: attributes for the operations made inside a block; kept, without effect.

Source: PopTorch 3.4, ``python/options.py``.
"""

from __future__ import annotations

from typing import Dict

from unified_ipu_torch.emulated.poptorch.errors import require
from unified_ipu_torch.emulated.poptorch.log import note_once


class Attribute:
    """A block whose operations carry attributes, such as ``__outline={"layer": "0"}``.

    Args:
        kwargs: A dictionary of strings by the name of each attribute.

    Raises:
        AssertionError: If a value is no dictionary.
    """

    def __init__(self, **kwargs: Dict[str, str]) -> None:
        for name, values in kwargs.items():
            require(isinstance(values, dict), f"{name} must be a dictionary, got {values!r}")
        self._attributes = kwargs

    def __enter__(self) -> None:
        """Nothing is compiled that would carry them."""
        note_once("Attribute", "they guide the compiler of the hardware")

    def __exit__(self, *_: object) -> None:
        """Nothing to undo."""
