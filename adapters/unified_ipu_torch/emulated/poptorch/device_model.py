"""A user's model as a program holds it: attributes as they were captured, tensors of its own.

A device program has nothing of the host: weights and buffers live on the device, everything else
was compiled in. So while a micro-batch runs, each module of the user's model shows the attributes
that it had when it was captured and the device's tensors; afterwards it has its own back, and what
the pass assigned is gone. Modules are kept rather than copied, since users call them by closures.

A tensor that is an attribute but no buffer is a constant of the program: each pass gets a new copy.
"""

from __future__ import annotations

import copy
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

import torch

from unified_ipu_torch.emulated.poptorch.errors import Error

# Their buffers may be replaced in forward; PopTorch lets these modules pass too.
BUFFERS_MAY_CHANGE = (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d, torch.nn.BatchNorm3d)

Attributes = Dict[str, Any]


def attributes_of(module: Any) -> Attributes:
    """The ``__dict__`` of a module, without waking whatever watches the access."""
    found: Attributes = object.__getattribute__(module, "__dict__")
    return found


class DeviceModel:
    """The tensors of a program, and the modules that show them while it runs.

    Args:
        model: A shallow copy of the user's, so that no class of it is watched.
        replicas: Each gets buffers of its own; weights are the same on all of them.
    """

    def __init__(self, model: Any, replicas: int) -> None:
        self._model = model
        self._modules = [module for _, module in _named_modules(model)]
        self._frozen = [_snapshot(attributes_of(module)) for module in self._modules]
        self._host: List[Attributes] = []
        self._names = _Names(model, self._modules)
        self.parameters: Dict[str, torch.nn.Parameter] = {
            name: _device_parameter(tensor) for name, tensor in self._names.parameters.items()
        }
        self.buffers: List[Dict[str, torch.Tensor]] = [
            {name: _device_tensor(tensor) for name, tensor in self._names.buffers.items()}
            for _ in range(replicas)
        ]

    def host_parameters(self) -> Dict[str, torch.Tensor]:
        """The weights that the user's model has now."""
        return _Names(self._model, self._modules).parameters

    def host_buffers(self) -> Dict[str, torch.Tensor]:
        """The buffers that the user's model has now."""
        return _Names(self._model, self._modules).buffers

    def to_host(self) -> None:
        """Copy weights, and the buffers of the first replica, to the user's model."""
        with torch.no_grad():
            for name, host in self.host_parameters().items():
                host.copy_(self.parameters[name])
            for name, host in self.host_buffers().items():
                host.copy_(self.buffers[0][name])

    def to_device(self, names: Optional[Sequence[str]] = None) -> None:
        """Copy the user's weights, and buffers to every replica.

        Args:
            names: Only these buffers, and no weights; None takes all.
        """
        with torch.no_grad():
            if names is None:
                for name, host in self.host_parameters().items():
                    self.parameters[name].copy_(host)
            for name, host in self.host_buffers().items():
                if names is None or name in names:
                    for buffers in self.buffers:
                        buffers[name].copy_(host)

    def trained(self) -> Dict[str, torch.nn.Parameter]:
        """The device's weights that get a gradient."""
        return {name: p for name, p in self.parameters.items() if p.requires_grad}

    def enter(self) -> None:
        """Put the host's attributes aside."""
        self._host = [dict(attributes_of(module)) for module in self._modules]

    def show(self, buffers: Dict[str, torch.Tensor]) -> None:
        """Give every module its captured attributes and the device's tensors.

        Args:
            buffers: Of the replica.
        """
        for index, module in enumerate(self._modules):
            self._set(module, _thaw(self._frozen[index]))
            self._install(index, module, buffers)

    def show_host_attributes(self, buffers: Dict[str, torch.Tensor]) -> None:
        """As ``show``, but what the pass assigns stays on the host: the pass that captures."""
        for index, module in enumerate(self._modules):
            own = attributes_of(module)
            own["_parameters"] = copy.copy(own["_parameters"])
            own["_buffers"] = copy.copy(own["_buffers"])
            self._install(index, module, buffers)

    def leave(self, *, keep_assigned: bool) -> None:
        """Give the modules the host's attributes back.

        Args:
            keep_assigned: Whether attributes other than tensors of the state stay as the pass left
                them, which they do once, when it captures.
        """
        for module, host in zip(self._modules, self._host):
            own = attributes_of(module)
            if keep_assigned:
                own["_parameters"], own["_buffers"] = host["_parameters"], host["_buffers"]
            else:
                self._set(module, host)
        self._host = []

    def take_back_buffers(self, buffers: Dict[str, torch.Tensor]) -> None:
        """Keep buffers that a normalisation replaced during the pass."""
        for index, module in enumerate(self._modules):
            if isinstance(module, BUFFERS_MAY_CHANGE):
                for key, name in self._names.buffer_keys[index].items():
                    buffers[name] = attributes_of(module)["_buffers"][key]

    def check_unchanged(self, buffers: Dict[str, torch.Tensor]) -> None:
        """Refuse a pass that replaced or removed a tensor of the state.

        Args:
            buffers: What ``show_host_attributes`` was given.

        Raises:
            Error: Naming the first one.
        """
        for index, module in enumerate(self._modules):
            own = attributes_of(module)
            if not isinstance(module, BUFFERS_MAY_CHANGE):
                _compare("Buffer", self._names.buffer_keys[index], own["_buffers"], buffers)
            keys = self._names.parameter_keys[index]
            _compare("Parameter", keys, own["_parameters"], self.parameters)

    def normalisation_buffers(self) -> List[str]:
        """Names of the buffers that ``take_back_buffers`` looks after."""
        return [
            name
            for index, module in enumerate(self._modules)
            if isinstance(module, BUFFERS_MAY_CHANGE)
            for name in self._names.buffer_keys[index].values()
        ]

    def _install(self, index: int, module: Any, buffers: Dict[str, torch.Tensor]) -> None:
        own = attributes_of(module)
        for key, name in self._names.parameter_keys[index].items():
            own["_parameters"][key] = self.parameters[name]
        for key, name in self._names.buffer_keys[index].items():
            own["_buffers"][key] = buffers[name]

    @staticmethod
    def _set(module: Any, attributes: Attributes) -> None:
        own = attributes_of(module)
        own.clear()
        own.update(attributes)


class _Names:
    """Which name every tensor has; tied tensors share the first one."""

    def __init__(self, model: Any, modules: List[Any]) -> None:
        self.parameters: Dict[str, torch.Tensor] = {}
        self.buffers: Dict[str, torch.Tensor] = {}
        self.parameter_keys: List[Dict[str, str]] = []
        self.buffer_keys: List[Dict[str, str]] = []
        prefixes = {id(module): name for name, module in _named_modules(model)}
        for module in modules:
            own, prefix = attributes_of(module), prefixes[id(module)]
            self.parameter_keys.append(_take(own["_parameters"], prefix, self.parameters))
            self.buffer_keys.append(_take(own["_buffers"], prefix, self.buffers))


def _take(tensors: Dict[str, Any], prefix: str, known: Dict[str, torch.Tensor]) -> Dict[str, str]:
    found = {}
    for key, tensor in tensors.items():
        if tensor is None:
            continue
        tied = next((name for name, other in known.items() if other is tensor), None)
        name = f"{prefix}.{key}" if prefix else key
        found[key] = tied or name
        known.setdefault(found[key], tensor)
    return found


def _named_modules(model: Any) -> Iterator[Tuple[str, Any]]:
    """As ``named_modules``, without waking whatever watches the access."""
    pending: List[Tuple[str, Any]] = [("", model)]
    seen = set()
    while pending:
        name, module = pending.pop(0)
        if id(module) in seen:
            continue
        seen.add(id(module))
        yield name, module
        children = attributes_of(module)["_modules"]
        inner = [
            (f"{name}.{key}" if name else key, child)
            for key, child in children.items()
            if child is not None
        ]
        pending = inner + pending


def _snapshot(attributes: Attributes) -> Attributes:
    kept = dict(attributes)
    for name, value in attributes.items():
        if isinstance(value, torch.Tensor):
            kept[name] = value.detach().clone().requires_grad_(value.requires_grad)
    return _thaw(kept)


def _thaw(frozen: Attributes) -> Attributes:
    """New containers and new constants, so that no pass sees what another assigned."""
    found = dict(frozen)
    for name in ("_parameters", "_buffers", "_modules"):
        found[name] = copy.copy(frozen[name])
    for name, value in frozen.items():
        if isinstance(value, torch.Tensor):
            found[name] = value.clone() if not value.requires_grad else value
        elif type(value) in {list, dict, set} and not name.startswith("_"):
            found[name] = copy.copy(value)
    return found


def device_type(dtype: torch.dtype) -> torch.dtype:
    """What a type of the host becomes on the device, which has no float64 and no bfloat16.

    int64 stays: the device has int32, whose range is checked where values come in.
    """
    return torch.float32 if dtype in {torch.float64, torch.bfloat16} else dtype


def _device_tensor(tensor: torch.Tensor) -> torch.Tensor:
    plain = tensor.detach().as_subclass(torch.Tensor)
    return plain.to(device_type(plain.dtype), copy=True)


def _device_parameter(tensor: torch.Tensor) -> torch.nn.Parameter:
    return torch.nn.Parameter(_device_tensor(tensor), requires_grad=tensor.requires_grad)


def _compare(kind: str, keys: Dict[str, str], shown: Dict[str, Any], given: Dict[str, Any]) -> None:
    for key, name in keys.items():
        if key not in shown:
            raise Error(f"{kind} {name} is removed from the model when calling the forward method.")
        if shown[key] is not given[name]:
            raise Error(
                f"{kind} {name} is reassigned within the model when calling the forward method. "
                f"This is not supported. Consider using self.{name}.copy_(src) to copy data from a "
                "source tensor, where src is the name of the source tensor."
            )
