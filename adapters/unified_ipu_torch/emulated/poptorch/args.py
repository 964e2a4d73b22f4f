"""The arguments of a call: bound to the model's signature, and compared with those of compilation.

Source: PopTorch 3.4, ``python/_args_parser.py``.
"""

from __future__ import annotations

import copy
import inspect
from typing import Any, Callable, Dict, List, Mapping, Sequence, Tuple

import torch

from unified_ipu_torch.emulated.poptorch.errors import Error, require
from unified_ipu_torch.emulated.poptorch.log import logger
from unified_ipu_torch.emulated.poptorch.structures import flatten, rebuild

_ADVICE = (
    "\nThis error occurred because the inputs passed at runtime don't match the inputs used to "
    "compile the model.\nMake a new inferenceModel / trainingModel, or call destroy() on this one, "
    "to compile for the new inputs."
)
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class Args:
    """Arguments in the order of the signature; defaults included."""

    def __init__(self) -> None:
        self.args: List[Any] = []
        self.arg_names: List[str] = []
        self.kwargs: Dict[str, Any] = {}

    def clone(self) -> Args:
        """A shallow copy."""
        found = Args()
        found.args, found.kwargs = copy.copy(self.args), copy.copy(self.kwargs)
        found.arg_names = list(self.arg_names)
        return found

    def flatten(self, like: Any = None) -> List[torch.Tensor]:
        """All tensors.

        Args:
            like: Arguments of an earlier call, whose dicts give the order of keys.
        """
        first, second = (None, None) if like is None else (like.args, like.kwargs)
        return flatten(self.args, first) + flatten(self.kwargs, second)

    def map(self, function: Callable[[torch.Tensor], torch.Tensor]) -> Args:
        """The same arguments with another tensor for each tensor."""
        found = self.clone()
        found.args = rebuild(self.args, [function(tensor) for tensor in flatten(self.args)])
        found.kwargs = rebuild(self.kwargs, [function(tensor) for tensor in flatten(self.kwargs)])
        return found

    def validateInputs(self, inputs: Args) -> None:
        """Refuse arguments that differ from these in anything but the tensors' contents.

        Args:
            inputs: Of a later call.

        Raises:
            Error: If they differ; says where, what was expected and what was given.
        """
        if len(inputs.args) != len(self.args):
            raise Error(
                f"Number of positional arguments mismatch: expected {len(self.args)} arguments but "
                f"got {len(inputs.args)}.{_ADVICE}"
            )
        for name, expected, given in zip(self.arg_names, self.args, inputs.args):
            _compare(name, expected, given)
        _compare_keys("named arguments", self.kwargs, inputs.kwargs)
        for name, expected in self.kwargs.items():
            _compare(name, expected, inputs.kwargs[name])


class ArgsParser:
    """Binds arguments to a signature.

    Args:
        model: A module, whose ``forward`` is meant, or any callable.

    Raises:
        TypeError: If it is neither.
    """

    def __init__(self, model: Any) -> None:
        target = model.forward if isinstance(model, torch.nn.Module) else model
        if not callable(target):
            raise TypeError("Expected a torch.nn.Module or a callable")
        try:
            self._parameters = list(inspect.signature(target).parameters.values())
        except ValueError:  # a builtin without one
            kinds = zip(("args", "kwargs"), _VARIADIC)
            self._parameters = [inspect.Parameter(name, kind) for name, kind in kinds]
        self._is_variadic = any(p.kind in _VARIADIC for p in self._parameters)
        self._warned_not_contiguous = False
        self._warned_of_dicts = False

    def __call__(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Args:
        """Bind.

        Args:
            args: Positional arguments.
            kwargs: Named ones.

        Returns:
            Them, in order.

        Raises:
            AssertionError: If there are too many, an unknown one, or one is given twice.
            Error: If one is missing.
        """
        self._check_names(args, kwargs)
        found = Args()
        rest = list(args)
        was_variadic = False
        for index, parameter in enumerate(self._parameters):
            name = parameter.name
            if parameter.kind == inspect.Parameter.VAR_KEYWORD:
                used = {p.name for p in self._parameters[:index]}
                found.kwargs.update({k: v for k, v in kwargs.items() if k not in used})
            elif parameter.kind == inspect.Parameter.VAR_POSITIONAL:
                was_variadic = True
                for position, value in enumerate(rest):
                    _append(found, f"*{name}[{position}]", value)
                rest = []
            elif rest:
                require(name not in kwargs, f"Parameter {name} was passed more than once")
                _append(found, name, rest.pop(0))
            elif was_variadic:
                found.kwargs[name] = _named(parameter, kwargs)
            else:
                _append(found, name, _named(parameter, kwargs))
        return self._contiguous(found)

    def _check_names(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        if self._is_variadic:
            return
        names = [parameter.name for parameter in self._parameters]
        num_given = len(args) + len(kwargs)
        require(
            num_given <= len(names),
            f"Too many arguments provided: expected {names} ({len(names)}) but got {num_given}",
        )
        for name in kwargs:
            require(name in names, f"{name} is not a valid parameter. Allowed values are {names}")

    def _contiguous(self, found: Args) -> Args:
        values = [*found.args, *found.kwargs.values()]
        if not self._warned_of_dicts and any(_holds_dict(value) for value in values):
            self._warned_of_dicts = True
            logger.warning(
                "Dicts as inputs only have partial support: their keys are fixed when the model is "
                "compiled. Consider changing dict inputs to tuple."
            )
        if all(tensor.is_contiguous() for tensor in found.flatten()):
            return found
        if not self._warned_not_contiguous:
            self._warned_not_contiguous = True
            logger.warning(
                "At least one input tensor is not contiguous: non-contiguous tensors will be "
                "converted."
            )
        return found.map(lambda tensor: tensor.contiguous())


def _append(found: Args, name: str, value: Any) -> None:
    found.args.append(value)
    found.arg_names.append(name)


def _named(parameter: inspect.Parameter, kwargs: Mapping[str, Any]) -> Any:
    if parameter.name in kwargs:
        return kwargs[parameter.name]
    if parameter.default is inspect.Parameter.empty:
        raise Error(f"Mandatory parameter {parameter.name} missing")
    return parameter.default


def _holds_dict(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return any(_holds_dict(item) for item in value)
    return isinstance(value, dict)


def _compare(name: str, expected: Any, given: Any) -> None:
    if type(expected) is not type(given):
        _mismatch("Type", name, type(expected), type(given))
    if isinstance(expected, torch.Tensor):
        _compare_tensors(name, expected, given)
    elif isinstance(expected, (tuple, list)):
        _compare_items(name, expected, given)
    elif isinstance(expected, dict):
        _compare_keys(name, expected, given)
        for key, item in expected.items():
            _compare(f"{name}[{key}]", item, given[key])
    elif flatten(expected):
        _compare_items(name, flatten(expected), flatten(given))
    elif expected != given:
        _mismatch("Value", name, expected, given)


def _compare_tensors(name: str, expected: torch.Tensor, given: torch.Tensor) -> None:
    if expected.dtype != given.dtype:
        _mismatch("Data type", name, expected.dtype, given.dtype)
    if expected.shape != given.shape:
        _mismatch("Shape", name, expected.shape, given.shape)


def _compare_items(name: str, expected: Sequence[Any], given: Sequence[Any]) -> None:
    if len(expected) != len(given):
        counts: Tuple[str, str] = (f"{len(expected)} elements", str(len(given)))
        _mismatch("Length", name, *counts)
    for index, (first, second) in enumerate(zip(expected, given)):
        _compare(f"{name}[{index}]", first, second)


def _compare_keys(name: str, expected: Mapping[Any, Any], given: Mapping[Any, Any]) -> None:
    details = []
    for words, keys in (
        ("Unexpected arguments", set(given) - set(expected)),
        ("Missing arguments", set(expected) - set(given)),
    ):
        if keys:
            details.append(f"{words}: {', '.join(sorted(map(str, keys)))}")
    if details:
        raise Error(f"Keys mismatch for {name}: {'. '.join(details)}.{_ADVICE}")


def _mismatch(kind: str, name: str, expected: Any, given: Any) -> None:
    raise Error(f"{kind} mismatch for {name}: expected {expected} but got {given}.{_ADVICE}")
