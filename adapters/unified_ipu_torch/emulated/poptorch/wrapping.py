"""Models whose reads on the host fetch newer weights from a device first.

While a model is wrapped for training its class, and those of its parameters and buffers, are
replaced by subclasses that ask the executor before they answer. Copies and pickles of them are
plain again.

Source: PopTorch 3.4, ``python/_poplar_executor.py`` and ``python/_impl.py``.
"""

from __future__ import annotations

import copy
import copyreg
import itertools
from collections import OrderedDict
from typing import Any, Callable, Dict, Tuple

import torch

from unified_ipu_torch.emulated.poptorch.errors import Error

Fetch = Callable[[], bool]
_WATCHED = ("_buffers", "_parameters", "forward")


_MARK = "_is_poptorch_wrapper"


def is_wrapped(value: Any) -> bool:
    """Whether a model, parameter or buffer is watched."""
    return _MARK in vars(type(value))


def wrap(model: Any, executor: Callable[[], Any]) -> None:
    """Watch a model.

    Args:
        model: The user's.
        executor: Gives the executor, or None once it is gone.

    Raises:
        Error: If a buffer is of a class of the user's.
    """

    def fetch() -> bool:
        owner = executor()
        return bool(owner is not None and owner.copyWeightsToHostIfNeeded())

    parameter_class = _tensor_class("PoptorchParameter", torch.nn.Parameter, fetch)
    buffer_class = _tensor_class("PoptorchBuffer", torch.Tensor, fetch)
    for buffer in model.buffers():
        if type(buffer) is not torch.Tensor:
            raise Error(f"All buffers must be an instance of torch.Tensor (Got {type(buffer)})")
        buffer.__class__ = buffer_class
    for parameter in model.parameters():
        parameter.__class__ = parameter_class
    model.__class__ = _model_class(type(model), executor, fetch)


def unwrap(model: Any) -> None:
    """Give a model and its tensors their own classes back.

    Args:
        model: The user's.

    Raises:
        Error: If it is not wrapped.
    """
    if not is_wrapped(model):
        raise Error("model was never wrapped")
    for tensor in itertools.chain(model.buffers(), model.parameters()):
        _plain(tensor)
    object.__setattr__(model, "__class__", type(model).__bases__[0])


def _plain(tensor: Any) -> None:
    if is_wrapped(tensor):
        tensor.__class__ = type(tensor).__bases__[0]


def _tensor_class(name: str, kind: type, fetch: Fetch) -> type:
    """A class of tensors whose newer value may be on a device."""
    members = {
        _MARK: True,
        "_fetch": staticmethod(fetch),
        "__getattribute__": _read_tensor,
        "__torch_function__": classmethod(_call_with_tensor),
        "__deepcopy__": _deepcopy_tensor,
        "__reduce_ex__": _reduce_tensor,
    }
    return type(name, (kind,), members)


def _read_tensor(self: Any, name: str) -> Any:
    type(self)._fetch()
    return object.__getattribute__(self, name)


def _call_with_tensor(
    cls: Any, func: Any, types: Any, args: Tuple[Any, ...] = (), kwargs: Any = None
) -> Any:
    cls._fetch()
    return torch._C._disabled_torch_function_impl(func, types, args, kwargs or {})


def _deepcopy_tensor(self: Any, memo: Dict[int, Any]) -> Any:
    found = memo[id(self)] = copy.deepcopy(plain_tensor(self))
    return found


def _reduce_tensor(self: Any, protocol: Any) -> Any:
    plain: Any = plain_tensor(self)
    return plain.__reduce_ex__(protocol)


def plain_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as an ordinary tensor; a parameter stays a parameter."""
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(tensor.data, tensor.requires_grad)
    return tensor.detach().as_subclass(torch.Tensor)


def _model_class(kind: type, executor: Callable[[], Any], fetch: Fetch) -> type:
    """A class of models whose newer weights may be on a device."""
    members = {
        _MARK: True,
        "_fetch": staticmethod(fetch),
        "_executor": staticmethod(executor),
        "copyWeightsToHostIfNeeded": _fetch_of_model,
        "destroy": _destroy_model,
        "__getattribute__": _read_model,
        "state_dict": _state_of_model,
        "__reduce_ex__": _reduce_model,
    }
    return type(f"Poptorch{kind.__name__}", (kind,), members)


def _fetch_of_model(self: Any) -> bool:
    """Fetch newer weights from the device; whether there were any."""
    return bool(type(self)._fetch())


def _destroy_model(self: Any) -> None:
    """Give up the program and unwrap the model."""
    owner = type(self)._executor()
    if owner is not None:
        owner.destroy()


def _read_model(self: Any, name: str) -> Any:
    if name == "_host_weights_version":
        owner = type(self)._executor()
        return None if owner is None else owner._host_weights_version
    if name in _WATCHED:
        type(self)._fetch()
    return object.__getattribute__(self, name)


def _state_of_model(self: Any, *args: Any, **kwargs: Any) -> Any:
    """The state, with tensors that can be loaded where there is no PopTorch."""
    kind: Any = type(self).__bases__[0]
    return _plain_state(kind.state_dict(self, *args, **kwargs))


def _reduce_model(self: Any, _: Any) -> Any:
    """As ``object`` does it, but into the user's class; nothing of ours is needed to load it."""
    state = dict(object.__getattribute__(self, "__dict__"))
    return copyreg._reconstructor, (type(self).__bases__[0], object, None), state  # type: ignore[attr-defined]  # as pickle


def _plain_state(state: Any) -> Any:
    found: OrderedDict[str, Any] = OrderedDict()
    known: Dict[int, Any] = {}
    for name, value in state.items():
        if id(value) not in known:
            known[id(value)] = plain_tensor(value) if is_wrapped(value) else copy.copy(value)
        found[name] = known[id(value)]
    if hasattr(state, "_metadata"):
        found._metadata = state._metadata  # type: ignore[attr-defined]  # as torch does
    return found
