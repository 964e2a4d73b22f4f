"""Which gradients are reduced together, and where each one lies.

A bucket is filled in reverse order of use, because backward finishes the last layers first: the
first bucket is complete while the rest of backward still runs. Every tensor starts on a 64-byte
line (TensorFlow aborts the process when it is given an unaligned buffer), and a bucket ends on one.
A gradient that is larger than a bucket gets a bucket of its own; none is ever split.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Dict, List, Sequence, Tuple

from unified_ipu.errors import ConfigError
from unified_ipu.plan.tensors import Bucket, Slot, TensorSpec

LINE_BYTES = 64

# Only what a gradient can be: floats and complex numbers.
ITEM_BYTES = {
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "complex64": 8,
    "complex128": 16,
}


@dataclass(frozen=True)
class BucketPlan:
    """The layout of all gradients of one model.

    Args:
        buckets: In order of reduction.
        slots: One a trained tensor, in the order in which the tensors were given.
        digest: Hex digest of the layout; ranks that disagree about it must not reduce.
    """

    buckets: Tuple[Bucket, ...]
    slots: Tuple[Slot, ...]
    digest: str


class _Filling:
    """A bucket while it is filled."""

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype
        self.num_elements = 0
        self.members: List[Tuple[int, int]] = []  # (index of the spec, offset)


def plan_buckets(specs: Sequence[TensorSpec], bucket_bytes: int) -> BucketPlan:
    """Lay the gradients of all trained tensors out in buckets.

    Tensors that are not trained, are no parameters, or share the memory of another one get no
    slot. Tensors share a bucket only if they have the same dtype and are reduced over the same
    mesh axes.

    Args:
        specs: In order of use in forward.
        bucket_bytes: Most bytes of a bucket that holds more than one tensor, at least 1.

    Returns:
        The same layout on every rank that gives the same specs.

    Raises:
        ConfigError: If two tensors have one name, a dtype has no gradients, or ``bucket_bytes``
            is less than 1.

    Source: ours; held against brute force by ``tests/unified_ipu/plan/test_buckets.py``.
    """
    if bucket_bytes < 1:
        raise ConfigError(
            f"bucket_bytes: got {bucket_bytes}; expected at least 1; the default is 26214400."
        )
    trained = [s for s in specs if s.role == "parameter" and s.trainable and s.tied_to is None]
    _check_specs(trained)
    full = _fill(trained, bucket_bytes)
    buckets: List[Bucket] = []
    slots: Dict[int, Slot] = {}
    for index, filling in enumerate(full):
        names = tuple(trained[member].name for member, _ in filling.members)
        buckets.append(Bucket(index, filling.dtype, filling.num_elements, names))
        for member, offset in filling.members:
            spec = trained[member]
            slots[member] = Slot(spec.name, index, offset, spec.shape)
    ordered = tuple(slots[member] for member in range(len(trained)))
    return BucketPlan(tuple(buckets), ordered, _digest(buckets, ordered, trained))


def _fill(trained: Sequence[TensorSpec], bucket_bytes: int) -> List[_Filling]:
    """Buckets in the order in which backward completes them."""
    full: List[_Filling] = []
    filling_by_key: Dict[Tuple[str, Tuple[str, ...]], _Filling] = {}
    for member in reversed(range(len(trained))):
        spec = trained[member]
        item_bytes = ITEM_BYTES[spec.dtype]
        line = LINE_BYTES // item_bytes
        # A scalar or an empty tensor takes a line too, so no bucket has 0 bytes.
        needed = max(1, -(-spec.num_elements // line)) * line
        key = (spec.dtype, spec.reduce_over)
        filling = filling_by_key.get(key)
        if filling is None or (filling.num_elements + needed) * item_bytes > bucket_bytes:
            filling = filling_by_key[key] = _Filling(spec.dtype)
            full.append(filling)
        filling.members.append((member, filling.num_elements))
        filling.num_elements += needed
    # Members were added from the last tensor to the first, so the last member completes a bucket.
    full.sort(key=lambda filling: -filling.members[-1][0])
    return full


def _check_specs(trained: Sequence[TensorSpec]) -> None:
    seen = set()
    for spec in trained:
        if spec.name in seen:
            raise ConfigError(
                f"tensor {spec.name!r} is given twice; names of trained tensors must differ: "
                "rename one, or say tied_to if they share memory."
            )
        seen.add(spec.name)
        if spec.dtype not in ITEM_BYTES:
            raise ConfigError(
                f"tensor {spec.name!r} is trained and has dtype {spec.dtype!r}; expected one of "
                f"{', '.join(sorted(ITEM_BYTES))}; cast it, or take it out of the optimizer."
            )


def _digest(buckets: Sequence[Bucket], slots: Sequence[Slot], trained: Sequence[TensorSpec]) -> str:
    layout = {
        "buckets": [[bucket.dtype, bucket.num_elements] for bucket in buckets],
        "slots": [
            [slot.name, slot.bucket, slot.offset, list(slot.shape), list(spec.reduce_over)]
            for slot, spec in zip(slots, trained)
        ],
    }
    return hashlib.sha256(json.dumps(layout, sort_keys=True).encode()).hexdigest()
