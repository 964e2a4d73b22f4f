"""What an update does to weights: the formulas of PopART's optimizers, on torch tensors.

Source: the comments of ``willow/include/popart/{sgd,adam}.hpp`` and
``willow/src/transforms/clipweightgradientsbynorm.cpp`` of SDK 3.4. Two of them differ from what
others do: the first velocity is damped too, and with combined momentum the norm that is clipped is
the one of the velocity.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Tuple

import torch

from unified_ipu.device import Fabric
from unified_ipu_onnx.emulated.popart.enums import DataType
from unified_ipu_onnx.emulated.popart.errors import NotEmulatedError
from unified_ipu_onnx.emulated.popart.optimizers import SGD, Adam, ClipNormSettings, Optimizer

Tensors = Dict[str, torch.Tensor]
_TYPES = {DataType.FLOAT: torch.float32, DataType.FLOAT16: torch.float16}


class TorchArithmetic:
    """Sums of gradients in the type that the optimizer asks for.

    Args:
        optimizer: Its ``accumType``.
        accumulates: Whether there is more than one micro-batch to sum.
    """

    def __init__(self, optimizer: Optimizer, *, accumulates: bool) -> None:
        kind = optimizer.types.get("accumType", optimizer.types.get("accum_type"))
        self._type = _TYPES.get(kind) if kind is not None and accumulates else None

    def start(self, gradient: torch.Tensor) -> torch.Tensor:
        """A copy, in the type of accumulators."""
        return gradient.detach().to(self._type or gradient.dtype, copy=True)

    def add(self, total: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """The sum, in place."""
        return total.add_(value)

    def scale(self, value: torch.Tensor, factor: float) -> torch.Tensor:
        """The product, in place."""
        return value.mul_(factor)

    def finish(self, total: torch.Tensor, factor: float) -> torch.Tensor:
        """The product in float32, in which optimizers compute."""
        return total.float().mul_(factor)

    def across(self, total: torch.Tensor, fabric: Fabric) -> torch.Tensor:
        """The sum over processes."""
        return torch.from_numpy(fabric.sum(total.numpy()))


class Update:
    """Applies one optimizer to weights, and keeps its state.

    Args:
        weights: Trained in place, by name.
        state: Of the optimizer by PopART's own names; what is missing is made.
        optimizer: Its kind; values are read at each update.

    Raises:
        popart_exception: If gradients would have to be clipped in a way that PopART does not.
    """

    def __init__(self, weights: Tensors, state: Tensors, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self._weights, self._state = weights, state
        for name in weights:
            for prefix, (shape, kind) in self._slots(name).items():
                slot = f"{prefix}{name}"
                if slot not in state:
                    state[slot] = torch.zeros(shape, dtype=kind)
                    if prefix == "Accl___":
                        self._rest(name)
        self._check_clipping()

    def apply(self, gradients: Mapping[str, torch.Tensor]) -> None:
        """Clip, then change weights and state in place."""
        found = {name: gradient.clone() for name, gradient in gradients.items()}
        for settings in self.optimizer.clipping:
            _clip(found, settings)
        for name, gradient in found.items():
            values = self.optimizer.of_weight(name)
            weight = self._weights[name]
            if isinstance(self.optimizer, Adam):
                step = self._adam(name, weight.float(), gradient, values)
            else:
                step = self._sgd(name, weight.float(), gradient, values)
            weight.copy_(weight.float() - values["learningRate"] * step)
            if f"Accl___{name}" in self._state:
                self._rest(name)

    def _slots(self, name: str) -> Dict[str, Tuple[List[int], torch.dtype]]:
        shape, own = list(self._weights[name].shape), self._weights[name].dtype
        optimizer = self.optimizer
        if isinstance(optimizer, Adam):
            kinds = [_TYPES.get(optimizer.types[n], own) for n in ("accl1_type", "accl2_type")]
            return {
                "Accl1___": (shape, kinds[0]),
                "Accl2___": (shape, kinds[1]),
                "Step___": ([], torch.float32),
            }
        if isinstance(optimizer, SGD) and optimizer.has_momentum(name):
            if optimizer.is_separate:
                return {"Accl1___": (shape, _TYPES.get(optimizer.types["accl1Type"], own))}
            return {"Accl___": (shape, _TYPES.get(optimizer.types["accumType"], own))}
        return {}

    def _check_clipping(self) -> None:
        optimizer = self.optimizer
        if not optimizer.clipping or isinstance(optimizer, Adam):
            return
        if optimizer.getLossScalingVal() != 1.0:
            raise NotEmulatedError(
                "clip_norm_settings of SGD with a loss scale: PopART clips before it takes it out"
            )
        if isinstance(optimizer, SGD) and any(optimizer.has_momentum(n) for n in self._weights):
            raise NotEmulatedError(
                "clip_norm_settings of SGD with momentum: PopART clips the velocity if momentum "
                "is combined, and refuses it if it is separate"
            )

    def _sgd(
        self, name: str, weight: torch.Tensor, gradient: torch.Tensor, values: Mapping[str, float]
    ) -> torch.Tensor:
        decayed = gradient + values["weightDecay"] * weight
        scale, momentum = values["velocityScaling"], values["momentum"]
        kept = (1.0 - values["dampening"]) * scale
        if f"Accl1___{name}" in self._state:
            velocity = self._state[f"Accl1___{name}"]
            velocity.mul_(momentum).add_(decayed, alpha=kept)
        elif f"Accl___{name}" in self._state:
            # Decay and momentum are in it since the update before.
            velocity = self._state[f"Accl___{name}"].add_(gradient, alpha=kept)
        else:
            return decayed
        if values["nesterov"]:
            return decayed + momentum * velocity / scale
        return velocity / scale

    def _rest(self, name: str) -> None:
        """Put decay and momentum of the next update into a combined velocity."""
        values, weight = self.optimizer.of_weight(name), self._weights[name]
        kept = (1.0 - values["dampening"]) * values["weightDecay"] * values["velocityScaling"]
        self._state[f"Accl___{name}"].mul_(values["momentum"]).add_(weight, alpha=kept)

    def _adam(
        self, name: str, weight: torch.Tensor, gradient: torch.Tensor, values: Mapping[str, float]
    ) -> torch.Tensor:
        optimizer: Any = self.optimizer
        if not optimizer.decays_apart:
            gradient = gradient + values["weightDecay"] * weight
        first, second = self._state[f"Accl1___{name}"], self._state[f"Accl2___{name}"]
        step = self._state[f"Step___{name}"].add_(1.0)
        beta1, beta2 = values["beta1"], values["beta2"]
        first.mul_(beta1).add_(gradient, alpha=1.0 - beta1)
        second.mul_(beta2).addcmul_(gradient, gradient, value=1.0 - beta2)
        mean, square = first, second
        if optimizer.corrects_bias:
            mean = first / (1.0 - beta1 ** float(step))
            square = second / (1.0 - beta2 ** float(step))
        change = mean / (square.sqrt() + values["eps"])
        return change + values["weightDecay"] * weight if optimizer.decays_apart else change


def _clip(gradients: Tensors, settings: ClipNormSettings) -> None:
    names = list(gradients) if settings.clips_all else settings.weightIds
    norm = torch.sqrt(sum((gradients[n].double().square().sum() for n in names), torch.zeros(())))
    factor = settings.maxNorm / max(float(norm), settings.maxNorm)
    for name in names:
        gradients[name].mul_(factor)
