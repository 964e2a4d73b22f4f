"""What the core knows of a model's tensors, and where one gradient lies in a bucket."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Tuple


@dataclass(frozen=True)
class TensorSpec:
    """One named tensor of a model or of its optimizer.

    Args:
        name: Canonical name; slots are ``<parameter>/<slot>``.
        shape: Canonical shape.
        dtype: Name of the element type, e.g. ``"float32"``; never a numpy dtype object.
        role: ``"parameter"``, ``"buffer"`` or ``"slot"``.
        trainable: Whether the optimizer changes it.
        tied_to: Name of the tensor it shares memory with, if it is not the first of them.
        reduce_over: Mesh axes its gradient is summed over.
        sync: How a buffer is made equal over ranks: ``"first"``, ``"mean"`` or ``"none"``.
    """

    name: str
    shape: Tuple[int, ...]
    dtype: str
    role: str = "parameter"
    trainable: bool = True
    tied_to: Optional[str] = None
    reduce_over: Tuple[str, ...] = ("data",)
    sync: str = "first"

    @property
    def num_elements(self) -> int:
        """Number of elements; 1 for a scalar."""
        product = 1
        for dim in self.shape:
            product *= dim
        return product


@dataclass(frozen=True)
class Slot:
    """Where one gradient lies.

    Args:
        name: Name of the parameter.
        bucket: Index of its bucket.
        offset: First element inside the bucket, in elements; starts on a 64-byte line.
        shape: Canonical shape.
        permutation: ``canonical = native.transpose(permutation)``; None: the axes are the same.
    """

    name: str
    bucket: int
    offset: int
    shape: Tuple[int, ...]
    permutation: Optional[Tuple[int, ...]] = None


@dataclass(frozen=True)
class Bucket:
    """Gradients of one dtype that are reduced together.

    Args:
        index: Position in the order of reduction.
        dtype: Name of the element type.
        num_elements: Size in elements, the gaps that align tensors included.
        names: Parameters inside, in order of their offsets.
    """

    index: int
    dtype: str
    num_elements: int
    names: Tuple[str, ...]
