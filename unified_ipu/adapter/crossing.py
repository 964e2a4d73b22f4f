"""What two frameworks share when a tensor crosses from one to the other without a copy.

The owner of a tensor checks it and gives its memory away as a DLPack capsule; the taker only takes.
Neither knows the other: the owner is found here, by the type of the tensor. The checks come before
any DLPack call, because frameworks abort the process over some tensors (text, unaligned memory)
and hand out wrong values for others (conjugate and negative views).
"""

from __future__ import annotations

import importlib
from enum import Enum
from functools import lru_cache
from typing import Any, FrozenSet, Optional, Protocol, cast, runtime_checkable

import numpy as np

from unified_ipu.adapter.registry import registered
from unified_ipu.errors import AdapterLoadError, DataError
from unified_ipu.events import Counters

_LINE = 64  # bytes; TensorFlow aborts in the first operation over memory that starts elsewhere
_DTYPES = frozenset(
    {
        "bool",
        *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
    }
)


class CopyReason(str, Enum):
    """Why memory could not be shared; the value completes "copied because"."""

    ALIASED = "aliased"  # somebody else may read what the taker writes
    READ_ONLY = "read_only"
    NOT_CONTIGUOUS = "not_contiguous"
    NOT_ALIGNED = "not_aligned"
    LAZY_VIEW = "lazy_view"  # conjugated or negated when it is read
    FOREIGN_ORDER = "foreign_byte_order"
    SPLIT = "split_over_batches"  # its rows lie in two batches of the pipeline
    KEPT = "earlier_ones_are_kept"  # the caller holds all the memory that batches come in
    REFUSED = "refused_by_dlpack"


class Copies:
    """Counts copies by reason, and their bytes.

    Args:
        counters: Told ``copied_because_<reason>`` and ``bytes_copied``.
    """

    def __init__(self, counters: Optional[Counters] = None) -> None:
        self.counters = counters or Counters()

    def add(self, reason: CopyReason, num_bytes: int) -> None:
        """Count one copy of ``num_bytes``."""
        self.counters.add(f"copied_because_{reason.value}")
        self.counters.add("bytes_copied", num_bytes)


class Bridge(Protocol):
    """Module ``bridge`` of an adapter's package: how its tensors leave."""

    def export(self, tensor: Any, *, path: str, is_fresh: bool, copies: Copies) -> Any:
        """Return a DLPack capsule (unversioned) that any framework may take.

        The memory is dense, row-major, on a 64-byte line, and nobody else's: unless ``is_fresh``
        says that it is so already, it is copied. What is copied is counted.
        """
        ...

    def to_numpy(self, tensor: Any) -> Any:
        """Return a numpy array on the host, over the tensor's memory where that is possible."""
        ...


@runtime_checkable
class CountsCopies(Protocol):
    """A replica that can say which batches it had to copy."""

    def count_copies(self, counters: Counters) -> None:
        """Tell ``counters`` from now on."""
        ...


def owner_of(tensor: Any) -> Optional[Bridge]:
    """The bridge of the framework that ``tensor`` belongs to, or None if no adapter has one.

    Raises:
        AdapterLoadError: If there is one that cannot be imported.
    """
    kind: Any = type(tensor)
    return _bridge_of_type(kind)


@lru_cache(maxsize=64)
def _bridge_of_type(kind: type) -> Optional[Bridge]:
    points = registered()
    # The user's own subclass of a tensor belongs to the framework of its parent.
    for parent in kind.__mro__:
        name = parent.__module__.partition(".")[0]
        if name not in points:
            continue
        module = f"{points[name].value.partition(':')[0]}.bridge"
        try:
            return cast("Bridge", importlib.import_module(module))
        except ImportError as error:
            if error.name == module:
                return None
            raise AdapterLoadError(
                name, f"tensors of {kind.__qualname__} cannot cross: {error}"
            ) from error
    return None


def crossing_dtypes() -> FrozenSet[str]:
    """Names of the element types that all frameworks understand alike, bit for bit."""
    return _DTYPES


def is_aligned(address: int) -> bool:
    """Whether memory that starts there may go to any framework."""
    return not address % _LINE


def check_dtype(dtype: str, *, path: str, owner: str) -> None:
    """Refuse element types that would end the process or change on the way.

    Args:
        dtype: Its name.
        path: Of the leaf, for the message; may be empty.
        owner: What the leaf is, for the message.

    Raises:
        DataError: If it is none of ``crossing_dtypes``.
    """
    if dtype not in _DTYPES:
        raise DataError(
            f"{named(path)} is a {owner} of {dtype}; bools, integers, floats of 16 to 64 bits and "
            "complex numbers can cross between frameworks: leave it out, or encode it as one of "
            "these"
        )


def array_of(leaf: Any, path: str) -> np.ndarray:
    """Read what belongs to no framework as a numpy array.

    Args:
        leaf: An array, a number, or what numpy reads.
        path: Of the leaf, for the message; may be empty.

    Returns:
        The array, of any element type.

    Raises:
        DataError: If numpy cannot read it.
    """
    try:
        return np.asarray(leaf)
    except Exception as error:
        raise DataError(
            f"{named(path)} is a {type(leaf).__qualname__} that numpy cannot read ({error}); "
            "convert it to a numpy array of numbers first"
        ) from error


def named(path: str) -> str:
    """How messages call a leaf."""
    return f"leaf {path}" if path else "the tensor"
