"""What scenarios do otherwise on a device, whose shapes are static."""

from __future__ import annotations

import math
from typing import Any, Dict, List, Mapping, Optional, Sequence

import pytest

from unified_ipu.plan import Plan, runs_whole_calls


def on_device(
    plan: Mapping[str, Any], processes: int, rows: Optional[int] = None
) -> Dict[str, Any]:
    """The plan of a scenario with static shapes, as nested tables.

    The end of an epoch is padded, and the micro-batches become smaller until those of all replicas
    are a global batch: by the update law an update does not depend on how it is split.

    Args:
        plan: Nested tables, written for host targets.
        processes: Of the world.
        rows: Of a micro-batch, if the plan has no sizes.
    """
    batch = {"remainder": "pad", **plan.get("batch", {})}
    replicas = processes * plan.get("ipu", {}).get("replicas_per_process", 1)
    total, micro = batch.get("global_batch_size"), batch.get("micro_batch_size", 1)
    if total is None:
        rows = rows or Plan().batch.micro_batch_size
        batch.update(global_batch_size=rows * replicas, micro_batch_size=rows)
    elif total % replicas == 0:
        while total % (micro * replicas):
            micro -= 1
        batch["micro_batch_size"] = micro
    return {**plan, "batch": batch}


def is_device(ranks: Any) -> bool:
    """Whether ranks train on a device; an author's own say it by an attribute ``target``."""
    return runs_whole_calls(getattr(ranks, "target", "auto"))


def assert_norms(
    ranks: Any, found: Sequence[float], expected: Sequence[float], rel: float = 1e-13
) -> None:
    """Norms of gradients are those; a device measures none and must say so."""
    assert len(found) == len(expected)
    if is_device(ranks):
        assert all(math.isnan(norm) for norm in found), "a norm that no device has measured"
    else:
        assert list(found) == pytest.approx(list(expected), rel=rel)


def reduction_of(ranks: Any) -> str:
    """How a loss of the user's is reduced so that the end of an epoch can be padded."""
    return "none" if is_device(ranks) else "mean"


def without_padding(ids: Sequence[int]) -> List[int]:
    """Ids of real samples."""
    return [one for one in ids if one >= 0]


def certified(ranks: Any, samples: int, global_batch_size: int) -> str:
    """The certificate of an epoch in which every sample was behind an update."""
    text = f"{samples} of {samples} samples, each once"
    padding = -samples % global_batch_size
    if is_device(ranks) and padding:
        text += f", {padding} rows of padding"
    return text
