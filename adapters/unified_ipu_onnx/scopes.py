"""Values of a graph while it is compiled, and the scopes they are found in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, Optional

import torch


@dataclass(eq=False)
class Value:
    """A named value of a graph.

    Attributes:
        place: Where it lies when the graph runs.
        constant: What it is, if that is known before.
        trains: Whether it depends on a weight.
        state: Whether it is a running statistic.
        on_host: Whether it is a numpy array, as shapes and what is computed from them are.
    """

    place: int
    constant: Optional[torch.Tensor] = None
    trains: bool = False
    state: bool = False
    on_host: bool = False


class Scope:
    """Values by name; those of the graphs around are visible.

    Args:
        outer: Scope of the graph around, if any.
    """

    def __init__(self, outer: Optional[Scope] = None) -> None:
        self.values: Dict[str, Value] = {}
        self.outer = outer

    def find(self, name: str) -> Optional[Value]:
        """Value of that name, or None."""
        scope: Optional[Scope] = self
        while scope is not None:
            if name in scope.values:
                return scope.values[name]
            scope = scope.outer
        return None
