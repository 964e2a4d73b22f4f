"""Loss and metrics of what a device returned, computed on the host as for any other target."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Dict, Mapping, Tuple

import numpy as np
import tensorflow as tf

from unified_ipu.adapter import Job, Metric, MicroBatch, map_tree
from unified_ipu_tensorflow.batches import input_dtype, read_batch
from unified_ipu_tensorflow.evaluation import measure
from unified_ipu_tensorflow.objectives import build_objective


class Scoring:
    """The objective of a job on outputs that are there already.

    Args:
        job: As ``compile`` was given it.
    """

    def __init__(self, job: Job) -> None:
        self._model = job.model
        self._objective = build_objective(job)

    def score(
        self, micro: MicroBatch, result: Any, metrics: Mapping[str, Metric]
    ) -> Dict[str, Tuple[float, float]]:
        """``"loss"`` and each metric as (sum, weight).

        Args:
            micro: The micro-batch.
            result: Outputs of the model for it, numpy arrays.
            metrics: As for ``Replica.evaluate``.
        """
        micro, result = _without_padding(micro, result)
        batch = read_batch(micro, dtype=input_dtype(self._model))
        outputs = map_tree(result, tf.constant)
        pairs: Dict[str, Tuple[float, float]] = {"loss": (0.0, 0.0)}
        weight = self._objective.weight_before(batch)
        if weight != 0.0:
            given = None
            if self._objective.takes_weight:
                given = tf.constant(weight, tf.float64)
            score = self._objective.score(_Answer(outputs), batch.feed(), given, training=False)
            counted = float(score.weight)
            total = float(score.value) * float(score.factor) + counted * self._penalty()
            pairs["loss"] = (total, counted) if counted else (0.0, 0.0)
        if metrics:
            pairs.update(measure(metrics, batch, outputs))
        return pairs

    def _penalty(self) -> float:
        """Terms that depend on weights alone; there are no others on a device."""
        return float(sum(float(term) for term in self._model.losses))


def _without_padding(micro: MicroBatch, result: Any) -> Tuple[MicroBatch, Any]:
    """The rows that count alone: on the host shapes are free, so any loss can leave them out."""
    if micro.sample_weight is None:
        return micro, result
    keep = np.asarray(micro.sample_weight) != 0

    def cut(leaf: Any) -> Any:
        has_rows = leaf.ndim > 0 and leaf.shape[0] == micro.rows
        return leaf[keep] if has_rows else leaf

    tree = map_tree(micro.tree, cut)
    rows = int(keep.sum())
    return replace(micro, tree=tree, rows=rows, sample_weight=None), map_tree(result, cut)


class _Answer:
    """Stands for the model where its outputs are known."""

    trainable_variables: Tuple[Any, ...] = ()

    def __init__(self, outputs: Any) -> None:
        self._outputs = outputs

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        del inputs, named
        return self._outputs
