"""The named tensors of a model and its optimizer: what there is, copies out, values in."""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

import numpy as np
import torch
from torch.nn.modules.batchnorm import _NormBase

from unified_ipu.adapter import TensorSpec, nearest
from unified_ipu.errors import ConfigError
from unified_ipu_torch.batches import alias


class Catalog:
    """Canonical names over a live model; buffers are looked up anew, since models reassign them.

    Args:
        model: The user's.
        trained: Its trained parameters by native name, in order of definition.
        optimizer: The native optimizer, or None.
        own_names: Torch's name to the name everybody else knows, where they differ.

    Raises:
        ConfigError: If ``own_names`` names what the model does not have, or one name twice.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        *,
        trained: Mapping[str, torch.nn.Parameter],
        optimizer: Optional[torch.optim.Optimizer],
        own_names: Optional[Mapping[str, str]] = None,
    ) -> None:
        self._model = model
        self._trained = dict(trained)
        self._optimizer = optimizer
        self._names = dict(own_names or {})
        self._check_names()

    def specs(self) -> List[TensorSpec]:
        """Parameters, buffers and slots that exist now, in that order."""
        return [*self._parameter_specs(), *self._buffer_specs(), *self._slot_specs()]

    def read(self, names: Sequence[str]) -> Dict[str, Any]:
        """Copies as numpy arrays; bfloat16, which numpy lacks, comes as float32."""
        live = self._live()
        found = {}
        for name in names:
            tensor = self._find(live, name).detach().cpu()
            tensor = tensor.float() if tensor.dtype == torch.bfloat16 else tensor
            found[name] = np.array(tensor.numpy(), order="C")
        return found

    def write(self, tensors: Mapping[str, Any]) -> None:
        """Overwrite in place; a slot that does not exist yet is made.

        Raises:
            ConfigError: If a name or a shape does not fit; nothing is written then.
        """
        live = self._live()
        pairs: List[Tuple[torch.Tensor, torch.Tensor]] = []
        fresh: List[Tuple[torch.nn.Parameter, str, torch.Tensor]] = []
        for name, array in tensors.items():
            value = alias(np.asarray(array))
            owner = self._slot_owner(name) if name not in live else None
            if owner is not None:
                fresh.append((owner, name.rpartition("/")[2], value))
                continue
            target = self._find(live, name)
            if target.shape != value.shape:
                raise ConfigError(
                    f"tensor {name!r} has shape {list(target.shape)}, got {list(value.shape)}; "
                    "write arrays of the model's own shapes"
                )
            pairs.append((target, value))
        with torch.no_grad():
            for target, value in pairs:
                target.copy_(value)
        for parameter, slot, value in fresh:
            self._make_slot(parameter, slot, value)

    def _check_names(self) -> None:
        known = [name for name, _ in self._named_parameters()]
        known += [name for name, _ in self._persistent_buffers()]
        for name in self._names:
            if name not in known:
                raise ConfigError(f"own_names has {name!r}, unknown here; {nearest(name, known)}")
        after = [self._canonical(name) for name in known]
        twice = sorted({name for name in after if after.count(name) > 1})
        if twice:
            raise ConfigError(f"own_names gives {twice[0]!r} to two tensors; names must differ")

    def _canonical(self, name: str) -> str:
        return self._names.get(name, name)

    def _parameter_specs(self) -> Iterator[TensorSpec]:
        first: Dict[int, str] = {}
        trained = {id(parameter) for parameter in self._trained.values()}
        for native, parameter in self._named_parameters():
            name = self._canonical(native)
            tied_to = first.get(id(parameter))
            first.setdefault(id(parameter), name)
            yield TensorSpec(
                name=name,
                shape=tuple(parameter.shape),
                dtype=dtype_name(parameter),
                trainable=id(parameter) in trained,
                tied_to=tied_to,
            )

    def _buffer_specs(self) -> Iterator[TensorSpec]:
        averaged = {
            plain_name(f"{prefix}.{name}" if prefix else name)
            for prefix, module in self._model.named_modules(remove_duplicate=False)
            for name in _running_statistics(module)
        }
        first: Dict[int, str] = {}
        for native, buffer in self._persistent_buffers():
            name = self._canonical(native)
            tied_to = first.get(id(buffer))
            first.setdefault(id(buffer), name)
            yield TensorSpec(
                name=name,
                shape=tuple(buffer.shape),
                dtype=dtype_name(buffer),
                role="buffer",
                trainable=False,
                tied_to=tied_to,
                sync="mean" if native in averaged else "first",
            )

    def _slot_specs(self) -> Iterator[TensorSpec]:
        for name, slot in self._slots():
            yield TensorSpec(
                name=name,
                shape=tuple(slot.shape),
                dtype=dtype_name(slot),
                role="slot",
                trainable=False,
            )

    def _named_parameters(self) -> Iterator[Tuple[str, torch.nn.Parameter]]:
        for name, parameter in self._model.named_parameters(remove_duplicate=False):
            yield plain_name(name), parameter

    def _persistent_buffers(self) -> List[Tuple[str, torch.Tensor]]:
        # What state_dict holds: a file of these tensors loads with load_state_dict.
        return [
            (plain_name(f"{prefix}.{name}" if prefix else name), buffer)
            for prefix, module in self._model.named_modules(remove_duplicate=False)
            for name, buffer in module.named_buffers(recurse=False)
            if name not in module._non_persistent_buffers_set  # noqa: SLF001 torch has no other way
        ]

    def _slots(self) -> Iterator[Tuple[str, torch.Tensor]]:
        if self._optimizer is None:
            return
        for native, parameter in self._trained.items():
            for slot, value in self._optimizer.state.get(parameter, {}).items():
                if isinstance(value, torch.Tensor):
                    yield f"{self._canonical(native)}/{slot}", value

    def _live(self) -> Dict[str, torch.Tensor]:
        live: Dict[str, torch.Tensor] = {
            self._canonical(name): parameter for name, parameter in self._named_parameters()
        }
        live.update((self._canonical(name), b) for name, b in self._persistent_buffers())
        live.update(self._slots())
        return live

    def _find(self, live: Mapping[str, torch.Tensor], name: str) -> torch.Tensor:
        if name not in live:
            raise ConfigError(f"there is no tensor {name!r}; {nearest(name, list(live))}")
        return live[name]

    def _slot_owner(self, name: str) -> Optional[torch.nn.Parameter]:
        if self._optimizer is None:
            return None
        owner = name.rpartition("/")[0]
        for native, parameter in self._trained.items():
            if self._canonical(native) == owner:
                return parameter
        return None

    def _make_slot(self, parameter: torch.nn.Parameter, slot: str, value: torch.Tensor) -> None:
        if self._optimizer is None:
            return
        group = next(
            group
            for group in self._optimizer.param_groups
            if any(p is parameter for p in group["params"])
        )
        if value.shape == parameter.shape:
            made = torch.empty_like(parameter, dtype=value.dtype, requires_grad=False)
            made.copy_(value)
        else:
            # As load_state_dict of torch: counters stay on the host unless the kernel reads them.
            on_device = group.get("capturable") or group.get("fused")
            made = value.clone().to(parameter.device if on_device else "cpu")
        self._optimizer.state[parameter][slot] = made


def _running_statistics(module: torch.nn.Module) -> Sequence[str]:
    """Buffers of a layer that move by averages over a micro-batch; layers of others name theirs."""
    if getattr(module, "holds_collectives", False):
        return ()
    if isinstance(module, _NormBase):
        return ("running_mean", "running_var")
    return tuple(getattr(module, "running_statistics", ()))


def plain_name(name: str) -> str:
    """Name without what ``torch.compile`` puts in: a compiled model has the names of the plain."""
    return ".".join(part for part in name.split(".") if part != "_orig_mod")


def dtype_name(tensor: torch.Tensor) -> str:
    """Name of the element type without ``torch.``."""
    return str(tensor.dtype).partition(".")[2]
