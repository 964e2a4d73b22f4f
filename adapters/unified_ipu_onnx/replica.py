"""One copy of an ONNX model on a host target: the torch replica over the module of its graph."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import torch

from unified_ipu.adapter import Job, losses, nearest
from unified_ipu.errors import ConfigError
from unified_ipu_onnx.class_losses import class_loss
from unified_ipu_onnx.inference import Inference
from unified_ipu_onnx.losses import GraphLoss, NoLoss, is_a_loss, loss_output
from unified_ipu_onnx.module import GraphModule
from unified_ipu_onnx.reading import LoadedModel, read_model
from unified_ipu_onnx.values import put_values
from unified_ipu_onnx.writing import save_model
from unified_ipu_torch.objectives import Objective
from unified_ipu_torch.replica import TorchReplica


class OnnxReplica(TorchReplica):
    """Trains the module of a graph; its tensors have the names of the initializers.

    A model given in memory is a copy of what trains: it gets the values when they are written from
    outside, when ``fit`` ends, and on ``close``.

    Args:
        job: Its model is the module.
        source: The model that the module was made from.
        device: Where the module runs; it is moved there.
        deterministic: Whether torch may use deterministic kernels only, until ``close``.
        compute: Type of forward. In half precision torch evaluates too, as it trains.
        is_first: Whether this rank says what its user should know.
        on_close: Is told the module once the replica is closed.

    Raises:
        ConfigError: If model, loss and optimizer cannot be driven together.
    """

    def __init__(
        self,
        job: Job,
        source: LoadedModel,
        device: torch.device,
        *,
        deterministic: bool = False,
        compute: str = "float32",
        is_first: bool = True,
        on_close: Optional[Callable[[GraphModule], None]] = None,
    ) -> None:
        self._module: GraphModule = job.model
        self._source = source
        self._on_close = on_close
        names = self._module.initializer_names
        job = replace(job, trainable=_own_names(job.trainable, names))
        super().__init__(job, device, deterministic=deterministic, compute=compute, own_names=names)
        if compute == "float32":
            self._inference = Inference(
                self._module, source.proto, source.base_dir, is_first=is_first
            )
        self.notes = _notes(self._module)

    def _make_objective(self, job: Job) -> Objective:
        loss = job.loss
        if job.objective is not None or not (loss is None or isinstance(loss, str)):
            if isinstance(loss, losses.OutputLoss) and isinstance(loss.output, str):
                loss_output(loss.output, self._module, self._source.proto)
            return super()._make_objective(job)
        names = self._module.output_names
        has_loss = len(names) == 1 and is_a_loss(self._source.proto, names[0])
        if loss is None and job.optimizer is None and not has_loss:
            return NoLoss()
        output = loss_output(loss, self._module, self._source.proto)
        known = class_loss(self._source.proto, output)
        return GraphLoss(output, known, job, self._source.proto)

    def write(self, tensors: Mapping[str, Any]) -> None:
        """Overwrite the named tensors in place, and in the user's own model."""
        super().write(tensors)
        self._put(tensors)

    def hand_back(self) -> None:
        """Put all weights and running statistics into the user's own model."""
        self._put(self._values())

    def _put(self, names: Mapping[str, Any]) -> None:
        # A file is the user's as it is: export_onnx writes another, or the same.
        if self._source.path is None:
            values = self._values()
            put_values(self._source.proto, {n: v for n, v in values.items() if n in names})

    def _values(self) -> Dict[str, torch.Tensor]:
        tensors = {**dict(self._module.named_parameters()), **dict(self._module.named_buffers())}
        names = self._module.initializer_names
        return {names[own]: tensor for own, tensor in tensors.items() if own in names}

    def export_onnx(self, path: Path) -> None:
        """Write the model with its weights: same names, shapes, types, graph and metadata.

        Args:
            path: Replaced as a whole, or not at all; weights beyond 2 GB lie beside it.

        Raises:
            ConfigError: If it cannot be written there.
        """
        source = self._source
        save_model(source.proto, path, values=self._values(), base_dir=source.base_dir)
        if source.path is not None and path.resolve() == source.path.resolve():
            # Its data may lie elsewhere in the file now.
            self._source = read_model(source.path)

    def close(self) -> None:
        """Let go of the reducer's buffers; the user's model keeps the trained weights."""
        self.hand_back()
        super().close()
        if self._on_close is not None:
            self._on_close(self._module)
            self._on_close = None


def _own_names(trainable: Any, names: Mapping[str, str]) -> Any:
    """``trainable=`` in terms of the module's parameters.

    Raises:
        ConfigError: If a name is no initializer that can be trained.
    """
    if trainable is None:
        return None
    if callable(trainable):
        chosen: Callable[[str], Any] = trainable
        return lambda own: chosen(names.get(own, own))
    own_names = {name: own for own, name in names.items()}
    asked: List[str] = [trainable] if isinstance(trainable, str) else list(trainable)
    for name in asked:
        if name not in own_names:
            raise ConfigError(
                f"trainable= names {name!r}, which is no initializer that can be trained; "
                f"{nearest(str(name), list(own_names))}"
            )
    return [own_names[name] for name in asked]


def _notes(module: GraphModule) -> Tuple[str, ...]:
    notes = []
    if module.coupling:
        notes.append(
            f"batch statistics are those of a micro-batch ({_listed(module.coupling)}): results "
            "depend on batch.micro_batch_size"
        )
    if module.drawing:
        notes.append(
            f"random layers are drawn for a micro-batch ({_listed(module.drawing)}): masks depend "
            "on batch.micro_batch_size, not on the number of replicas"
        )
    if module.frozen:
        notes.append(
            f"not trained, since no initializer holds it or nothing asked for it: "
            f"{_listed(module.frozen)}"
        )
    if module.fallbacks:
        labels = [node.label for node in module.fallbacks]
        notes.append(f"computed by the reference evaluator, slowly: {_listed(labels)}")
    return tuple(notes)


def _listed(names: Sequence[str]) -> str:
    return f"{names[0]!r}" if len(names) == 1 else f"{names[0]!r} and {len(names) - 1} more"
