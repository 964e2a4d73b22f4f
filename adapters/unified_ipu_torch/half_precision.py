"""Forward in half precision by torch's own autocast; weights, losses and results in float32."""

from __future__ import annotations

import copy
import warnings
from typing import Any, Mapping, Optional

import torch

from unified_ipu.adapter import Tree
from unified_ipu.errors import CapabilityError, ConfigError
from unified_ipu_torch.batches import Batch, call_model
from unified_ipu_torch.errors import NAME
from unified_ipu_torch.objectives import KnownObjective, Objective, OpaqueObjective, Score

_HALF = (torch.float16, torch.bfloat16)


class HalfPrecision:
    """Which type forward runs in, on which kind of device.

    Args:
        compute: ``"bfloat16"`` or ``"float16"``.
        device: Where the model is.

    Raises:
        CapabilityError: If this torch has no autocast to that type there.
    """

    def __init__(self, compute: str, device: torch.device) -> None:
        self._compute = compute
        self._dtype: torch.dtype = getattr(torch, compute)
        self._device = device
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an autocast that is not there warns and does nothing
            with self.autocast():
                one = torch.ones((1, 1), device=device)
                works = torch.mm(one, one).dtype is self._dtype
        if not works:
            raise CapabilityError(
                NAME,
                f"torch {torch.__version__} has no autocast to {compute} on {device.type}; set "
                'precision.compute = "bfloat16" or "float32", or take a later torch',
            )

    def autocast(self) -> Any:
        """A context in which torch chooses the type of each operation by its own rules."""
        return torch.autocast(self._device.type, dtype=self._dtype)

    def call(self, model: Any, x: Any) -> Any:
        """Call a model on the inputs of a batch; outputs in half precision come as float32."""
        with self.autocast():
            return widened(call_model(model, x))

    def check(self, parameters: Mapping[str, torch.nn.Parameter]) -> None:
        """Refuse master weights that autocast leaves as they are.

        Raises:
            ConfigError: If a trained parameter is not in float32.
        """
        for name, parameter in parameters.items():
            if parameter.dtype is not torch.float32:
                raise ConfigError(
                    f"parameter {name!r} has dtype {parameter.dtype}; precision.compute = "
                    f'"{self._compute}" keeps master weights in float32: build the model in '
                    'float32, or set precision.compute = "float32"'
                )


class HalfObjective:
    """An objective whose forward runs in half precision.

    Losses that get a model's outputs get them in float32 and run outside autocast. Where the model
    or the user computes the loss, all of it runs under autocast.

    Args:
        objective: What it is in full precision.
        half: The type.
    """

    def __init__(self, objective: Objective, half: HalfPrecision) -> None:
        self._objective = objective
        self._half = half
        self._is_split = isinstance(objective, (KnownObjective, OpaqueObjective))

    @property
    def counts_rows(self) -> bool:
        """As the objective says."""
        return self._objective.counts_rows

    def weight_before(self, batch: Batch) -> Optional[float]:
        """As the objective says."""
        return self._objective.weight_before(batch)

    def score(self, model: Any, batch: Batch, weight: Optional[float]) -> Score:
        """Run forward; S is float32, so that the loss scale fits in the seed of backward."""
        if self._is_split:
            called: Any = _HalfModel(model, self._half)
            score = self._objective.score(called, batch, weight)
        else:
            with self._half.autocast():
                score = self._objective.score(model, batch, weight)
        return score._replace(value=widened(score.value), outputs=widened(score.outputs))

    def reach(self, model: Any, tree: Tree) -> Any:
        """As the objective does, under autocast."""
        with self._half.autocast():
            return self._objective.reach(model, tree)


class _HalfModel:
    """What a loss sees of a model: a call, with outputs in float32."""

    def __init__(self, model: Any, half: HalfPrecision) -> None:
        self._model = model
        self._half = half

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with self._half.autocast():
            return widened(self._model(*args, **kwargs))


def widened(tree: Any) -> Any:
    """The same tree with float32 in the place of half precision; other objects stay."""
    if isinstance(tree, torch.Tensor):
        return tree.float() if tree.dtype in _HALF else tree
    if isinstance(tree, dict):
        wide = {key: widened(child) for key, child in tree.items()}
        return _with_items(tree, wide) if any(wide[key] is not tree[key] for key in tree) else tree
    if isinstance(tree, (tuple, list)):
        children = [widened(child) for child in tree]
        if all(wide is child for wide, child in zip(children, tree)):
            return tree
        return type(tree)(*children) if hasattr(tree, "_fields") else type(tree)(children)
    return tree


def _with_items(tree: Any, items: Mapping[Any, Any]) -> Any:
    found = copy.copy(tree)  # of its own class, which may give its items as attributes too
    for key, item in items.items():
        found[key] = item
    return found
