"""State of optimizer and scheduler that is no tensor of a parameter, in and out as JSON values."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Tuple

import torch

from unified_ipu.errors import ConfigError
from unified_ipu_torch.plain_values import from_plain, to_plain

# How a step is computed, not what: the optimizer that is there decides.
_IMPLEMENTATION = {"params", "foreach", "fused", "capturable", "differentiable"}


class TrainingState:
    """Groups of an optimizer, what it keeps a parameter beside tensors, and the scheduler.

    Args:
        optimizer: The native one, or None.
        schedule: The native scheduler, or None.
        trained: Trained parameters by name.
    """

    def __init__(
        self,
        optimizer: Optional[torch.optim.Optimizer],
        schedule: Any,
        trained: Mapping[str, torch.nn.Parameter],
    ) -> None:
        self._optimizer = optimizer
        self._schedule = schedule
        self._trained = dict(trained)

    def scalars(self) -> Dict[str, Any]:
        """``optimizer`` and ``schedule``, each with its kind; empty without them.

        Raises:
            ConfigError: If part of the state is neither a tensor of a parameter nor plain.
        """
        found: Dict[str, Any] = {}
        if self._optimizer is not None:
            self._check_state_of_parameters_only(self._optimizer)
            found["optimizer"] = {
                "kind": type(self._optimizer).__qualname__,
                "groups": [
                    {"parameters": names, **self._settings(group)}
                    for names, group in self._groups(self._optimizer)
                ],
                "slots": self._plain_slots(self._optimizer),
            }
        if self._schedule is not None:
            kind = type(self._schedule).__qualname__
            found["schedule_kind"] = kind
            found["schedule"] = to_plain(self._schedule.state_dict(), f"the scheduler {kind}")
        return found

    def load_scalars(self, scalars: Mapping[str, Any]) -> None:
        """Take over what ``scalars`` gave.

        Raises:
            ConfigError: If it is of another optimizer or scheduler, or of other groups; nothing
                is changed then.
        """
        self._check_fits(scalars)
        if self._optimizer is not None:
            saved = scalars["optimizer"]
            for group, settings in zip(self._optimizer.param_groups, saved["groups"]):
                for key, value in settings.items():
                    if key != "parameters":
                        _set(group, key, from_plain(value))
            for name, values in saved["slots"].items():
                state = self._optimizer.state[self._trained[name]]
                state.update({key: from_plain(value) for key, value in values.items()})
        if self._schedule is not None:
            self._schedule.load_state_dict(from_plain(scalars["schedule"]))

    def forget_slots(self) -> None:
        """Drop the tensors of every parameter's state."""
        if self._optimizer is None:
            return
        for parameter in self._trained.values():
            state = self._optimizer.state.get(parameter, {})
            for key in [key for key, value in state.items() if isinstance(value, torch.Tensor)]:
                del state[key]
            if not state:
                self._optimizer.state.pop(parameter, None)

    def _groups(self, optimizer: torch.optim.Optimizer) -> List[Tuple[List[str], Dict[str, Any]]]:
        names = {id(parameter): name for name, parameter in self._trained.items()}
        return [
            ([names[id(p)] for p in group["params"] if id(p) in names], group)
            for group in optimizer.param_groups
        ]

    def _settings(self, group: Mapping[str, Any]) -> Dict[str, Any]:
        return {
            key: to_plain(value, f"the optimizer's setting {key!r}")
            for key, value in group.items()
            if key not in _IMPLEMENTATION and key != "param_names"
        }

    def _plain_slots(self, optimizer: torch.optim.Optimizer) -> Dict[str, Dict[str, Any]]:
        kind = type(optimizer).__qualname__
        found: Dict[str, Dict[str, Any]] = {}
        for name, parameter in self._trained.items():
            values = {
                key: to_plain(value, f"{kind}'s state {key!r} of {name!r}")
                for key, value in optimizer.state.get(parameter, {}).items()
                if value is not None and not isinstance(value, torch.Tensor)
            }
            if values:
                found[name] = values
        return found

    def _check_state_of_parameters_only(self, optimizer: torch.optim.Optimizer) -> None:
        known = {id(p) for group in optimizer.param_groups for p in group["params"]}
        others = [key for key in optimizer.state if id(key) not in known]
        if others:
            raise ConfigError(
                f"{type(optimizer).__qualname__} keeps state that belongs to no parameter, "
                f"{[str(key)[:40] for key in others[:3]]}; such an optimizer cannot be saved: use "
                "one that keeps tensors a parameter, as Adam, AdamW, SGD, RMSprop and Adagrad do"
            )

    def _check_fits(self, scalars: Mapping[str, Any]) -> None:
        saved = scalars.get("optimizer")
        _check_kind("optimizer", saved and saved["kind"], self._optimizer)
        _check_kind("scheduler", scalars.get("schedule_kind"), self._schedule)
        if self._optimizer is None or saved is None:
            return
        now = [names for names, _ in self._groups(self._optimizer)]
        before = [group["parameters"] for group in saved["groups"]]
        if now != before:
            raise ConfigError(
                "the saved optimizer trains other parameters or other groups of them; saved: "
                f"{_shown(before)}; here: {_shown(now)}"
            )
        strangers = [name for name in saved["slots"] if name not in self._trained]
        if strangers:
            raise ConfigError(f"the saved optimizer has state of {strangers}, not trained here")


def _check_kind(what: str, saved: Optional[str], now: Any) -> None:
    own = None if now is None else type(now).__qualname__
    if saved != own:
        raise ConfigError(
            f"the state was saved with {what} {saved}, this program has {own}; compile it with "
            "the same one"
        )


def _set(group: Dict[str, Any], key: str, value: Any) -> None:
    now = group.get(key)
    if isinstance(now, torch.Tensor):
        now.fill_(float(value))  # compiled steps and schedulers hold this very tensor
    else:
        group[key] = value


def _shown(groups: List[List[str]]) -> str:
    return "; ".join(", ".join(names[:6]) + (", ..." if names[6:] else "") for names in groups)
