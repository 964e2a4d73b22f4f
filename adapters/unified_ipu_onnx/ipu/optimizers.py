"""torch's optimizers as PopART's: every value given, and state under the names of both.

PopART damps the first velocity too, where torch takes the gradient as it is, so dampening is
refused. Velocities are kept apart from sums of gradients: combined ones hold parts of the next
update, and what is clipped then is the velocity.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Collection, Dict, List, Mapping, Sequence, Tuple

import numpy as np
import torch

from unified_ipu.adapter import NativeCall, apply_native_calls
from unified_ipu.errors import CapabilityError
from unified_ipu_onnx.errors import NAME

Pair = Tuple[float, bool]

_SGD_SLOTS = (("Accl1___", "momentum_buffer"),)
_ADAM_SLOTS = (("Accl1___", "exp_avg"), ("Accl2___", "exp_avg_sq"), ("Step___", "step"))
_REFUSED = ("amsgrad", "maximize")


class NativeOptimizer:
    """Makes PopART's optimizer of the values that a torch optimizer has now.

    Args:
        optimizer: SGD, Adam or AdamW.
        trained: Trained parameters by the name of their initializer.
        calls: The lowering's for training.
        sdk: PopART.

    Raises:
        CapabilityError: If PopART has no such optimizer, or clips something else than gradients.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        trained: Mapping[str, torch.nn.Parameter],
        calls: Sequence[NativeCall],
        sdk: Any,
    ) -> None:
        self._optimizer, self._trained, self._sdk = optimizer, dict(trained), sdk
        kind = type(optimizer)
        if kind not in {torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW}:
            raise CapabilityError(
                NAME, f"{kind.__name__} is not written for PopART; use SGD, Adam or AdamW"
            )
        self._is_sgd = kind is torch.optim.SGD
        self._is_decoupled = kind is torch.optim.AdamW
        self._said = SimpleNamespace(
            accumType=None, accumulatorAndMomentum=None, clip_norm_settings=None, lossScaling=None
        )
        apply_native_calls(calls, {"optimizer": self._said}, {"popart": sdk})
        self._check()

    def make(self, factor: float) -> Any:
        """PopART's optimizer, every rate times ``factor``."""
        groups = self._groups()
        named = self._values(groups[0][1], factor)
        values = {f"default{key[0].upper()}{key[1:]}": pair for key, pair in named.items()}
        if self._said.lossScaling is not None:
            values["lossScaling"] = self._said.lossScaling
        made = self._made(values, groups[0][1])
        for names, group in groups[1:]:
            for name in names:
                made.insertSpecific(name, self._values(group, factor))
        return made

    def slots(self, name: str) -> Dict[str, str]:
        """PopART's names of what it keeps for a weight, by torch's keys."""
        group = self._group_of(name)
        kept: Tuple[Tuple[str, str], ...] = _ADAM_SLOTS
        if self._is_sgd:
            kept = _SGD_SLOTS if group["momentum"] else ()
        return {key: f"{prefix}{name}" for prefix, key in kept}

    def state(self, used: Collection[str]) -> Dict[str, np.ndarray]:
        """State of these weights to send, by PopART's names; what torch does not have yet is 0."""
        found = {}
        for name, parameter in self._trained.items():
            if name not in used:
                continue
            state = self._optimizer.state.get(parameter, {})
            for key, slot in self.slots(name).items():
                value = state.get(key)
                shape = () if key == "step" else tuple(parameter.shape)
                array = np.zeros(shape, np.float32)
                if value is not None:
                    array = np.asarray(torch.as_tensor(value).detach().float().numpy())
                found[slot] = np.array(array, np.float32).reshape(shape)
        return found

    def take(self, arrays: Mapping[str, np.ndarray], used: Collection[str]) -> None:
        """Let torch's optimizer have the state that the device has, once it made an update."""
        for name, parameter in self._trained.items():
            if name not in used:
                continue
            state = self._optimizer.state[parameter]
            for key, slot in self.slots(name).items():
                state[key] = torch.from_numpy(np.array(arrays[slot]))

    def _made(self, values: Mapping[str, Pair], group: Mapping[str, Any]) -> Any:
        sdk, said = self._sdk, self._said
        clipping = [] if said.clip_norm_settings is None else [said.clip_norm_settings]
        if self._is_sgd:
            values = {**values, "nesterov": (float(group["nesterov"]), True)}
            return sdk.SGD(
                values,
                clip_norm_settings=clipping,
                accumulatorAndMomentum=said.accumulatorAndMomentum,
                accumType=said.accumType,
            )
        decay = sdk.WeightDecayMode
        return sdk.Adam(
            values,
            mode=sdk.AdamMode.Adam,
            weight_decay_mode=decay.Decay if self._is_decoupled else decay.L2Regularization,
            accum_type=said.accumType,
            accl1_type=sdk.DataType.FLOAT,
            accl2_type=sdk.DataType.FLOAT,
            clip_norm_settings=clipping,
        )

    def _values(self, group: Mapping[str, Any], factor: float) -> Dict[str, Pair]:
        found: Dict[str, Pair] = {
            "learningRate": (float(group["lr"]) * factor, False),
            "weightDecay": (float(group["weight_decay"]), False),
        }
        if self._is_sgd:
            momentum = float(group["momentum"])
            # A momentum that is not constant, or not 0, has PopART keep a velocity.
            found["momentum"] = (momentum, momentum == 0.0)
            found["dampening"] = (float(group["dampening"]), True)
            found["velocityScaling"] = (1.0, True)
        else:
            first, second = group["betas"]
            found.update(beta1=(float(first), False), beta2=(float(second), False))
            found.update(eps=(float(group["eps"]), False), maxWeightNorm=(1.0, True))
        return found

    def _groups(self) -> List[Tuple[List[str], Mapping[str, Any]]]:
        names = {id(parameter): name for name, parameter in self._trained.items()}
        found = [
            ([names[id(p)] for p in group["params"] if id(p) in names], group)
            for group in self._optimizer.param_groups
        ]
        return [(members, group) for members, group in found if members]

    def _group_of(self, name: str) -> Mapping[str, Any]:
        return next(group for members, group in self._groups() if name in members)

    def _check(self) -> None:
        groups = [group for _, group in self._groups()]
        for group in groups:
            refused = [key for key in _REFUSED if group.get(key)]
            if group.get("decoupled_weight_decay") and not self._is_decoupled:
                refused.append("decoupled_weight_decay")
            if refused:
                raise CapabilityError(
                    NAME, f"PopART's optimizers have no {refused[0]}; leave it out"
                )
        if self._is_sgd:
            self._check_sgd(groups)

    def _check_sgd(self, groups: Sequence[Mapping[str, Any]]) -> None:
        clips = self._said.clip_norm_settings is not None
        for group in groups:
            if group["momentum"] and group["dampening"]:
                raise CapabilityError(
                    NAME,
                    "PopART damps the first velocity too, torch does not; set dampening to 0",
                )
            if clips and group["momentum"]:
                raise CapabilityError(
                    NAME,
                    "update.clip_norm: with momentum PopART clips the velocity, not the gradient; "
                    "leave one of the two out, or use Adam",
                )
            if clips and self._scales:
                raise CapabilityError(
                    NAME,
                    "update.clip_norm: PopART clips before the loss scale is taken out of the "
                    'gradients of SGD; set precision.loss_scale = "none", or use Adam',
                )
        if len({bool(group["nesterov"]) for group in groups}) > 1:
            raise CapabilityError(NAME, "nesterov must be the same in all parameter groups")

    @property
    def _scales(self) -> bool:
        return self._said.lossScaling is not None and self._said.lossScaling[0] != 1.0
