"""``trainingModel`` and ``inferenceModel``.

Source: PopTorch 3.4, ``python/__init__.py``.
"""

from __future__ import annotations

import copy
from typing import Any, NoReturn, Optional, Union

import torch

from unified_ipu_torch.emulated.poptorch.errors import absent
from unified_ipu_torch.emulated.poptorch.executor import PoplarExecutor
from unified_ipu_torch.emulated.poptorch.options import Options
from unified_ipu_torch.emulated.poptorch.wrapping import is_wrapped

Model = Union[torch.nn.Module, PoplarExecutor]


def trainingModel(
    model: Model,
    options: Optional[Options] = None,
    optimizer: Optional[torch.optim.Optimizer] = None,
) -> PoplarExecutor:
    """Wrap a model for training; whether its modules train has to be set before.

    Args:
        model: Returns, or computes, one loss.
        options: How it is run; frozen from now on.
        optimizer: Of torch or ``poptorch.optim``; None means SGD with a learning rate of 0.01.

    Returns:
        The executor to call instead of the model.

    Raises:
        RuntimeError: If the model is wrapped for training already.
    """
    user_model = _user_model(model)
    if is_wrapped(user_model):
        raise RuntimeError(
            "Model has already been wrapped in 'poptorch.trainingModel'. Call model.destroy() on "
            "the model to unwrap before wrapping again."
        )
    return PoplarExecutor(copy.copy(user_model), options, True, optimizer, user_model)


def inferenceModel(model: Model, options: Optional[Options] = None) -> PoplarExecutor:
    """Wrap a model for inference; it shares weights with a training of the same model.

    Args:
        model: The model.
        options: How it is run; frozen from now on.

    Returns:
        The executor to call instead of the model.
    """
    user_model = _user_model(model)
    return PoplarExecutor(copy.copy(user_model), options, False, None, user_model)


def load(*_: Any, **__: Any) -> NoReturn:
    """Refused: the emulation writes no compiled programs."""
    absent("load", "compiled programs are not written to files; compile again")


def _user_model(model: Model) -> torch.nn.Module:
    return model._user_model if isinstance(model, PoplarExecutor) else model
