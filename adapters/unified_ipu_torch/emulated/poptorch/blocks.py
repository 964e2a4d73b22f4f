"""Blocks: which layers run on which IPU.

On the host they do nothing. While a model is captured they tell the execution strategy, and the
sequence is checked; what is computed is the same.

Source: PopTorch 3.4, ``python/ops.py``.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from typing import Any, Callable, Optional

import torch

from unified_ipu_torch.emulated.poptorch.context import current_run
from unified_ipu_torch.emulated.poptorch.errors import Error, require
from unified_ipu_torch.emulated.poptorch.strategies import current_manager


def _begin(user_id: Optional[str], ipu_id: Optional[int]) -> None:
    manager, run = current_manager(), current_run()
    if manager is not None and run is not None and run.placement is not None:
        run.placement.begin(manager.beginStage(user_id, ipu_id))


class Block(torch.nn.Module):
    """Layers called inside of it run on one IPU.

    Args:
        user_id: Name of the block; blocks of the same name are one.
        ipu_id: Index of the IPU inside this model's device.
    """

    def __init__(self, user_id: Optional[str] = None, ipu_id: Optional[int] = None) -> None:
        super().__init__()
        self._user_id = user_id
        self._ipu_id = ipu_id

    @staticmethod
    def useAutoId() -> None:
        """Number the blocks without a name from "0" on; called at the top of ``forward``."""
        manager = current_manager()
        if manager is not None:
            manager.resetAutoId()

    @staticmethod
    def start(user_id: Optional[str] = None, ipu_id: Optional[int] = None) -> None:
        """Begin a block that lasts until the next one begins."""
        _begin(user_id, ipu_id)

    def __enter__(self) -> None:
        _begin(self._user_id, self._ipu_id)

    def __exit__(self, *_: object) -> None:
        run = current_run()
        if run is not None and run.placement is not None:
            run.placement.end()


class _BlockHook:
    """Begins a block before a module runs.

    Args:
        user_id: Name of the block.
        ipu_id: Its IPU.
    """

    def __init__(self, user_id: Optional[str], ipu_id: Optional[int]) -> None:
        self._user_id = user_id
        self._ipu_id = ipu_id

    def __call__(self, *_: Any) -> None:
        manager = current_manager()
        if manager is not None and self._user_id is None:
            self._user_id = manager.nextAutoId()
        _begin(self._user_id, self._ipu_id)

    def __repr__(self) -> str:
        return f"BeginBlock(user_id={self._user_id}, ipu_id={self._ipu_id})"


def block_of(module: torch.nn.Module) -> str:
    """The block that a module begins, as text; empty if none."""
    hooks = [repr(h) for h in module._forward_pre_hooks.values() if isinstance(h, _BlockHook)]
    return " ".join(hooks)


class LegacyBeginBlockFn(torch.nn.Module):
    """A callable that is no module, in a block of its own.

    Args:
        layer_to_call: The callable.
        user_id: Name of the block.
        ipu_id: Its IPU.
    """

    def __init__(
        self, layer_to_call: Any, user_id: Optional[str] = None, ipu_id: Optional[int] = None
    ) -> None:
        super().__init__()
        self._layer_to_call = layer_to_call
        self._user_id = user_id
        self._ipu_id = ipu_id

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Begin the block, call."""
        manager = current_manager()
        if manager is not None and self._user_id is None:
            self._user_id = manager.nextAutoId()
        _begin(self._user_id, self._ipu_id)
        return self._layer_to_call(*args, **kwargs)


def BeginBlock(
    layer_to_call: Any, user_id: Optional[str] = None, ipu_id: Optional[int] = None
) -> Any:
    """Begin a block whenever a module is called.

    Args:
        layer_to_call: A module, which is changed in place; or a callable, which is wrapped.
        user_id: Name of the block.
        ipu_id: Index of the IPU inside this model's device.

    Returns:
        The module itself, or the wrapper.

    Raises:
        Error: If it is neither, or the module is in a block already.
    """
    if not isinstance(layer_to_call, torch.nn.Module):
        if callable(layer_to_call):
            return LegacyBeginBlockFn(layer_to_call, user_id, ipu_id)
        raise Error("module is not an instance of torch.nn.Module or function.")
    hooks = layer_to_call._forward_pre_hooks
    if any(isinstance(hook, _BlockHook) for hook in hooks.values()):
        raise Error("module has already been assigned to a block.")
    layer_to_call.register_forward_pre_hook(_BlockHook(user_id, ipu_id))
    return layer_to_call


def removeBlocks(module: Any) -> None:
    """Take the blocks of ``BeginBlock`` off a module and all modules inside of it.

    Args:
        module: The module.
    """
    require(isinstance(module, torch.nn.Module), f"expected a torch.nn.Module, got {type(module)}")
    for inner in module.modules():
        kept = [
            item for item in inner._forward_pre_hooks.items() if not isinstance(item[1], _BlockHook)
        ]
        inner._forward_pre_hooks = OrderedDict(kept)


def BlockFunction(
    user_id: Optional[str] = None, ipu_id: Optional[int] = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make a function a block.

    Args:
        user_id: Name of the block.
        ipu_id: Index of the IPU inside this model's device.

    Returns:
        A decorator.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with Block(user_id, ipu_id):
                return function(*args, **kwargs)

        return wrapper

    return decorate
