"""Nested containers of tensors: taken apart into a flat list, and put together again.

Users add containers of their own with ``registerCustomArgParser``.

Source: PopTorch 3.4, ``python/_utils.py`` and ``python/__init__.py`` (``ICustomArgParser``).
"""

from __future__ import annotations

import abc
from typing import Any, Dict, Iterable, Iterator, List, Optional

import torch

from unified_ipu_torch.emulated.poptorch.errors import Error


class ICustomArgParser(abc.ABC):
    """How a user's own container is taken apart and put together."""

    @abc.abstractmethod
    def yieldTensors(self, struct: Any) -> Any:
        """Yield the tensors of a container, always in the same order."""

    @abc.abstractmethod
    def reconstruct(self, original_structure: Any, tensor_iterator: Iterator[Any]) -> Any:
        """Make a container like the original, with the next tensors of the iterator."""


class _Registry:
    """The parsers of this process, which the SDK's API makes global."""

    parsers: Dict[type, ICustomArgParser] = {}  # noqa: RUF012  # one for all on purpose


def registerCustomArgParser(arg_data_type: type, arg_parser: Optional[ICustomArgParser]) -> None:
    """Let a class of containers pass between host and device.

    Args:
        arg_data_type: The class.
        arg_parser: Takes it apart; None forgets the class.

    Raises:
        Error: If the parser is of another class.
    """
    if arg_parser is None:
        _Registry.parsers.pop(arg_data_type, None)
    elif isinstance(arg_parser, ICustomArgParser):
        _Registry.parsers[arg_data_type] = arg_parser
    else:
        raise Error("arg_parser must inherit from ICustomArgParser")


def parser_of(value: Any) -> Optional[ICustomArgParser]:
    """The parser registered for a value's class, or for one of its parents."""
    found = _Registry.parsers.get(type(value))
    if found is not None:
        return found
    return next((p for kind, p in _Registry.parsers.items() if isinstance(value, kind)), None)


def flatten(structure: Any, like: Any = None) -> List[torch.Tensor]:
    """Take a structure apart.

    Args:
        structure: Tuples, lists, dicts, registered containers and tensors; the rest is skipped.
        like: A structure of the same form whose dicts give the order of keys.

    Returns:
        Its tensors.
    """
    parser = parser_of(structure)
    if parser is not None:
        return list(parser.yieldTensors(structure))
    if isinstance(structure, torch.Tensor):
        return [structure]
    if isinstance(structure, dict):
        keys = list(structure if like is None else like)
        inner = [(structure[key], None if like is None else like[key]) for key in keys]
    elif isinstance(structure, (list, tuple)):
        inner = list(zip(structure, [None] * len(structure) if like is None else like))
    else:
        inner = []
    return [tensor for item, other in inner for tensor in flatten(item, other)]


def rebuild(structure: Any, tensors: Iterable[Any]) -> Any:
    """Put a structure together.

    Args:
        structure: The form; what is no tensor is taken over.
        tensors: Instead of its own, in the order of ``flatten``.
    """
    return _rebuild(structure, iter(tensors))


def _rebuild(structure: Any, tensors: Iterator[Any]) -> Any:
    parser = parser_of(structure)
    if parser is not None:
        return parser.reconstruct(structure, tensors)
    if isinstance(structure, torch.Tensor):
        return next(tensors)
    if isinstance(structure, dict):
        # type(structure)(...) keeps the user's class, as the SDK does.
        return type(structure)({key: _rebuild(item, tensors) for key, item in structure.items()})
    if isinstance(structure, (list, tuple)):
        items = [_rebuild(item, tensors) for item in structure]
        is_named = hasattr(structure, "_fields") and hasattr(structure, "_asdict")
        return type(structure)(*items) if is_named else type(structure)(items)
    return structure
