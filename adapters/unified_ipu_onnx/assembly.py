"""Places and steps as they are put together, and the forms in which a value can be read."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Hashable, Iterator, List, Optional, Tuple

import numpy as np
import torch

from unified_ipu_onnx.nodes import Mode
from unified_ipu_onnx.program import ABSENT, UNWANTED, Step
from unified_ipu_onnx.scopes import Value

TENSOR = "tensor"  # a torch tensor on the device
ARRAY = "array"  # a numpy array on the host: shapes and arithmetic with them
NUMBERS = "numbers"  # a flat list of Python numbers


@dataclass
class _Open:
    """A graph that steps are being added to."""

    steps: List[Step] = field(default_factory=list)
    converted: Dict[Tuple[int, str], int] = field(default_factory=dict)
    results: Dict[Hashable, List[Value]] = field(default_factory=dict)


class Assembly:
    """Hands out places and collects steps, those of inner graphs in lists of their own.

    Args:
        mode: Says where tensors belong that are made of host arrays.

    Attributes:
        presets: What lies at a place before the graph runs, tensors excepted.
        constants: Tensors that are known, by place.
        num_places: Handed out so far.
    """

    def __init__(self, mode: Mode) -> None:
        self.presets: Dict[int, Any] = {ABSENT: None, UNWANTED: None}
        self.constants: Dict[int, torch.Tensor] = {}
        self.num_places = 2
        self._mode = mode
        self._preset_places: Dict[Hashable, int] = {}
        # One list of steps for each open graph, with tables of what it converted and worked out:
        # what a branch did is not there when the branch is not taken.
        self._open: List[_Open] = [_Open()]

    @property
    def steps(self) -> List[Step]:
        """Steps of the innermost open graph."""
        return self._open[-1].steps

    def value(self, **facts: Any) -> Value:
        """Return a value at a new place."""
        self.num_places += 1
        return Value(self.num_places - 1, **facts)

    def constant(self, tensor: torch.Tensor) -> Value:
        """Return a value that is known."""
        value = self.value(constant=tensor)
        self.constants[value.place] = tensor
        return value

    @contextmanager
    def inner(self) -> Iterator[List[Step]]:
        """Collect the steps of an inner graph apart."""
        self._open.append(_Open())
        try:
            yield self.steps
        finally:
            self._open.pop()

    def read(self, value: Optional[Value], form: str = TENSOR) -> int:
        """Place where a value lies in that form; adds the step that converts it if need be."""
        if value is None:
            return ABSENT
        if form == (ARRAY if value.on_host else TENSOR):
            return value.place
        if value.constant is not None:
            return self._preset(value.constant, form)
        key = (value.place, form)
        for graph in self._open:
            if key in graph.converted:
                return graph.converted[key]
        place = self.value().place
        convert = self._conversion(form, on_host=value.on_host)
        self.steps.append(Step(convert, (value.place,), (place,), f"reading as {form}", ""))
        self._open[-1].converted[key] = place
        return place

    def _preset(self, tensor: torch.Tensor, form: str) -> int:
        """Place of a constant in another form; equal ones share it."""
        numbers = as_numbers(tensor)
        key = (form, tensor.dtype, tuple(tensor.shape), tuple(numbers))
        if key not in self._preset_places:
            place = self._preset_places[key] = self.value().place
            self.presets[place] = tensor.numpy() if form == ARRAY else numbers
        return self._preset_places[key]

    def worked_out(self, key: Hashable) -> Optional[List[Value]]:
        """Return what was noted under that key in this graph or one around it, or None."""
        for graph in self._open:
            if key in graph.results:
                return graph.results[key]
        return None

    def note(self, key: Hashable, results: List[Value]) -> None:
        """Keep the outputs of a node, for one that computes the same."""
        self._open[-1].results[key] = results

    def _conversion(self, form: str, *, on_host: bool) -> Callable[[Any], Any]:
        if form == NUMBERS:
            return _listed if on_host else as_numbers
        mode = self._mode
        # A copy: numpy results may be scalars, or views with negative steps.
        return lambda array: torch.from_numpy(np.array(array)).to(mode.device)


def as_numbers(tensor: torch.Tensor) -> List[Any]:
    """Elements as Python numbers; waits for the device if the tensor is on one."""
    numbers: List[Any] = tensor.reshape(-1).tolist()
    return numbers


def _listed(array: np.ndarray[Any, Any]) -> List[Any]:
    numbers: List[Any] = array.reshape(-1).tolist()
    return numbers
