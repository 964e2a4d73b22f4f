"""Once an epoch, the ranks compare their weights: they start equal and change by the same sums.

Ranks of one adapter must hold the same bits. Ranks of several adapters carry the optimizer out each
in its own order of operations, so there rounding is allowed, and no more.
"""

from __future__ import annotations

import zlib
from typing import Any, List

import numpy as np

from unified_ipu.adapter import Executor, TensorSpec
from unified_ipu.comms import Communicator
from unified_ipu.errors import NumericsError
from unified_ipu.session.mixing import Mix

# Of the norm of a tensor; the same bounds as for training in another world (L5.3).
BOUNDS = {"float64": 1e-12, "float32": 1e-4}
# Below this root mean square differences are absolute: a bias that ought to be 0 is rounding only.
SMALLEST_RMS = 1e-3

_SHOWN = 5


def check_same_weights(executor: Executor, communicator: Communicator, mix: Mix) -> None:
    """Compare every parameter over all ranks; collective, changes nothing.

    Raises:
        NumericsError: On all ranks, if the ranks' weights are not the same.
    """
    if communicator.size == 1:
        return
    specs = [spec for spec in executor.tensors() if _is_compared(spec)]
    if mix.is_mixed:
        _compare_values(executor, communicator, mix, specs)
    else:
        _compare_bits(executor, communicator, specs)


def _is_compared(spec: TensorSpec) -> bool:
    return spec.role == "parameter" and spec.tied_to is None


def _compare_bits(executor: Executor, communicator: Communicator, specs: List[TensorSpec]) -> None:
    mine = [zlib.crc32(_bytes(executor.read([spec.name])[spec.name])) for spec in specs]
    everyone = communicator.all_gather_value(mine)
    for rank, theirs in enumerate(everyone):
        differing = [spec.name for spec, a, b in zip(specs, everyone[0], theirs) if a != b]
        if differing:
            raise NumericsError(
                f"the weights of rank {rank} are not those of rank 0 any more, in "
                f"{_listed(differing)}; every rank applies the same sums, so something else "
                "changed them: a callback or code between updates that runs on one rank only, or "
                "an optimizer that draws random numbers"
            )


def _compare_values(
    executor: Executor, communicator: Communicator, mix: Mix, specs: List[TensorSpec]
) -> None:
    mine = []
    for spec in specs:
        value = executor.read([spec.name])[spec.name]
        first = communicator.broadcast(value, root=0, name=spec.name)
        mine.append(_difference(value, first))
    everyone = communicator.all_gather_value(mine)
    for rank, theirs in enumerate(everyone):
        differing = [
            f"{spec.name} by {difference:.1e}"
            for spec, difference in zip(specs, theirs)
            if not difference <= BOUNDS.get(spec.dtype, BOUNDS["float32"])
        ]
        if differing:
            raise NumericsError(
                f"the weights of {mix.named(rank)} have left those of {mix.named(0)} by more than "
                f"rounding: {_listed(differing)} of their norm; the optimizers do not do the same, "
                "or something else changed the weights of one rank"
            )


def _difference(value: Any, first: Any) -> float:
    value, first = value.astype(np.float64), first.astype(np.float64)
    size = max(float(np.linalg.norm(first)), SMALLEST_RMS * float(np.sqrt(max(first.size, 1))))
    difference = float(np.linalg.norm(value - first)) / size
    return difference if np.isfinite(difference) else 1e300  # JSON has no infinity


def _bytes(value: Any) -> Any:
    return np.asarray(value, order="C").reshape(-1).view(np.uint8)


def _listed(names: List[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
