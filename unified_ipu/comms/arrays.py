"""Users' arrays as flat numpy ones, and why one cannot be sent."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, List, NamedTuple, Optional, Tuple

import numpy as np

KINDS = "biufc"  # bool, integers, floats, complex
OPERATIONS = ("sum", "max", "min", "mean")
_NO_ARRAY = np.empty(0, dtype=np.uint8)


class Flat(NamedTuple):
    """An array as a collective sees it.

    Args:
        array: The input, as numpy.
        flat: ``[num_elements]`` in C order, contiguous; a view of the input where it can be.
        dtype: Name with byte order, for the signature.
        problem: Why it cannot be sent, or "".
    """

    array: np.ndarray
    flat: np.ndarray
    dtype: str
    problem: str = ""


def to_flat(value: Any) -> Flat:
    """Take anything that numpy can see; what it cannot becomes a ``problem``."""
    try:
        array = _to_numpy(value)
    except Exception as error:  # noqa: BLE001  # whatever a foreign array raises, peers must hear
        problem = f"{type(value).__name__} is no array on the host: {error}"
        return Flat(_NO_ARRAY, _NO_ARRAY, type(value).__name__, problem)
    if array.dtype.kind not in KINDS:
        problem = f"dtype {array.dtype} cannot be sent; bool, integers, floats and complex can"
        return Flat(_NO_ARRAY, _NO_ARRAY, str(array.dtype), problem)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    return Flat(array, np.ascontiguousarray(array).reshape(-1), _name_of(array.dtype))


def check_operation(op: str, dtype: np.dtype) -> str:
    """Why ``op`` cannot be applied to ``dtype``, or ""."""
    if op not in OPERATIONS:
        return f"op {op!r} is not one of {', '.join(OPERATIONS)}"
    if op == "mean" and dtype.kind not in "fc":
        return f"the mean of {dtype} is not defined; cast to a float, or use sum"
    if op == "sum" and dtype.kind == "b":
        return "a sum of bool would not count; cast to an integer, or use max (any), min (all)"
    if op in {"max", "min"} and dtype.kind == "c":
        return f"complex numbers have no {op}; reduce real and imaginary parts"
    return ""


class Target(NamedTuple):
    """Where a result goes.

    Args:
        given: What the caller gets back.
        flat: ``[num_elements]`` to write to.
        scattered: The caller's array when ``flat`` is not its memory: copy at the end.
        problem: Why ``out`` cannot be used, or "".
    """

    given: Any
    flat: np.ndarray
    scattered: Optional[np.ndarray] = None
    problem: str = ""

    def finish(self) -> Any:
        """Move the result to its last place and return it."""
        if self.scattered is not None:
            np.copyto(self.scattered, self.flat.reshape(self.scattered.shape))
        return self.given


def to_target(out: Any, shape: Tuple[int, ...], dtype: np.dtype) -> Target:
    """Use ``out``, or make a new array of that shape and dtype."""
    if out is None:
        made = np.empty(shape, dtype)
        return Target(made, made.reshape(-1))
    try:
        array = np.asarray(out)
    except Exception as error:  # noqa: BLE001  # whatever a foreign array raises, peers must hear
        return Target(out, _NO_ARRAY, None, f"out is no array on the host: {error}")
    if array.shape != shape or array.dtype != dtype or not array.flags.writeable:
        kind = "" if array.flags.writeable else "read-only "
        problem = f"out is a {kind}{array.dtype} {array.shape}, the result a {dtype} {shape}"
        return Target(out, _NO_ARRAY, None, problem)
    if array.flags.c_contiguous:
        return Target(out, array.reshape(-1))
    return Target(out, np.empty(array.size, dtype), array)


def separate(source: Flat, target: Target, piece_bytes: int) -> Flat:
    """Copy the input if the output lies over it in another way than exactly.

    Not needed for one piece: all of it is read before anything is written.
    """
    mine, other = source.flat, target.flat
    if mine.nbytes <= piece_bytes or not np.may_share_memory(mine, other):
        return source
    if mine.__array_interface__["data"][0] == other.__array_interface__["data"][0]:
        return source
    return source._replace(flat=mine.copy())


def combine(parts: List[np.ndarray], op: str, out: np.ndarray) -> None:
    """Reduce flat arrays in the order given; ``out`` may be one of them.

    Halves are added in float32 and rounded once. The order makes the result the same bits for
    whoever computes it.
    """
    if out.dtype == np.float16:
        wide = np.empty(out.size, np.float32)
        combine([part.astype(np.float32) for part in parts], op, wide)
        out[...] = wide
        return
    ufunc = {"max": np.maximum, "min": np.minimum}.get(op, np.add)
    if len(parts) == 1:
        np.copyto(out, parts[0])
    else:
        total = parts[0]
        if len(parts) > 2:  # noqa: PLR2004  # with two the result goes straight to out
            total = ufunc(parts[0], parts[1])
            for part in parts[2:-1]:
                ufunc(total, part, out=total)
        ufunc(total, parts[-1], out=out)
    if op == "mean":
        np.true_divide(out, len(parts), out=out)


def split_evenly(total: int, parts: int) -> List[Tuple[int, int]]:
    """``(start, stop)`` of ``parts`` ranges whose lengths differ by at most one, longer first."""
    small, extra = divmod(total, parts)
    edges = [index * small + min(index, extra) for index in range(parts + 1)]
    return list(zip(edges[:-1], edges[1:]))


@lru_cache(maxsize=None)
def _name_of(dtype: np.dtype) -> str:
    return dtype.name  # takes microseconds to make


def _to_numpy(value: Any) -> np.ndarray:
    if isinstance(value, np.ndarray):
        return value
    if hasattr(value, "__dlpack__") and not hasattr(value, "__array__"):
        reader = getattr(np, "from_dlpack", None)  # numpy 1.22
        if reader is not None:
            return np.asarray(reader(value))
    return np.asarray(value)
