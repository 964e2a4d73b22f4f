"""Runs of ``Subject.token_objective``: rows of tokens of which a mask says which count."""

from __future__ import annotations

from typing import Any, Dict, Sequence

import numpy as np

from unified_ipu.adapter import optim
from unified_ipu.testing import samples
from unified_ipu.testing.on_devices import is_device
from unified_ipu.testing.ranks import Ranks
from unified_ipu.testing.scenarios import Training, batch_plan, make


def tokens(slope: float, count: int, width: int = 100) -> Dict[str, Any]:
    """One row of ``token_objective``: ``count`` counted tokens of value ``slope``."""
    mask = (np.arange(width) < count).astype(np.float64)[None]
    return {"x": np.full((1, width), slope), "mask": mask}


def counted_tokens(batch: Any) -> float:
    """W of ``token_objective`` from the batch alone, which devices need."""
    return float(np.asarray(batch["mask"]).sum())


def tokens_run(ranks: Ranks, steps: Sequence[Sequence[Any]], penalty: float = 0.0) -> Training:
    """Train one weight from 1 on ``token_objective``."""
    first = steps[0][0]
    micro = len(first["x"]) if isinstance(first, dict) else 1
    return Training(
        make("linear", weight=samples.column(1.0)),
        optim.SGD(lr=1.0),
        objective=make("token_objective", penalty=penalty),
        steps=steps,
        plan=batch_plan(2, micro) if is_device(ranks) else {},
        options={"weight": counted_tokens} if is_device(ranks) else {},
    )
