"""A torch model as an ONNX file. The work is the ONNX adapter's; here is what it cannot know.

An exporter runs the model once, so it must know how the model is called. That is noted down when it
is called for the first time, by whatever the loss or objective does.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Optional, Tuple

import torch

from unified_ipu.adapter import load_adapter, map_tree
from unified_ipu.errors import AdapterNotFoundError, CapabilityError, ConfigError
from unified_ipu_torch.errors import NAME


@dataclass(frozen=True)
class TensorLike:
    """Shape and type of a tensor that a model was called with.

    Args:
        shape: With the rows of that call.
        dtype: Of the elements.
    """

    shape: Tuple[int, ...]
    dtype: torch.dtype


class FirstCall:
    """Notes how a model is called, once; then it is gone from the model.

    Args:
        model: Watched until it is called.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self.args: Optional[Tuple[Any, ...]] = None
        """Positional arguments, with a ``TensorLike`` for each tensor; None before the call."""
        self.kwargs: Dict[str, Any] = {}
        """Keyword arguments, likewise."""
        self._hook: Any = None
        if not isinstance(model, torch.jit.ScriptModule):  # it takes no Python hooks
            self._hook = model.register_forward_pre_hook(self._note, with_kwargs=True)

    def _note(self, module: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> None:
        del module
        self.args = map_tree(tuple(args), _like)
        self.kwargs = map_tree(kwargs, _like)
        self.forget()

    def forget(self) -> None:
        """Stop watching."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None


def _like(leaf: Any) -> Any:
    return TensorLike(tuple(leaf.shape), leaf.dtype) if isinstance(leaf, torch.Tensor) else leaf


def export_onnx(model: torch.nn.Module, call: FirstCall, path: Path) -> None:
    """Write a model through the ONNX adapter.

    Args:
        model: In its present state, which does not change.
        call: How it was called.
        path: An existing file is replaced.

    Raises:
        ConfigError: If the model was never called, so that nobody knows its inputs.
        CapabilityError: If the ONNX adapter is not installed, or torch cannot export the model.
    """
    if isinstance(model, torch.jit.ScriptModule):
        raise CapabilityError(NAME, "a scripted model is not exported; compile the module itself")
    if call.args is None:
        raise ConfigError(
            "the model was not called yet, so its inputs are not known; run a step, evaluate or "
            "predict before export_onnx"
        )
    try:
        exporter: Any = load_adapter("onnx")
    except AdapterNotFoundError as error:
        raise CapabilityError(NAME, "export to ONNX needs the package unified_ipu_onnx") from error
    exporter.export_torch(model, call.args, call.kwargs, path)
