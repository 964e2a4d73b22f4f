"""What an operator is told about the node it is built for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, List, Mapping, Optional, Sequence, Tuple

import torch

from unified_ipu.errors import CapabilityError, ConfigError
from unified_ipu_onnx.errors import NAME


class Mode:
    """State of the running module that operators read when they run.

    One object a module and its copies: operators hold it, and ``forward`` sets it anew.

    Attributes:
        training: Whether batch statistics and dropout masks are drawn.
        device: Where tensors made from nothing belong.
    """

    __slots__ = ("device", "training")

    def __init__(self) -> None:
        self.training = False
        self.device = torch.device("cpu")

    def __deepcopy__(self, memo: Mapping[int, Any]) -> Mode:
        return self


@dataclass(frozen=True)
class Node:
    """One node of a graph, its attributes parsed.

    Attributes:
        op_type: Operator, as ``Gemm``.
        domain: ``""`` for the default one.
        label: The node's name, or its first output; inside a function with the caller's in front.
        opset: Version of the domain's operator set that it is read by.
        attributes: Values by name; strings are ``str``, tensors torch tensors.
        inputs: Whether each input is there; trailing absent ones are cut off.
        outputs: Whether each output is wanted, as many as the node lists.
        constants: Value of each input that is known now, else None.
        states: Whether each input is a running statistic, which the operator updates in place.
        mode: To be read when the operator runs.
    """

    op_type: str
    domain: str
    label: str
    opset: int
    attributes: Mapping[str, Any]
    inputs: Tuple[bool, ...]
    outputs: Tuple[bool, ...]
    constants: Tuple[Optional[torch.Tensor], ...]
    states: Tuple[bool, ...]
    mode: Mode = field(default_factory=Mode)

    def has_input(self, index: int) -> bool:
        """Whether that input is given."""
        return index < len(self.inputs) and self.inputs[index]

    def constant(self, index: int) -> Optional[torch.Tensor]:
        """Value of that input, if it is there and known before the graph runs."""
        return self.constants[index] if index < len(self.constants) else None

    def is_state(self, index: int) -> bool:
        """Whether that input is a running statistic of the module."""
        return index < len(self.states) and self.states[index]

    def has(self, name: str) -> bool:
        """Whether the attribute is set."""
        return name in self.attributes

    def integer(self, name: str, default: int = 0) -> int:
        """Return an integer attribute."""
        return int(self.attributes.get(name, default))

    def number(self, name: str, default: float = 0.0) -> float:
        """Return a float attribute."""
        return float(self.attributes.get(name, default))

    def text(self, name: str, default: str = "") -> str:
        """Return a string attribute."""
        return str(self.attributes.get(name, default))

    def integers(self, name: str, default: Sequence[int] = ()) -> List[int]:
        """Return an attribute that is a list of integers."""
        return [int(value) for value in self.attributes.get(name, default)]

    def numbers(self, name: str, default: Sequence[float] = ()) -> List[float]:
        """Return an attribute that is a list of floats."""
        return [float(value) for value in self.attributes.get(name, default)]

    def refuse(self, why: str) -> ConfigError:
        """Error for the caller to raise: the node says or is given something impossible."""
        return ConfigError(
            f"node {self.label!r} ({self.op_type}, operator set {self.opset}): {why}"
        )

    @staticmethod
    def lacks(what: str) -> CapabilityError:
        """Error for ``build`` to raise: this is not supported; it is listed with the node."""
        return CapabilityError(NAME, what)
