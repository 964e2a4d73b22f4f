"""In a mixed world, the first batches are evaluated by every rank, and the losses compared.

Two models can agree on every name and shape and yet compute different things: where a feature map
is flattened channels last in one and channels first in the other, the rows of the next matrix mean
other features, and nothing but the loss shows it. A head that starts at zero hides it from the
first loss, so the second batch is compared too.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import chain
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

import numpy as np

from unified_ipu.adapter import Call, MicroBatch, Record, array_of, leaves, owner_of
from unified_ipu.comms import Communicator
from unified_ipu.engine import HostExecutor, UpdateRules
from unified_ipu.errors import ConfigError
from unified_ipu.session.agreement import shared_buffers
from unified_ipu.session.mixing import Mix

COMPARED_CALLS = 2
RELATIVE = 1e-4  # float32 sums in another order differ by some 1e-6
RELATIVE_IN_HALF = 0.05  # bfloat16 has 8 bits, and each framework rounds elsewhere
ABSOLUTE = 1e-6


class MixedExecutor(HostExecutor):
    """A ``HostExecutor`` that compares the losses of its first calls over the ranks.

    Args:
        mix: The adapters of all ranks.
        communicator: Of all replicas.
        arguments: As ``HostExecutor``.
    """

    def __init__(
        self, replica: Any, communicator: Communicator, *, mix: Mix, **arguments: Any
    ) -> None:
        super().__init__(replica, communicator, **arguments)
        self._mix = mix
        self._ranks = communicator
        self._uncompared = COMPARED_CALLS
        rules: UpdateRules = arguments["rules"]
        self._relative = RELATIVE_IN_HALF if rules.is_reduced else RELATIVE

    def run(self, call: Call) -> Record:
        """As ``HostExecutor.run``, after the comparison if it is still due.

        Raises:
            ConfigError: On all ranks, if their losses differ, or one cannot run the batch.
        """
        if self._uncompared:
            call = self._compared(call)
        return super().run(call)

    def _compared(self, call: Call) -> Call:
        update = call.updates[0]
        micro_batches = iter(update.micro_batches)
        first = next(micro_batches, None)
        with self._ranks.phase("compiling"):  # evaluation may trace and compile
            if self._compare(first):
                self._uncompared -= 1
        if first is None:
            return call
        again = replace(update, micro_batches=chain([first], micro_batches))
        return replace(call, updates=(again, *call.updates[1:]))

    def _compare(self, first: Optional[MicroBatch]) -> bool:
        """Whether there was a batch in which something counts; the same on all ranks."""
        micro = shared_micro_batch(first, self._ranks)
        if micro is None:
            return False
        everyone = self._ranks.all_gather_value(self._loss(micro))
        scored = [Scored(*theirs) for theirs in everyone]
        return check_losses(self._mix, scored, relative=self._relative)

    def _loss(self, micro: MicroBatch) -> List[Any]:
        with shared_buffers(self, self._ranks):
            try:
                total, weight = self.evaluate(micro, {})["loss"]
            except Exception as error:  # noqa: BLE001 it is told to all ranks and raised there
                return ["nan", "nan", f"{type(error).__name__}: {error}"]
        return [repr(float(total)), repr(float(weight)), None]


class Scored(NamedTuple):
    """What one rank made of the batch; numbers as text, since JSON has no NaN.

    Args:
        total: S.
        weight: W.
        problem: Why it could not be evaluated, or None.
    """

    total: str
    weight: str
    problem: Optional[str] = None

    @property
    def loss(self) -> float:
        """S / W, NaN if nothing counted."""
        weight = float(self.weight)
        return float(self.total) / weight if weight else math.nan


def check_losses(mix: Mix, scored: Sequence[Scored], *, relative: float = RELATIVE) -> bool:
    """Compare what all ranks made of one batch.

    Args:
        mix: The adapters of all ranks.
        scored: By rank.
        relative: How far losses may lie apart, as a share of the first.

    Returns:
        Whether it says anything: some rank counted something, and its loss is finite.

    Raises:
        ConfigError: If losses or weights differ, or a rank could not evaluate the batch.
    """
    failed = [rank for rank, one in enumerate(scored) if one.problem is not None]
    if failed:
        raise ConfigError(
            f"{mix.named(failed[0])} cannot evaluate the first micro-batch of the run, which all "
            f"ranks must understand: {scored[failed[0]].problem}. Ranks of several adapters take "
            "the same batches: let a first layer of the model bring the axes to its own order"
        )
    weights = [float(one.weight) for one in scored]
    losses = [one.loss for one in scored]
    if not any(weights) or not any(map(math.isfinite, losses)):
        return False
    if not all(map(_close_to(losses[0], relative), losses)):
        raise ConfigError(
            f"the ranks' losses of one micro-batch differ: {_by_rank(mix, losses, 'has')}. The "
            "weights are the same, so the models or their losses are not: look for a Flatten after "
            "channels-last layers without a Permute before it, for axes in names=, for other "
            "defaults (eps, padding, activation), and for a loss over logits in one framework and "
            "over probabilities in the other"
        )
    if not all(map(_close_to(weights[0], RELATIVE), weights)):
        raise ConfigError(
            "the ranks' losses of one micro-batch are means over different units: "
            f"{_by_rank(mix, weights, 'counts')}. Samples of one rank would weigh more than those "
            "of another: give losses that count the same, as those of ui.losses, or weight="
        )
    return True


def _by_rank(mix: Mix, values: Sequence[float], verb: str) -> str:
    return "; ".join(f"{mix.named(rank)} {verb} {value:.9g}" for rank, value in enumerate(values))


class _close_to:  # noqa: N801 reads as a function
    def __init__(self, wanted: float, relative: float) -> None:
        self._wanted = wanted
        self._relative = relative

    def __call__(self, value: float) -> bool:
        return math.isclose(value, self._wanted, rel_tol=self._relative, abs_tol=ABSOLUTE)


def shared_micro_batch(
    mine: Optional[MicroBatch], communicator: Communicator
) -> Optional[MicroBatch]:
    """Return the micro-batch of the lowest rank that has one, on every rank; collective.

    Args:
        mine: This rank's, with its tensors of any framework; None if it has no rows.
        communicator: Of all ranks.

    Returns:
        Its rows as numpy arrays, or None if no rank has any.
    """
    own = None if mine is None else _Packed.of(mine)
    forms = communicator.all_gather_value(None if own is None else own.form)
    roots = [rank for rank, form in enumerate(forms) if form is not None]
    if not roots:
        return None
    form = forms[roots[0]]
    arrays = []
    for index, (dtype, shape) in enumerate(form["leaves"]):
        is_root = communicator.rank == roots[0] and own is not None
        value = own.arrays[index] if is_root and own is not None else np.empty(shape, dtype)
        flat = value.reshape(-1).view(np.uint8)
        communicator.broadcast(flat, root=roots[0], out=flat, name="first micro-batch")
        arrays.append(value)
    return _unpacked(form, arrays)


class _Packed(NamedTuple):
    form: Dict[str, Any]
    arrays: List[np.ndarray]

    @classmethod
    def of(cls, micro: MicroBatch) -> _Packed:
        arrays = [_numpy(leaf, path) for path, leaf in leaves(micro.tree, "batch")]
        if micro.sample_weight is not None:
            arrays.append(_numpy(micro.sample_weight, "sample_weight"))
        form = {
            "tree": _structure(micro.tree),
            "leaves": [[array.dtype.str, list(array.shape)] for array in arrays],
            "has_weight": micro.sample_weight is not None,
            "index": micro.index,
            "rows": micro.rows,
        }
        return cls(form, arrays)


def _unpacked(form: Dict[str, Any], arrays: List[np.ndarray]) -> MicroBatch:
    weight = arrays.pop() if form["has_weight"] else None
    tree = _filled(form["tree"], iter(arrays))
    return MicroBatch(form["index"], tree, form["rows"], sample_weight=weight)


def _numpy(leaf: Any, path: str) -> np.ndarray:
    owner = owner_of(leaf)
    value = array_of(leaf if owner is None else owner.to_numpy(leaf), path)
    if value.dtype.hasobject:
        raise ConfigError(
            f"{path} holds {type(leaf).__name__} of dtype {value.dtype}; ranks of several adapters "
            "take batches of numbers"
        )
    return np.array(value, order="C")  # also turns native byte order, and may be written


def _structure(tree: Any) -> Any:
    if isinstance(tree, dict):
        return ["dict", [[key, _structure(child)] for key, child in tree.items()]]
    if isinstance(tree, (tuple, list)):
        kind = "tuple" if isinstance(tree, tuple) else "list"
        return [kind, [_structure(child) for child in tree]]
    return ["leaf", None]


def _filled(structure: Any, arrays: Any) -> Any:
    kind, content = structure
    if kind == "leaf":
        return next(arrays)
    if kind == "dict":
        return {key: _filled(child, arrays) for key, child in content}
    children = [_filled(child, arrays) for child in content]
    return tuple(children) if kind == "tuple" else children
