"""Operators by domain, name and the operator set version since which they hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple

from unified_ipu_onnx.nodes import Node

Function = Callable[..., Any]


@dataclass(frozen=True)
class Operator:
    """How to compute an operator.

    Attributes:
        name: As ONNX spells it.
        since: First operator set version with this meaning; the newest not above the model's is
            taken.
        build: Called once for a node; returns the function that is called with the node's inputs
            in order, absent ones None (trailing ones left out). The function returns one tensor
            if the node lists one output, else a tuple of at least as many values as it lists.
        ints: Positions of inputs that the function wants as flat lists of Python numbers: shapes,
            axes, counts. They are constants, or read back from the device. A single number comes
            as a list of one.
        domain: Of the operator set.
        draws: Whether it draws random numbers when the module is training.
        couples: Whether the result for a row depends on the other rows when the module is
            training, and running statistics are moved.
    """

    name: str
    since: int
    build: Callable[[Node], Function]
    ints: Tuple[int, ...] = ()
    domain: str = ""
    draws: bool = False
    couples: bool = False


class Registry:
    """Operators to choose from.

    Args:
        operators: In any order.

    Raises:
        ValueError: If two have the same domain, name and version.
    """

    def __init__(self, operators: Iterable[Operator]) -> None:
        self._by_name: Dict[Tuple[str, str], List[Operator]] = {}
        for operator in operators:
            versions = self._by_name.setdefault((operator.domain, operator.name), [])
            if any(other.since == operator.since for other in versions):
                raise ValueError(f"operator {operator.name} since {operator.since} is given twice")
            versions.append(operator)
            versions.sort(key=lambda version: version.since)

    def find(self, domain: str, name: str, opset: int) -> Optional[Operator]:
        """Newest version of an operator that a model of that operator set may mean, or None."""
        found = None
        for operator in self._by_name.get((domain, name), ()):
            if operator.since <= opset:
                found = operator
        return found

    def names(self) -> Tuple[Tuple[str, str], ...]:
        """Domain and name of every operator, sorted."""
        return tuple(sorted(self._by_name))
