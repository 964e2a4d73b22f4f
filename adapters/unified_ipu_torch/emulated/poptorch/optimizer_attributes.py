"""An optimizer as the device sees it: its kind, fixed settings, constant and variable attributes.

No Python code of an optimizer ever runs on the device: what is not in a description has no effect.

Source: PopTorch 3.4, ``python/_optimizer_attributes.py``; PopART 3.4,
``willow/src/optimizervalue.cpp`` (what may replace what after compilation).
"""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Set, Tuple

import torch

from unified_ipu_torch.emulated.poptorch import optim
from unified_ipu_torch.emulated.poptorch.enums import MeanReductionStrategy
from unified_ipu_torch.emulated.poptorch.errors import Error, require
from unified_ipu_torch.emulated.poptorch.log import logger
from unified_ipu_torch.emulated.poptorch.optimizer_kinds import (
    OptimizerType as OptimizerType,
    class_of,
    kind_of,
)
from unified_ipu_torch.emulated.poptorch.optimizer_text import describe_graph, describe_group
from unified_ipu_torch.emulated.poptorch.options import Options

Value = Tuple[Any, bool]  # and whether it is a constant of the program


# Group attributes that are constant as long as they have this value, for optimizers of torch.
_CONSTANT_AT = {
    "momentum": 0.0,
    "velocity_scaling": 1.0,
    "dampening": 0.0,
    "eps": 1e-8,
    "max_weight_norm": 65500.0,
    "weight_decay": 0.0,
}
_ALWAYS_CONSTANT = {"alpha", "nesterov", "betas"}
_NOT_SENT = {"amsgrad", "centered"}
_DTYPES = (
    *("accum_type", "velocity_accum_type", "first_order_momentum_accum_type"),
    "second_order_momentum_accum_type",
)


@dataclass(frozen=True)
class OptimizerDescription:
    """All that the device knows of an optimizer.

    Args:
        kind: Which update rule.
        fixed: Settings that never change after compilation: dtypes, clipping, variants.
        loss_scaling: Factor of the loss.
        defaults: Attributes of parameters that are in no group.
        groups: Attributes of each group: ``lr``, ``weight_decay``, ..., ``beta1`` and ``beta2``.
        parameters: Those of each group, as the host has them; no part of a comparison.
    """

    kind: OptimizerType
    fixed: Mapping[str, Any]
    loss_scaling: Value
    defaults: Mapping[str, Value]
    groups: Tuple[Mapping[str, Value], ...]
    parameters: Tuple[Tuple[torch.Tensor, ...], ...] = field(default=(), compare=False, repr=False)


class OptimizerReader:
    """Describes the optimizers that one executor is given.

    Args:
        options: Of the executor; the reduction strategy may be changed before compilation.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._log = logger.debug if options._relax_optimizer_checks else logger.warning
        self._known: Optional[Tuple[Set[str], Set[str]]] = None
        self._said: Set[str] = set()
        self._last: Optional[OptimizerDescription] = None

    def read(
        self, optimizer: torch.optim.Optimizer, compiled: Optional[OptimizerDescription] = None
    ) -> OptimizerDescription:
        """Describe an optimizer.

        Args:
            optimizer: Of torch or of ``poptorch.optim``.
            compiled: What the program was compiled with, or None before that.

        Returns:
            The description.

        Raises:
            AssertionError: If the device has no such optimizer.
            ValueError: If it has no such setting.
            Error: If a constant of the program would change.
        """
        kind = kind_of(optimizer)
        self._choose_strategy(optimizer, is_compiled=compiled is not None)
        constants = _Constants(optimizer, is_automatic=self._is_loss_scale_automatic())
        found = OptimizerDescription(
            kind,
            _fixed(optimizer),
            constants.mark("loss_scaling", getattr(optimizer, "loss_scaling", 1.0)),
            constants.of_group(optimizer.defaults, kind),
            tuple(constants.of_group(group, kind) for group in optimizer.param_groups),
            tuple(tuple(group["params"]) for group in optimizer.param_groups),
        )
        self._warn_of_unknown(optimizer, kind)
        if compiled is not None:
            check_replaceable(compiled, found)
        self._log_changes(found)
        return found

    def _log_changes(self, found: OptimizerDescription) -> None:
        if found == self._last:
            return
        self._last = found
        kind = found.kind.name
        # Apart from the combined variant, the velocity is scaled as the loss is.
        tied = {"velocity_scaling": found.loss_scaling} if found.kind == OptimizerType.SGD2 else {}
        text = describe_graph(kind, found.fixed, {**found.defaults, **tied}, found.loss_scaling)
        logger.debug("Updating %s", text)
        for index, group in enumerate(found.groups):
            logger.debug("Updating %s", describe_group(kind, index, {**group, **tied}))

    def _is_loss_scale_automatic(self) -> bool:
        return bool(self._options._Popart.options.get("automaticLossScalingSettings.enabled"))

    def _choose_strategy(self, optimizer: Any, *, is_compiled: bool) -> None:
        """Sums in half would overflow: then the mean is kept running.

        Raises:
            ValueError: If that comes after compilation.
        """
        is_half = getattr(optimizer, "accum_type", None) == torch.float16
        if not is_half or getattr(optimizer, "use_combined_accum", False):
            return
        training = self._options.Training
        running = MeanReductionStrategy.Running
        if not is_compiled:
            self._options._unfreeze()
            training.setMeanAccumulationAndReplicationReductionStrategy(running)
            self._options._freeze()
        elif training.meanAccumulationAndReplicationReductionStrategy != running:
            raise ValueError(
                "Invalid optimizer: it would require changing options.Training."
                "meanAccumulationAndReplicationReductionStrategy to "
                "poptorch.MeanReductionStrategy.Running but the executable is already compiled."
            )

    def _warn_of_unknown(self, optimizer: Any, kind: OptimizerType) -> None:
        """Say what appeared since the first optimizer; the device would not see it."""
        kept = {"defaults", "state", "param_groups", "variable_attrs", "state_dict"}
        own = [name for name in vars(optimizer) if name not in kept]
        in_groups = [name for g in optimizer.param_groups for name in g if name != "params"]
        if self._known is None:
            self._known = (set(own), {*in_groups, *optimizer.defaults})
            return
        known_own, known_in_groups = self._known
        self._warn("optimizer attribute", [n for n in own if n not in known_own], kind)
        defaults = [name for name in optimizer.defaults if name not in known_in_groups]
        self._warn("default group variable", defaults, kind)
        for index, group in enumerate(optimizer.param_groups):
            new = [name for name in group if name != "params" and name not in known_in_groups]
            self._warn(f"group {index} attribute", new, kind)

    def _warn(self, what: str, names: List[str], kind: OptimizerType) -> None:
        message = f"Ignoring unexpected {what} in {kind.name} optimizer: {names}"
        if names and message not in self._said:
            self._said.add(message)
            self._log(message)


def check_replaceable(compiled: OptimizerDescription, new: OptimizerDescription) -> None:
    """Refuse an optimizer that would change what was compiled in.

    Args:
        compiled: Of the program.
        new: To replace it.

    Raises:
        Error: If the kind, a fixed setting, the number of groups or a constant differs.
    """
    pairs = [("loss_scaling", compiled.loss_scaling, new.loss_scaling)]
    _same("optimizer type", compiled.kind, new.kind)
    _same("number of parameter groups", len(compiled.groups), len(new.groups))
    for name, value in compiled.fixed.items():
        _same(name, value, new.fixed.get(name))
    for before, after in zip(compiled.groups, new.groups):
        pairs += [(name, before[name], after[name]) for name in before if name in after]
    for name, (old_value, was_constant), (value, is_constant) in pairs:
        if was_constant != is_constant:
            words = "constant by non-constant" if was_constant else "non-constant by constant"
            raise Error(f"Optimizer: cannot replace {words} for {name}", "popart_exception")
        if was_constant and old_value != value:
            raise Error(
                f"Optimizer: values of constant {name} do not match, {value} differs from the "
                f"compiled {old_value}; mark it as variable before compilation",
                "popart_exception",
            )


def _same(name: str, old: Any, new: Any) -> None:
    if old != new:
        raise Error(
            f"Optimizer: {name} is compiled in, it cannot change from {old} to {new}",
            "popart_exception",
        )


class _Constants:
    """Decides which attributes are constants of the program."""

    def __init__(self, optimizer: Any, *, is_automatic: bool) -> None:
        self._marked: Optional[optim.VariableAttributes] = getattr(
            optimizer, "variable_attrs", None
        )
        self._is_adamw = isinstance(optimizer, torch.optim.AdamW)
        self._is_automatic = is_automatic
        if self._marked is not None and is_automatic:
            self._marked.markAsVariable("loss_scaling")

    def mark(self, name: str, value: Any) -> Value:
        require(
            isinstance(value, numbers.Number),
            f"Expected a number for {name} but got {value} instead",
        )
        return value, self._is_constant(name, value)

    def of_group(self, group: Mapping[str, Any], kind: OptimizerType) -> Dict[str, Value]:
        if group.get("amsgrad"):
            raise ValueError("Only non-amsgrad Adam/AdamW optimizers are supported.")
        found: Dict[str, Value] = {}
        for name in class_of(kind)._group_vars:
            if name in _NOT_SENT:
                continue
            value = group.get(name, 1.0 if name == "velocity_scaling" else None)
            if name == "velocity_scaling" and kind == OptimizerType.SGD2:
                value = 1.0  # that of the combined variant only; a group that has one is warned of
            require(value is not None, f"Mandatory attribute {name} not found in optimizer group")
            if name == "betas":
                found.update(self._betas(value))
            else:
                found[name] = self.mark(name, value)
        return found

    def _betas(self, value: Any) -> Dict[str, Value]:
        require(
            isinstance(value, tuple) and len(value) == 2,
            f"Expected a pair for betas but got {value} instead",
        )
        is_constant = self._is_constant("betas", value)
        return {f"beta{index + 1}": (beta, is_constant) for index, beta in enumerate(value)}

    def _is_constant(self, name: str, value: Any) -> bool:
        if self._marked is not None:
            return self._marked.isConstant(name)
        if name == "loss_scaling":
            return bool(value == 1.0 and not self._is_automatic)
        if name == "weight_decay" and self._is_adamw:
            return bool(value == 1e-2)
        return name in _ALWAYS_CONSTANT or (name in _CONSTANT_AT and value == _CONSTANT_AT[name])


def _fixed(optimizer: Any) -> Dict[str, Any]:
    found: Dict[str, Any] = {}
    for name in _DTYPES:
        dtype = getattr(optimizer, name, torch.float32)
        if dtype not in {torch.float16, torch.float32}:
            raise ValueError(f"{name} must be torch.float16 or torch.float32, not {dtype}")
        found[name] = dtype
    found["max_grad_norm"] = getattr(optimizer, "max_grad_norm", float("inf"))
    found["use_tf_variant"] = getattr(optimizer, "use_tf_variant", False)
    if math.isnan(found["max_grad_norm"]):
        raise ValueError("max_grad_norm must not be NaN")
    return found
