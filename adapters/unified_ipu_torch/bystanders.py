"""Parameters of a model that a program does not train, watched so that none of them drifts."""

from __future__ import annotations

from typing import Mapping, Optional

import torch

from unified_ipu.errors import ConfigError


class Bystanders:
    """Drops what backward leaves on parameters of other programs, and finds late changes.

    A gradient on a parameter that was frozen at compile would reach the optimizer without having
    been reduced over replicas, and the ranks would drift apart.

    Args:
        parameters: All of the model by name.
        trained: Those that the program trains.
        optimizer: The native one, or None.
    """

    def __init__(
        self,
        parameters: Mapping[str, torch.nn.Parameter],
        trained: Mapping[str, torch.nn.Parameter],
        optimizer: Optional[torch.optim.Optimizer],
    ) -> None:
        self._optimizer = optimizer
        driven = set()
        if optimizer is not None:
            driven = {id(p) for group in optimizer.param_groups for p in group["params"]}
        rest = {name: p for name, p in parameters.items() if name not in trained}
        self._outside = [p for p in rest.values() if id(p) not in driven]
        self._frozen = {name: p for name, p in rest.items() if id(p) in driven}
        for parameter in self._frozen.values():
            parameter.grad = None  # of the user's, before
        self._num_groups = 0 if optimizer is None else len(optimizer.param_groups)

    def clear(self) -> None:
        """Drop gradients that are not this program's; called once an update.

        Raises:
            ConfigError: If a parameter of the optimizer has a gradient that nobody reduced.
        """
        for parameter in self._outside:
            if parameter.grad is not None:
                parameter.grad = None
        for name, parameter in self._frozen.items():
            if parameter.grad is not None:
                raise ConfigError(
                    f"parameter {name!r} needed no gradient when the program was compiled, and "
                    "has one now; compile again after unfreezing it, or compile first and freeze "
                    "it afterwards"
                )
        if self._optimizer is not None and len(self._optimizer.param_groups) != self._num_groups:
            raise ConfigError(
                f"the optimizer had {self._num_groups} parameter group(s) when the program was "
                f"compiled and has {len(self._optimizer.param_groups)} now; compile again after "
                "add_param_group"
            )
