"""The copies of a model on several replicas: what differs between them, swapped in and out.

Weights that are trained are the same on all replicas. What moves in forward (statistics of batch
normalisation, states of metrics) is each replica's own; the host sees those of the first one, which
is our reading: no document says it.
"""

from __future__ import annotations

from typing import Any, Dict, List, Sequence

from unified_ipu_tensorflow.keras_generation import tf_variable, variables_of


class ReplicaStates:
    """Variables of a model that each replica has for itself.

    Args:
        model: Built and compiled, its metrics made.
        replicas: Number of them.
    """

    def __init__(self, model: Any, replicas: int) -> None:
        trained = {id(tf_variable(variable)) for variable in model.trainable_variables}
        found: Dict[int, Any] = {}
        for variable in [*variables_of(model), *metric_variables(model)]:
            plain = tf_variable(variable)
            if id(plain) not in trained:
                found[id(plain)] = plain
        self._variables: List[Any] = list(found.values()) if replicas > 1 else []
        start = [variable.read_value() for variable in self._variables]
        self._values: List[Sequence[Any]] = [start for _ in range(replicas)]
        self._loaded = 0

    def load(self, replica: int) -> None:
        """Put one replica's values into the variables."""
        if replica == self._loaded:
            return
        if self._variables:
            self._values[self._loaded] = [one.read_value() for one in self._variables]
            for variable, value in zip(self._variables, self._values[replica]):
                variable.assign(value)
        self._loaded = replica


def metric_variables(model: Any) -> List[Any]:
    """States of all metrics, that of the loss included."""
    return [variable for metric in model.metrics for variable in metric.variables]
