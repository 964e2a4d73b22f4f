"""Operators that are not PopTorch's own: of the user in C++, of the host, of torch_cluster.

Source: PopTorch 3.4, ``python/ops.py``.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Callable, Dict, List, Mapping, NoReturn, Optional, Sequence, Tuple, Type

import torch

from unified_ipu_torch.emulated.poptorch.context import current_run
from unified_ipu_torch.emulated.poptorch.enums import MultiConvPlanType
from unified_ipu_torch.emulated.poptorch.errors import Error, absent, require
from unified_ipu_torch.emulated.poptorch.log import note_once

StandIn = Callable[..., Any]
_stand_ins: Dict[Tuple[str, str], StandIn] = {}


def register_custom_op(name: str, domain: str, stand_in: Optional[StandIn]) -> None:
    """Let a Python function stand in for an operator written in C++; of the emulation only.

    Args:
        name: Of the operator.
        domain: Of the operator.
        stand_in: Takes the inputs and the attributes by name, returns a tensor or several; None
            forgets the operator.
    """
    _stand_ins.pop((domain, name), None)
    if stand_in is not None:
        _stand_ins[domain, name] = stand_in


def custom_op(
    inputs: Sequence[torch.Tensor],
    name: str,
    domain: str,
    domain_version: int,
    example_outputs: Sequence[torch.Tensor],
    attributes: Optional[Mapping[str, Any]] = None,
) -> List[torch.Tensor]:
    """Call an operator that users wrote for PopART.

    Args:
        inputs: Its inputs.
        name: Of the operator.
        domain: Of the operator.
        domain_version: Of the domain.
        example_outputs: Tensors with the shapes and types of the outputs.
        attributes: Numbers, strings, or lists of them.

    Returns:
        Its outputs, as the registered stand-in computes them.

    Raises:
        ValueError: If an attribute has another type.
        Error: If no stand-in is registered, or it returns other shapes than the examples.
    """
    for key, value in (attributes or {}).items():
        _check_attribute(key, value)
    stand_in = _stand_ins.get((domain, name))
    if stand_in is None:
        raise Error(
            f"the custom operator {domain}.{name}:{domain_version} is compiled C++ for IPUs; to "
            f'run it here call poptorch.register_custom_op("{name}", "{domain}", function)',
            "unified_ipu_emulation",
        )
    found = stand_in(*inputs, **dict(attributes or {}))
    outputs = list(found) if isinstance(found, (list, tuple)) else [found]
    forms = [[(tuple(t.shape), t.dtype) for t in tensors] for tensors in (example_outputs, outputs)]
    if forms[0] != forms[1]:
        raise Error(f"the stand-in of {name} returned {forms[1]}, the examples say {forms[0]}")
    return outputs


def _check_attribute(key: Any, value: Any) -> None:
    if not isinstance(key, str):
        raise ValueError("All attribute keys must be strings.")
    if not isinstance(value, (float, int, str, list, tuple)):
        raise ValueError(
            "Attribute values must be floats, ints, strings or a list/tuple of float, ints of "
            "strings."
        )
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    if any(not isinstance(item, type(values[0])) for item in values):
        raise ValueError("The types in a list/tuple attribute must all be the same.")
    for text in [key, *values]:
        if isinstance(text, str) and not text.isascii():
            raise ValueError(f"{text} contains non-ASCII characters.")


class CPU:
    """A part of a model that runs on the host, in inference only.

    Args:
        layer_to_call: A module, whose parameters are frozen, or a callable.
        ID: Name of the operator.
    """

    def __init__(self, layer_to_call: Any, ID: str) -> None:
        if isinstance(layer_to_call, torch.nn.Module):
            layer_to_call.requires_grad_(False)
        self._layer_to_call = layer_to_call
        self._ID = ID

    def __call__(self, *args: Any, **_: Any) -> Any:
        """Call the layer with the tensors' values.

        Args:
            args: Its inputs.

        Raises:
            Error: In training.
        """
        run = current_run()
        if run is not None and run.training:
            raise Error(f"poptorch.CPU ({self._ID}) is only supported in inference")
        return self._layer_to_call(*args)


def ctc_beam_search_decoder(*_: Any, **__: Any) -> NoReturn:
    """Refused."""
    absent("ctc_beam_search_decoder", "torch has no such decoder; decode on the host")


def fps(*_: Any, **__: Any) -> NoReturn:
    """Refused."""
    absent("fps", "it stands for torch_cluster.fps; call that on the host")


def nearest(*_: Any, **__: Any) -> NoReturn:
    """Refused."""
    absent("nearest", "it stands for torch_cluster.nearest; call that on the host")


class MultiConv:
    """Convolutions inside of it run side by side on hardware; here one by one."""

    def availableMemoryProportions(self, value: Any) -> MultiConv:
        """Memory of each convolution; one float or a list of them."""
        return self._checked(value, float, "available memory proportion")

    def partialsTypes(self, value: Any) -> MultiConv:
        """Type of the partial sums, torch.float or torch.half.

        Raises:
            ValueError: If it is another one.
        """
        for dtype in value if isinstance(value, (list, tuple)) else [value]:
            if dtype not in {torch.float32, torch.float16}:
                raise ValueError("Invalid partials types. Expecting torch.float or torch.half")
        return self

    def enableConvDithering(self, value: Any) -> MultiConv:
        """Dither each convolution; one bool or a list of them.

        Raises:
            ValueError: If it is something else.
        """
        values = value if isinstance(value, (list, tuple)) else [value]
        if value is not None and not all(isinstance(item, bool) for item in values):
            raise ValueError("value must be bool or list of bools")
        return self

    def planType(self, value: Optional[MultiConvPlanType]) -> MultiConv:
        """Side by side, or one after the other."""
        require(value is None or isinstance(value, MultiConvPlanType), "Invalid plan type!")
        return self

    def perConvReservedTiles(self, value: int) -> MultiConv:
        """Tiles for each convolution."""
        return self._checked(value, int, "number of tiles")

    def cycleBackOff(self, value: float) -> MultiConv:
        """Share of cycles that may be given up."""
        return self._checked(value, float, "cycle back off")

    def _checked(self, value: Any, kind: type, name: str) -> MultiConv:
        values = value if isinstance(value, (list, tuple)) else [value]
        is_fine = value is None or (bool(values) and all(isinstance(v, kind) for v in values))
        require(is_fine, f"Invalid {name}!")
        return self

    def __enter__(self) -> None:
        note_once("MultiConv", "convolutions are computed one by one")

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        value: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        pass


class NameScope:
    """Operators inside of it have a prefix in the names that hardware tools show.

    Args:
        name: The prefix.
    """

    def __init__(self, name: str) -> None:
        require(isinstance(name, str), "Parameter to NameScope must be a string")
        self.name = name

    def __enter__(self) -> None:
        note_once("NameScope", "there are no tools that would show names")

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        value: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        pass
