"""How the device prints a tensor."""

from __future__ import annotations

import math
import textwrap
from dataclasses import dataclass
from typing import Any, List

import torch

_FORMATS = ("auto", "fixed", "scientific", "none")


@dataclass(frozen=True)
class PrintFormat:
    """The settings of ``ipu_print_tensor``.

    Args:
        summarise_threshold: From how many elements on only the edges are shown; 0 shows all.
        edge_items: Elements at each edge.
        max_line_width: Longer lines are broken; 0 for never.
        digits: Of a number; 0 for as many as it has.
        float_format: "auto", "fixed", "scientific" or "none".
        separator: Between elements.
        open_bracket: In front of each axis.
        close_bracket: Behind it.

    Raises:
        KeyError: If there is no such format.
    """

    summarise_threshold: int
    edge_items: int
    max_line_width: int
    digits: int
    float_format: str
    separator: str
    open_bracket: str
    close_bracket: str

    def __post_init__(self) -> None:
        if self.float_format not in _FORMATS:
            raise KeyError(self.float_format)

    def text(self, tensor: torch.Tensor) -> str:
        """The tensor, one row of its last axis a line."""
        values = tensor.detach()
        shortened = bool(self.summarise_threshold) and values.numel() > self.summarise_threshold
        return self._axis(values, depth=0, shortened=shortened)

    def _axis(self, values: torch.Tensor, *, depth: int, shortened: bool) -> str:
        if values.dim() == 0:
            return self._number(values.item())
        items = self._items(values, depth=depth, shortened=shortened)
        if values.dim() > 1:
            inner = "\n".join(f"{' ' * (depth + 1)}{item}" for item in items)
            return f"{self.open_bracket}\n{inner}\n{' ' * depth}{self.close_bracket}"
        line = self.separator.join(items)
        if self.max_line_width and len(line) > self.max_line_width:
            line = self._broken(items, depth)
        return f"{self.open_bracket}{line}{self.close_bracket}"

    def _items(self, values: torch.Tensor, *, depth: int, shortened: bool) -> List[str]:
        edge = self.edge_items
        if not shortened or values.shape[0] <= 2 * edge:
            return [self._axis(v, depth=depth + 1, shortened=shortened) for v in values]
        first = [self._axis(v, depth=depth + 1, shortened=shortened) for v in values[:edge]]
        last = [self._axis(v, depth=depth + 1, shortened=shortened) for v in values[-edge:]]
        return [*first, "...", *last]

    def _broken(self, items: List[str], depth: int) -> str:
        # A separator with a blank would let the text be broken at the blank inside of it.
        text = textwrap.fill(
            f"{self.separator.strip()} ".join(items), self.max_line_width, break_long_words=False
        )
        return text.replace("\n", "\n" + " " * (depth + 2))

    def _number(self, value: Any) -> str:
        if isinstance(value, (bool, int)) or not math.isfinite(value):
            return str(int(value)) if isinstance(value, (bool, int)) else str(value)
        if self.float_format == "none" or not self.digits:
            return repr(value)
        if self.float_format == "scientific":
            return f"{value:.{max(self.digits - 1, 0)}e}"
        before = len(str(abs(int(value))))
        return f"{value:.{max(self.digits - before, 0)}f}"
