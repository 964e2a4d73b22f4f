"""The collectives on arrays: copied through staging areas in pieces, reduced in rank order.

An array up to ``_SMALL_BYTES`` costs one barrier: the one at which signatures are compared; every
rank adds up all of it, with the same instructions on the same bytes. A longer one costs one a piece
and one more: each rank reduces its share of a piece while the next one is loaded.
"""

from __future__ import annotations

from typing import Any, List, Optional, Tuple

import numpy as np

from unified_ipu.comms.arrays import (
    Flat,
    Target,
    check_operation,
    combine,
    separate,
    split_evenly,
    to_flat,
    to_target,
)
from unified_ipu.comms.group import Group
from unified_ipu.comms.signature import Signature, build_signature

_SMALL_BYTES = 16384
_LINE_BYTES = 64


def check_root(root: int, size: int) -> str:
    """Why ``root`` is no rank of the group, or ""."""
    return "" if 0 <= root < size else f"root {root} is not in 0..{size - 1}"


def all_reduce(
    group: Group, array: Any, *, op: str, out: Any, name: str, root: Optional[int] = None
) -> Any:
    """Reduce over ranks to all of them, or to ``root`` only (then others get None)."""
    source = to_flat(array)
    keeps = root is None or root == group.rank
    problem = source.problem or check_operation(op, source.array.dtype)
    if root is not None:
        problem = problem or check_root(root, group.size)
    target = _target(source, out, problem) if keeps else None
    if target is not None:
        problem = problem or target.problem
        source = separate(source, target, group.stage_bytes)
    verb = "all_reduce" if root is None else f"reduce root={root}"
    signature = build_signature(f"{verb} {op} {source.dtype} {source.array.shape}", name, problem)
    with np.errstate(all="ignore"):
        _reduce_pieces(group, source.flat, op, target, signature)
    group.finish()
    return target.finish() if target is not None else None


def _reduce_pieces(
    group: Group, flat: np.ndarray, op: str, target: Optional[Target], signature: Signature
) -> None:
    if flat.nbytes <= _SMALL_BYTES:
        stages = _load(group, flat)
        group.enter(signature)
        if target is not None:
            combine(stages, op, target.flat)
        return
    per_piece = group.stage_bytes // flat.itemsize
    loading = _Loading(group, flat[:per_piece])
    group.enter(signature)
    for first in range(0, flat.size, per_piece):
        # Between two barriers: reduce this piece, load the next, and take out the one before.
        # That is why there are three staging areas.
        current = loading
        current.reduce_share(op)
        following = flat[first + per_piece : first + 2 * per_piece]
        if following.size:
            loading = _Loading(group, following)
        group.meet()
        if target is not None:
            current.take_out(target.flat[first : first + per_piece])


class _Loading:
    """One piece in the staging areas; a rank's own share is needed by nobody else."""

    def __init__(self, group: Group, piece: np.ndarray) -> None:
        self._rank = group.rank
        self._stages = [stage[: piece.nbytes].view(piece.dtype) for stage in group.next_stages()]
        self._shares = _shares(piece, group.size)
        start, stop = self._shares[group.rank]
        mine = self._stages[group.rank]
        mine[:start] = piece[:start]
        mine[stop:] = piece[stop:]
        self._own = piece[start:stop]

    def reduce_share(self, op: str) -> None:
        """Reduce this rank's share into its staging area."""
        start, stop = self._shares[self._rank]
        parts = [stage[start:stop] for stage in self._stages]
        result = parts[self._rank]
        parts[self._rank] = self._own
        combine(parts, op, result)

    def take_out(self, result: np.ndarray) -> None:
        """Copy all shares, once they are reduced."""
        for (start, stop), stage in zip(self._shares, self._stages):
            result[start:stop] = stage[start:stop]


def _load(group: Group, piece: np.ndarray) -> List[np.ndarray]:
    """Copy a piece into this rank's next staging area; those of all ranks, as long as it is."""
    stages = [stage[: piece.nbytes].view(piece.dtype) for stage in group.next_stages()]
    stages[group.rank][...] = piece
    return stages


def _shares(piece: np.ndarray, size: int) -> List[Any]:
    # Whole cache lines, so that no two ranks write the same one.
    unit = max(_LINE_BYTES // piece.itemsize, 1)
    lines = split_evenly(-(-piece.size // unit), size)
    return [(min(a * unit, piece.size), min(b * unit, piece.size)) for a, b in lines]


def reduce_scatter(group: Group, array: Any, *, op: str, out: Any, name: str) -> Any:
    """Reduce, and keep this rank's rows."""
    source = to_flat(array)
    problem = source.problem or check_operation(op, source.array.dtype)
    if not problem and source.array.ndim == 0:
        problem = "a scalar has no axis 0 to scatter"
    rows = 0 if problem else source.array.shape[0]
    width = source.array.size // rows if rows else 0
    start, stop = split_evenly(rows, group.size)[group.rank]
    shape = (stop - start, *source.array.shape[1:])
    target = to_target(out, shape, source.array.dtype)
    problem = problem or target.problem
    source = separate(source, target, group.stage_bytes)
    text = f"reduce_scatter {op} {source.dtype} {source.array.shape}"
    signature = build_signature(text, name, problem)
    flat = source.flat
    low, high = start * width, stop * width
    per_piece = group.stage_bytes // flat.itemsize
    with np.errstate(all="ignore"):
        for first in range(0, max(flat.size, 1), per_piece):
            piece = flat[first : first + per_piece]
            stages = _load(group, piece)
            if first:
                group.meet()
            else:
                group.enter(signature)
            begin, end = max(low, first), min(high, first + piece.size)
            if begin < end:
                parts = [stage[begin - first : end - first] for stage in stages]
                combine(parts, op, target.flat[begin - low : end - low])
    group.finish()
    return target.finish()


def all_gather(group: Group, array: Any, *, name: str) -> List[np.ndarray]:
    """Arrays of all ranks, of any number of rows each."""
    source = to_flat(array)
    problem = source.problem
    if not problem and source.array.ndim == 0:
        problem = "a scalar has no axis 0 to gather along; reshape it to (1,)"
    tail = source.array.shape[1:]
    rows = 0 if problem else source.array.shape[0]
    dims = ", ".join(["*", *(str(dim) for dim in tail)])
    signature = build_signature(f"all_gather {source.dtype} ({dims})", name, problem)
    counts, data = gather_bytes(group, source.flat.view(np.uint8), signature, rows)
    dtype = source.array.dtype
    return [part.view(dtype).reshape(count, *tail) for count, part in zip(counts, data)]


def broadcast(group: Group, array: Any, *, root: int, out: Any, name: str) -> Any:
    """The root's array on every rank."""
    source = to_flat(array)
    problem = source.problem or check_root(root, group.size)
    target = _target(source, out, problem)
    problem = problem or target.problem
    source = separate(source, target, group.stage_bytes)
    text = f"broadcast root={root} {source.dtype} {source.array.shape}"
    signature = build_signature(text, name, problem)
    mine, result = source.flat.view(np.uint8), target.flat.view(np.uint8)
    for first in range(0, max(mine.size, 1), group.stage_bytes):
        piece = mine[first : first + group.stage_bytes]
        stages = group.next_stages()
        if group.rank == root:
            stages[root][: piece.size] = piece
        if first:
            group.meet()
        else:
            group.enter(signature)
        # The root's input may be its output, or lie elsewhere.
        result[first : first + piece.size] = (
            piece if group.rank == root else stages[root][: piece.size]
        )
    group.finish()
    return target.finish()


def gather_bytes(
    group: Group, mine: np.ndarray, signature: Signature, number: int
) -> Tuple[List[int], List[np.ndarray]]:
    """Bytes of all ranks, each of its own length.

    Args:
        group: The ranks.
        mine: This rank's, ``[n]`` uint8.
        signature: What it is; must not depend on ``n``.
        number: One integer the others get beside.

    Returns:
        The numbers and the bytes, by rank.
    """
    lengths_at = 8  # the first piece is led by its rank's total length
    stages = group.next_stages()
    room = group.stage_bytes - lengths_at
    stages[group.rank][:lengths_at].view(np.int64)[0] = mine.size
    head = mine[:room]
    stages[group.rank][lengths_at : lengths_at + head.size] = head
    numbers = group.enter(signature, number)
    lengths = [int(stage[:lengths_at].view(np.int64)[0]) for stage in stages]
    results = [np.empty(length, np.uint8) for length in lengths]
    for result, stage in zip(results, stages):
        piece = result[:room]
        piece[...] = stage[lengths_at : lengths_at + piece.size]
    for first in range(room, max(lengths), group.stage_bytes):
        stages = group.next_stages()
        own = mine[first : first + group.stage_bytes]
        stages[group.rank][: own.size] = own
        group.meet()
        for result, stage in zip(results, stages):
            piece = result[first : first + group.stage_bytes]
            piece[...] = stage[: piece.size]
    group.finish()
    return numbers, results


def _target(source: Flat, out: Any, problem: str) -> Target:
    if problem:
        return Target(None, source.flat)
    return to_target(out, source.array.shape, source.array.dtype)
