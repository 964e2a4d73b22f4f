"""A loss that is an output of the graph: which node makes it, and by what that node divides.

``loss="name"`` names the output; ``loss=None`` takes the only scalar output. Batches then hold all
inputs of the graph, targets among them: a tuple in their order, or a dict by name.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Tuple

import numpy as np
import torch
from onnx import ModelProto

from unified_ipu.adapter import Job, Tree, nearest
from unified_ipu.errors import ConfigError
from unified_ipu_onnx.class_losses import ClassLoss
from unified_ipu_onnx.module import GraphModule
from unified_ipu_onnx.tensors import to_torch
from unified_ipu_torch.batches import Batch
from unified_ipu_torch.objectives import ModelObjective, Score, opaque_score


def loss_output(loss: Any, module: GraphModule, proto: ModelProto) -> str:
    """Name of the output that is the loss.

    Args:
        loss: Its name, or None: the only output.
        module: Made from the model.
        proto: The model.

    Raises:
        ConfigError: If there is no such output, or several and none is named.
    """
    names = module.output_names
    if loss is None:
        if len(names) > 1:
            raise ConfigError(
                f"the graph has the outputs {', '.join(map(repr, names))}; name the one that is "
                'the loss: loss="..."; or pass one of unified_ipu.losses on an output'
            )
        rank = _rank(proto, names[0])
        if rank:
            raise ConfigError(
                f"loss=None takes the graph's output for the loss, but {names[0]!r} has {rank} "
                "axes; pass one of unified_ipu.losses, a loss of torch, or objective=; only to "
                "predict, leave optimizer= out too"
            )
        return names[0]
    if loss not in names:
        raise ConfigError(f"loss={loss!r} is no output of the graph; {nearest(loss, list(names))}")
    return str(loss)


def is_a_loss(proto: ModelProto, name: str) -> bool:
    """Whether the only output looks like a loss: the graph does not say that it has axes."""
    return _rank(proto, name) == 0


def _rank(proto: ModelProto, name: str) -> int:
    for value in proto.graph.output:
        if value.name == name and value.type.tensor_type.HasField("shape"):
            return len(value.type.tensor_type.shape.dim)
    return 0


class NoLoss:
    """The objective of a program that only predicts and measures: nothing counts."""

    counts_rows = True

    def weight_before(self, batch: Batch) -> float:
        """W is 0: the loss is that of nothing."""
        del batch
        return 0.0

    def score(self, model: Any, batch: Batch, weight: Optional[float]) -> Score:
        """Not asked for, as nothing counts."""
        del model, batch, weight
        return Score(None, 1.0, 0.0)

    def reach(self, model: Any, tree: Tree) -> Any:
        """Not asked for, as nothing is trained."""
        del model, tree


class GraphLoss(ModelObjective):
    """The objective of a graph that computes its own loss.

    Args:
        output: Which output is the loss.
        known: How its operator divides, or None.
        job: Its model, ``weight`` and ``loss_reduction``.
        proto: The model.

    Raises:
        ConfigError: If ``loss_reduction`` contradicts the operator's.
    """

    def __init__(
        self, output: str, known: Optional[ClassLoss], job: Job, proto: ModelProto
    ) -> None:
        reduction = job.loss_reduction
        if known is not None:
            if reduction not in {None, known.reduction}:
                raise ConfigError(
                    f"loss_reduction={reduction!r}, but output {output!r} is made by an operator "
                    f"with reduction {known.reduction!r}; leave loss_reduction= out"
                )
            reduction = known.reduction
        super().__init__(job.weight, reduction)
        self._output = output
        self._known = known if job.weight is None else None
        self._class_weights = _initializer(proto, None if known is None else known.weights)
        self._reduces_to = reduction
        self._inputs: Tuple[str, ...] = job.model.input_names

    @property
    def counts_rows(self) -> bool:
        """Whether W is usually the number of rows that are no padding."""
        return super().counts_rows and (self._known is None or self._known.weights is None)

    def weight_before(self, batch: Batch) -> Optional[float]:
        """W from ``weight=``, or from targets that are inputs of the graph; else the rows."""
        known = self._known
        if known is None:
            return super().weight_before(batch)
        if known.weights is not None and self._class_weights is None:
            return None
        targets = _input(batch.host_tree, self._inputs, known.targets)
        if targets is None:
            return None
        targets = np.asarray(targets)
        counted = targets if batch.counted is None else targets[batch.counted]
        return known.units(counted, self._class_weights)

    def score(self, model: Any, batch: Batch, weight: Optional[float]) -> Score:
        """Run the graph on the whole batch.

        Raises:
            ConfigError: If the loss is no scalar, or rows of padding would count.
        """
        if self._known is not None and weight is None:
            outputs, weight = self._run_and_count(self._known, model, batch)
            if weight == 0.0:
                return Score(None, 1.0, 0.0, uncounted=outputs[self._output])
        else:
            outputs = _named(model, _call(model, batch.tree))
        value = outputs.pop(self._output)
        reduction = self._reduces_to
        if self._known is not None and reduction == "none" and batch.counted is None:
            value, reduction = value.sum(), "sum"  # one value a unit, of which a row may have many
        return opaque_score(value, batch, None, reduction, weight, _single(outputs))

    def _run_and_count(
        self, known: ClassLoss, model: Any, batch: Batch
    ) -> Tuple[Dict[str, Any], float]:
        """Outputs, and W where the graph computes the targets or the class weights."""
        feeds = _feeds(model, batch.tree)
        asked: List[str] = [known.targets]
        if known.weights is not None and self._class_weights is None:
            asked.append(known.weights)
        found = model.run(feeds, [*model.output_names, *asked])
        weights = self._class_weights
        if known.weights is not None and weights is None:
            weights = found[known.weights].detach().cpu().numpy()
        targets = found[known.targets].detach().cpu().numpy()
        return {name: found[name] for name in model.output_names}, known.units(targets, weights)

    def outputs(self, result: Any) -> Any:
        """All outputs but the loss; the loss itself if it is the only one."""
        if not isinstance(result, dict):
            return result
        return _single({name: value for name, value in result.items() if name != self._output})


def _call(model: Any, tree: Tree) -> Any:
    return model(**tree) if isinstance(tree, dict) else model(*_as_tuple(tree))


def _as_tuple(tree: Tree) -> Tuple[Any, ...]:
    return tuple(tree) if isinstance(tree, (tuple, list)) else (tree,)


def _feeds(model: Any, tree: Tree) -> Dict[str, torch.Tensor]:
    return dict(tree) if isinstance(tree, dict) else dict(zip(model.input_names, _as_tuple(tree)))


def _named(model: Any, result: Any) -> Dict[str, Any]:
    return dict(result) if isinstance(result, dict) else {model.output_names[0]: result}


def _single(outputs: Dict[str, Any]) -> Any:
    if not outputs:
        return None
    return next(iter(outputs.values())) if len(outputs) == 1 else outputs


def _input(tree: Tree, names: Tuple[str, ...], name: str) -> Any:
    if isinstance(tree, dict):
        return tree.get(name)
    parts = _as_tuple(tree)
    return parts[names.index(name)] if name in names and names.index(name) < len(parts) else None


def _initializer(proto: ModelProto, name: Optional[str]) -> Any:
    for tensor in proto.graph.initializer:
        if tensor.name == name:
            return to_torch(tensor).double().numpy()
    return None
