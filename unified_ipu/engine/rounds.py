"""Equal numbers of micro-batches on all ranks, for models that hold collectives themselves.

Such a model (synchronised batch norm) would wait for ever if one rank ran a micro-batch more than
another. So ranks that have none left run an empty one, of 0 rows and weight 0, as the update law
says (L1.5). One small exchange a round asks whether anybody has rows left; micro-batches stay lazy.
"""

from __future__ import annotations

from typing import Any, Callable, Iterable, Iterator, Optional

import numpy as np

from unified_ipu.adapter import MicroBatch, Replica
from unified_ipu.comms import Communicator
from unified_ipu.errors import ConfigError

_NUMPYS = frozenset(np.dtype(code).name for code in np.typecodes["AllInteger"]) | {
    *("bool", "float16", "float32", "float64", "complex64", "complex128")
}
Rounds = Callable[[Iterable[MicroBatch]], Iterable[MicroBatch]]


def rounds_of(replica: Replica, communicator: Communicator) -> Rounds:
    """Return what turns an update's micro-batches into those that are run."""
    if communicator.size > 1 and getattr(replica, "holds_collectives", False):
        return EvenRounds(communicator)
    return _as_they_are


class EvenRounds:
    """Fills up with empty micro-batches, shaped like the first one that any rank had."""

    def __init__(self, communicator: Communicator) -> None:
        self._communicator = communicator
        self._form: Any = None

    def __call__(self, micro_batches: Iterable[MicroBatch]) -> Iterator[MicroBatch]:
        """Yield this rank's micro-batches, then empty ones while another rank has rows."""
        waiting = iter(micro_batches)
        index = self._communicator.rank
        while True:
            micro = next(waiting, None)
            if not self._anyone_has_rows(micro):
                return
            yield micro if micro is not None else MicroBatch(index, empty_like(self._form), 0)
            index += self._communicator.size

    def _anyone_has_rows(self, micro: Optional[MicroBatch]) -> bool:
        if self._form is not None:
            flag = np.array([micro is not None], np.int64)
            return bool(self._communicator.all_reduce(flag, op="max", name="micro-batches left"))
        mine = None if micro is None else form_of(micro.tree)
        known = [f for f in self._communicator.all_gather_value(mine) if f is not None]
        if known:
            self._form = known[0]
        return bool(known)


def form_of(tree: Any) -> Any:
    """Structure, dtypes and shapes without rows of a batch, as a JSON value.

    Raises:
        ConfigError: If a leaf has no numpy dtype, or a key is no string.
    """
    if isinstance(tree, dict):
        if not all(isinstance(key, str) for key in tree):
            raise ConfigError(f"batch keys {list(tree)}: expected strings; rename them")
        return {"dict": [[key, form_of(child)] for key, child in tree.items()]}
    if isinstance(tree, (tuple, list)):
        kind = "tuple" if isinstance(tree, tuple) else "list"
        return {kind: [form_of(child) for child in tree]}
    kind = getattr(tree, "dtype", "")
    dtype = str(getattr(kind, "name", kind)).rpartition(".")[2]
    # Other packages add types to numpy by name, which no other rank may know.
    if dtype not in _NUMPYS:
        raise ConfigError(
            f"a leaf of the batch is a {type(tree).__name__} of dtype {dtype!r}; a model with "
            "collectives needs leaves of numpy's dtypes, so that ranks without rows can have them"
        )
    return {"leaf": [np.dtype(dtype).str, list(tree.shape[1:])]}


def empty_like(form: Any) -> Any:
    """A batch of 0 rows, numpy arrays, from ``form_of``."""
    ((kind, content),) = form.items()
    if kind == "leaf":
        return np.empty((0, *content[1]), np.dtype(content[0]))
    if kind == "dict":
        return {key: empty_like(child) for key, child in content}
    children = [empty_like(child) for child in content]
    return tuple(children) if kind == "tuple" else children


def _as_they_are(micro_batches: Iterable[MicroBatch]) -> Iterable[MicroBatch]:
    return micro_batches
