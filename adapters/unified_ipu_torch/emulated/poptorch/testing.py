"""``poptorch.testing``: compare results with their structure."""

from __future__ import annotations

from typing import Any

import torch


def allclose(ref: Any, other: Any) -> bool:
    """Whether two structures of tensors have the same form and close values.

    Args:
        ref: A tensor, or tuples and lists of tensors.
        other: To compare with it.

    Raises:
        AssertionError: If the reference is of another kind.
    """
    if isinstance(ref, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.allclose(other, ref)
    if not isinstance(ref, (tuple, list)):
        raise AssertionError(f"{type(ref)} not supported")
    same_kind = isinstance(other, tuple) if isinstance(ref, tuple) else isinstance(other, list)
    return (
        same_kind
        and len(ref) == len(other)
        and all(allclose(first, second) for first, second in zip(ref, other))
    )
