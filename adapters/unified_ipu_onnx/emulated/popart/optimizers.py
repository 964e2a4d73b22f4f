"""Optimizers as descriptions: values by name, each constant or not.

Source: PopART of SDK 3.4, ``willow/include/popart/{sgd,adam,clipnormsettings}.hpp``,
``willow/src/{sgd,optimizer}.cpp`` and their binding.
"""

from __future__ import annotations

from typing import Any, ClassVar, Dict, List, Mapping, Sequence, Tuple

from unified_ipu_onnx.emulated.popart.enums import (
    AdamMode,
    DataType,
    SGDAccumulatorAndMomentum,
    WeightDecayMode,
)
from unified_ipu_onnx.emulated.popart.errors import (
    NotEmulatedError,
    OptimizerReplacementError,
    popart_exception,
)

Value = Tuple[float, bool]

_FLOATS = frozenset({DataType.FLOAT, DataType.FLOAT16, DataType.UNDEFINED})


class ClipNormSettings:
    """Clips the gradients of weights by their common norm.

    Args:
        weightIds: Names of weights; empty: of all.
        maxNorm: Largest norm.
    """

    def __init__(self, weightIds: Sequence[str], maxNorm: float) -> None:
        self.weightIds = list(weightIds)
        self.maxNorm = float(maxNorm)
        self.clips_all = False

    @classmethod
    def clipWeights(cls, weightIds: Sequence[str], maxNorm: float) -> ClipNormSettings:
        """Clip these weights together."""
        return cls(weightIds, maxNorm)

    @classmethod
    def clipAllWeights(cls, maxNorm: float) -> ClipNormSettings:
        """Clip all weights together."""
        found = cls([], maxNorm)
        found.clips_all = True
        return found


class Optimizer:
    """What all optimizers have.

    Args:
        values: ``{name: (value, whether it is constant)}``; what is left out has a default, which
            is constant.
        clip_norm_settings: Groups of weights to clip.
        types: Types of what is kept.
    """

    _defaults: ClassVar[Dict[str, Any]] = {}
    _specific: ClassVar[Tuple[str, ...]] = ()

    def __init__(
        self,
        values: Mapping[str, Any],
        clip_norm_settings: Sequence[ClipNormSettings],
        types: Mapping[str, DataType],
    ) -> None:
        self.values: Dict[str, Value] = {n: (v, True) for n, v in self._defaults.items()}
        self.values.update(self._checked(values, list(self._defaults)))
        self.specific: Dict[str, Dict[str, Value]] = {}
        self.clipping: List[ClipNormSettings] = list(clip_norm_settings)
        self.types = dict(types)
        for name, kind in types.items():
            if DataType(kind) not in _FLOATS:
                raise popart_exception(f"{name} must be FLOAT, FLOAT16 or UNDEFINED, got {kind!r}")

    def insertSpecific(self, tensorId: str, values: Mapping[str, Any]) -> None:
        """Give one weight values of its own: ``{"learningRate": (value, is constant)}``.

        Raises:
            popart_exception: If it has some already, or a name is unknown.
        """
        if tensorId in self.specific:
            raise popart_exception(f"specific values of {tensorId} were inserted already")
        self.specific[tensorId] = self._checked(values, list(self._specific))

    def of_weight(self, name: str) -> Dict[str, float]:
        """Values that hold for one weight, by the short names of ``insertSpecific``."""
        found = {_short(n): value for n, (value, _) in self.values.items()}
        found.update({n: value for n, (value, _) in self.specific.get(name, {}).items()})
        return found

    def getLossScalingVal(self) -> float:
        """Return the loss scale."""
        return self.values["lossScaling"][0]

    def check_replacement(self, other: Optimizer) -> None:
        """Refuse a new optimizer that a compiled program cannot take.

        Raises:
            OptimizerReplacementError: If the kind, a constant or what is constant differs.
        """
        if type(self) is not type(other) or self._kind() != other._kind():
            raise OptimizerReplacementError(
                "the new optimizer is of another kind than the compiled one"
            )
        if self.specific.keys() != other.specific.keys():
            raise OptimizerReplacementError("the new optimizer has other weight-specific values")
        for name in ("", *self.specific):
            mine = self.specific[name] if name else self.values
            its = other.specific[name] if name else other.values
            _check_values(mine, its, name)

    def _kind(self) -> Any:
        clips = [(c.weightIds, c.maxNorm, c.clips_all) for c in self.clipping]
        return self.types, clips

    def _checked(self, values: Mapping[str, Any], known: Sequence[str]) -> Dict[str, Value]:
        found = {}
        for name, pair in values.items():
            if name not in known:
                raise popart_exception(
                    f"Unexpected value {name!r} for {type(self).__name__}; it has {list(known)}"
                )
            if not isinstance(pair, tuple) or len(pair) != 2 or not isinstance(pair[1], bool):
                raise popart_exception(f"{name} must be (value, whether it is constant): {pair!r}")
            found[name] = (float(pair[0]), pair[1])
        return found


def _check_values(mine: Mapping[str, Value], its: Mapping[str, Value], weight: str) -> None:
    of = f" of {weight}" if weight else ""
    if mine.keys() != its.keys():
        raise OptimizerReplacementError(f"the new optimizer has other values{of}")
    for name, (value, is_constant) in mine.items():
        new, still = its[name]
        if is_constant != still:
            raise OptimizerReplacementError(f"{name}{of} was constant: {is_constant}, is: {still}")
        if is_constant and new != value:
            raise OptimizerReplacementError(
                f"{name}{of} is constant and compiled in as {value}; got {new}"
            )


def _short(name: str) -> str:
    """``defaultLearningRate`` as ``learningRate``."""
    if not name.startswith("default"):
        return name
    rest = name[len("default") :]
    return rest[0].lower() + rest[1:]


class SGD(Optimizer):
    """Stochastic gradient descent with momentum.

    Args:
        values: Defaults for all weights.
        clip_norm_settings: Groups of weights to clip.
        accumulatorAndMomentum: Whether gradients are summed into the velocity.
        accumType: Of sums of gradients.
        accl1Type: Of separate velocities.
        debugContext: Without effect.
    """

    _defaults: ClassVar[Dict[str, Any]] = {
        "defaultDampening": 0.0,
        "defaultLearningRate": 0.1,
        "defaultMomentum": 0.0,
        "defaultVelocityScaling": 1.0,
        "defaultWeightDecay": 0.0,
        "lossScaling": 1.0,
        "nesterov": 0.0,
    }
    _specific: ClassVar[Tuple[str, ...]] = (
        "dampening",
        "learningRate",
        "momentum",
        "velocityScaling",
        "weightDecay",
    )

    def __init__(
        self,
        values: Mapping[str, Any],
        clip_norm_settings: Sequence[ClipNormSettings] = (),
        accumulatorAndMomentum: SGDAccumulatorAndMomentum = SGDAccumulatorAndMomentum.Combined,
        accumType: DataType = DataType.UNDEFINED,
        accl1Type: DataType = DataType.UNDEFINED,
        debugContext: str = "sgd",
    ) -> None:
        del debugContext
        types = {"accumType": accumType, "accl1Type": accl1Type}
        super().__init__(values, clip_norm_settings, types)
        self.is_separate = accumulatorAndMomentum is SGDAccumulatorAndMomentum.Separate

    def has_momentum(self, name: str) -> bool:
        """Whether a velocity is kept for that weight: not if momentum is constant and 0."""
        value, is_constant = self.specific.get(name, {}).get(
            "momentum", self.values["defaultMomentum"]
        )
        return not is_constant or value != 0.0

    def _kind(self) -> Any:
        return super()._kind(), self.is_separate


class ConstSGD(SGD):
    """SGD whose values are all constant; deprecated by the SDK.

    Args:
        learning_rate: Of all weights.
        weight_decay: Of all weights.
        loss_scaling: Multiplies the loss, and is taken out again.
        clip_norm_settings: Groups of weights to clip.
    """

    def __init__(
        self,
        learning_rate: float,
        weight_decay: float = 0.0,
        loss_scaling: float = 1.0,
        clip_norm_settings: Sequence[ClipNormSettings] = (),
    ) -> None:
        values = {
            "defaultLearningRate": (learning_rate, True),
            "defaultWeightDecay": (weight_decay, True),
            "lossScaling": (loss_scaling, True),
        }
        super().__init__(values, clip_norm_settings)


class Adam(Optimizer):
    """Adam, AdamW and their kin.

    Args:
        values: Defaults for all weights; epsilon is 1e-6 and the rate 0.1 if left out.
        mode: ``Adam`` and ``AdamNoBias`` are computed here.
        weight_decay_mode: Apart from the gradient, or in it.
        accum_type: Of sums of gradients.
        accl1_type: Of first moments.
        accl2_type: Of second moments.
        clip_norm_settings: Groups of weights to clip.
        scaled_optimizer_state: Not emulated.
        debugContext: Without effect.

    Raises:
        NotEmulatedError: For another mode, or a scaled state.
    """

    _defaults: ClassVar[Dict[str, Any]] = {
        "defaultBeta1": 0.9,
        "defaultBeta2": 0.999,
        "defaultEps": 1e-6,
        "defaultLearningRate": 0.1,
        "defaultMaxWeightNorm": 10.0,
        "defaultWeightDecay": 0.0,
        "lossScaling": 1.0,
    }
    _specific: ClassVar[Tuple[str, ...]] = (
        "beta1",
        "beta2",
        "eps",
        "learningRate",
        "maxWeightNorm",
        "weightDecay",
    )

    def __init__(  # noqa: PLR0917  as in the SDK
        self,
        values: Mapping[str, Any],
        mode: AdamMode = AdamMode.Adam,
        weight_decay_mode: WeightDecayMode = WeightDecayMode.Decay,
        accum_type: DataType = DataType.UNDEFINED,
        accl1_type: DataType = DataType.FLOAT,
        accl2_type: DataType = DataType.FLOAT,
        clip_norm_settings: Sequence[ClipNormSettings] = (),
        scaled_optimizer_state: bool = False,
        debugContext: str = "adam",
    ) -> None:
        del debugContext
        types = {"accum_type": accum_type, "accl1_type": accl1_type, "accl2_type": accl2_type}
        super().__init__(values, clip_norm_settings, types)
        if mode not in {AdamMode.Adam, AdamMode.AdamNoBias}:
            raise NotEmulatedError(f"AdamMode.{mode.name}; Adam and AdamNoBias are")
        if scaled_optimizer_state:
            raise NotEmulatedError("scaled_optimizer_state of Adam")
        self.corrects_bias = mode is AdamMode.Adam
        self.decays_apart = weight_decay_mode is WeightDecayMode.Decay

    def _kind(self) -> Any:
        return super()._kind(), self.corrects_bias, self.decays_apart


class Adaptive(Optimizer):
    """RMSProp and its kin: not emulated.

    Raises:
        NotEmulatedError: Always.
    """

    def __init__(self, *args: Any, **named: Any) -> None:
        del args, named
        raise NotEmulatedError("Adaptive; SGD and Adam are")
