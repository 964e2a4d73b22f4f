"""Forward passes that count nothing, run for the collectives that a model holds."""

from __future__ import annotations

from typing import Any, List

import torch

from unified_ipu.adapter import leaves, map_tree
from unified_ipu_torch.batches import Batch
from unified_ipu_torch.objectives import Objective


def run_uncounted(objective: Objective, model: torch.nn.Module, batch: Batch) -> List[Any]:
    """Run a micro-batch with W = 0 without its loss, whose mean over nothing would be NaN.

    Args:
        objective: Of the program.
        model: In training mode.
        batch: Rows that are all padding are left out; rows without counted targets are run, and
            are part of batch statistics.

    Returns:
        What backward has to start from, so that the collectives of backward run as well.
    """
    tree = batch.tree
    if batch.num_counted == 0:
        tree = map_tree(tree, lambda leaf: leaf[:0])
    return [leaf for _, leaf in leaves(objective.reach(model, tree))]
