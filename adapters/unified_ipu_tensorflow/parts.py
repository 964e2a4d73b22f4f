"""What a replica makes of a model once its variables are there."""

from __future__ import annotations

from typing import Any, List, Sequence

from unified_ipu.adapter import Buffer, Job, Slot
from unified_ipu.errors import ConfigError
from unified_ipu_tensorflow.batches import input_dtype
from unified_ipu_tensorflow.evaluation import Evaluation
from unified_ipu_tensorflow.functions import GradientFunction, runs_eagerly
from unified_ipu_tensorflow.gradients import (
    BoundGradients,
    Gradients,
    OwnGradients,
    StagedGradients,
)
from unified_ipu_tensorflow.half_kernels import is_half
from unified_ipu_tensorflow.names import named_variables
from unified_ipu_tensorflow.objectives import Objective
from unified_ipu_tensorflow.optimizers import Optimizer, build_optimizer
from unified_ipu_tensorflow.random_numbers import RandomLayers
from unified_ipu_tensorflow.tensors import Catalog, trainable_variables


class Parts:
    """Optimizer, gradients, graph functions and names of one model.

    Args:
        job: As ``compile`` was given it.
        objective: From ``build_objective``.

    Raises:
        ConfigError: If model, optimizer and schedule cannot be driven together.
    """

    def __init__(self, job: Job, objective: Objective) -> None:
        self._model = job.model
        self._objective = objective
        self._random_layers = RandomLayers(job.model, is_eager=runs_eagerly(job.model))
        named = named_variables(job.model)
        self.optimizer = build_optimizer(
            job.optimizer, trainable_variables(named, job.model), job.trainable, job.schedule
        )
        trained = {} if self.optimizer is None else self.optimizer.trained
        self.names: List[str] = list(trained)
        self._variables: List[Any] = list(trained.values())
        self.catalog = Catalog(named, self.optimizer)
        self.own = OwnGradients(len(trained))
        self.gradients: Gradients = self.own
        self.function = self._make_function([None] * len(trained))
        self.dtype = input_dtype(job.model)
        self.evaluation = Evaluation(job.model, objective, random_layers=self._random_layers)

    def training_optimizer(self) -> Optimizer:
        """The optimizer.

        Raises:
            ConfigError: If the program has none.
        """
        if self.optimizer is None:
            raise ConfigError("this program has no optimizer; pass optimizer= to compile to train")
        return self.optimizer

    def bind(self, slots: Sequence[Slot], buffers: Sequence[Buffer]) -> None:
        """Keep gradients in the reducer's buffers from now on."""
        self.gradients.close()
        kind = StagedGradients if any(is_half(buffer) for buffer in buffers) else BoundGradients
        self.gradients = kind(slots, buffers)
        self.function = self._make_function([slot.permutation for slot in slots])

    def close(self) -> None:
        """Let go of foreign memory; layers and optimizer are as they were."""
        self.gradients.close()
        self.gradients = self.own
        self._random_layers.close()
        if self.optimizer is not None:
            self.optimizer.close()

    def _make_function(self, permutations: Sequence[Any]) -> GradientFunction:
        return GradientFunction(
            self._model, self._objective, self._random_layers, self._variables, permutations
        )
