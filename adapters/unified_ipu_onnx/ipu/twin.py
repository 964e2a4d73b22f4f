"""The host's copy of a model that lies on devices: its weights, optimizer and scores."""

from __future__ import annotations

from typing import Any, Dict, Mapping, Optional, Tuple

import numpy as np
import torch

from unified_ipu.adapter import Job, Metric, MicroBatch, map_tree
from unified_ipu_onnx.reading import LoadedModel
from unified_ipu_onnx.replica import OnnxReplica
from unified_ipu_torch.batches import Batch, read_batch
from unified_ipu_torch.objectives import Objective

_HOST = torch.device("cpu")


class HostTwin(OnnxReplica):
    """A replica that never runs the model: others compute, it keeps what they computed.

    Args:
        job: Its model is the module.
        source: The model that the module was made from.
        is_first: Whether this rank says what its user should know.
        on_close: As of a replica.
    """

    def __init__(self, job: Job, source: LoadedModel, *, is_first: bool, on_close: Any) -> None:
        super().__init__(job, source, _HOST, is_first=is_first, on_close=on_close)
        parameters = dict(self._module.named_parameters())
        own = {
            name: parameters[n]
            for n, name in self._module.initializer_names.items()
            if n in parameters
        }
        driven = {id(parameter) for parameter in self._parameters}
        self.trained = {name: p for name, p in own.items() if id(p) in driven}

    @property
    def optimizer(self) -> Optional[torch.optim.Optimizer]:
        """The native one."""
        found: Optional[torch.optim.Optimizer] = self._optimizer
        return found

    @property
    def objective(self) -> Objective:
        """What counts W."""
        return self._objective

    @property
    def source(self) -> LoadedModel:
        """The user's model."""
        return self._source

    def values(self) -> Dict[str, torch.Tensor]:
        """Present values of weights and running statistics, by the names of initializers."""
        return self._values()

    def batch(self, micro: MicroBatch) -> Batch:
        """A micro-batch as the objective reads it."""
        return read_batch(micro, _HOST)

    def score(
        self, micro: MicroBatch, outputs: Mapping[str, np.ndarray], metrics: Mapping[str, Metric]
    ) -> Dict[str, Tuple[float, float]]:
        """Loss and metrics of outputs that a device computed."""
        before = self._inference
        self._inference = _Given(outputs, self._module.output_names)
        try:
            return self.evaluate(micro, metrics, seed=0)
        finally:
            self._inference = before

    def shown(self, outputs: Mapping[str, np.ndarray]) -> Any:
        """Outputs as ``predict`` gives them: one as it is, several by name, never the loss."""
        given = _Given(outputs, self._module.output_names)()
        if self._model_outputs is not None:
            given = self._model_outputs(given)
        return map_tree(given, lambda leaf: None if leaf is None else leaf.numpy())


class _Given:
    """Stands in for the module: returns what is there already."""

    def __init__(self, outputs: Mapping[str, np.ndarray], names: Tuple[str, ...]) -> None:
        self.output_names = names
        self._outputs = {name: torch.from_numpy(np.array(outputs[name])) for name in names}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        del args, kwargs
        if len(self._outputs) == 1:
            return self._outputs[self.output_names[0]]
        return dict(self._outputs)
