"""The groups of options that ``Options`` holds: training, precision, PopART's own, processes.

Source: PopTorch 3.4, ``python/options.py``.
"""

from __future__ import annotations

from typing import Any, Dict

import torch

from unified_ipu.world import current_environment
from unified_ipu_torch.emulated.poptorch.enums import MeanReductionStrategy, ReductionType
from unified_ipu_torch.emulated.poptorch.errors import require
from unified_ipu_torch.emulated.poptorch.log import note_once
from unified_ipu_torch.emulated.poptorch.values import Freezable, OptionsDict, deprecated

HARDWARE_ONLY = "it changes speed or memory of the hardware, never values here"
ROUNDING = "the emulation computes in the tensors' own dtypes, and rounds to nearest"

# What the emulation does with PopART's options that are not speed or memory alone.
_WITH_EFFECT = {"syntheticDataMode", "updatableNamedBuffers"}


class _JitOptions(OptionsDict):
    """What is left of the options of tracing."""

    def traceModel(self, trace_model: bool) -> _JitOptions:
        """Refuse tracing, which is gone since 3.1.

        Raises:
            ValueError: If asked for.
        """
        deprecated("Jit.traceModel()", "the dispatcher is the only way to capture a model.")
        if trace_model:
            raise ValueError("options.Jit.traceModel(True) is no longer supported")
        return self


class _PopartOptions(Freezable):
    """Options handed to PopART under its own names; checked when a model is compiled."""

    def __init__(self) -> None:
        self.options: Dict[str, Any] = {
            "instrumentWithHardwareCycleCounter": False,
            "rearrangeAnchorsOnHost": False,
        }

    def set(self, key: str, value: Any) -> _PopartOptions:
        """Set one option; an unknown name is refused when the model is compiled.

        Args:
            key: PopART's name.
            value: Enumerations as integers.

        Raises:
            AttributeError: If frozen.
        """
        self.checkIsFrozen()
        self.options[key] = value
        if key not in _WITH_EFFECT:
            note_once(f"_Popart.{key}", HARDWARE_ONLY)
        return self

    def setEngineOptions(self, engine_options: Dict[str, str]) -> _PopartOptions:
        """Set options of Poplar's engine."""
        return self.set("engineOptions", engine_options)

    def setPatterns(self, patterns: Dict[str, bool], level: int = 2) -> _PopartOptions:
        """Choose PopART's graph patterns.

        Args:
            patterns: Which to switch on or off, by name.
            level: The set to start from.

        Raises:
            AssertionError: If one is of another type.
            AttributeError: If frozen.
        """
        require(isinstance(level, int), f"level must be an int, got {level!r}")
        require(isinstance(patterns, dict), f"patterns must be a dict, got {patterns!r}")
        self.set("patterns_level", level)
        return self.set("patterns", patterns)

    def __repr__(self) -> str:
        shown = [f"{name}={value!r}" for name, value in self.options.items()]
        return f"{type(self).__name__}({', '.join(shown)})"


class _PrecisionOptions(OptionsDict):
    """Number formats of the hardware."""

    def __init__(self, popart: _PopartOptions) -> None:
        self._popart_options = popart
        super().__init__()

    def halfFloatCasting(self, half_float_casting: Any) -> _PrecisionOptions:  # noqa: ARG002  # theirs
        """Do nothing: one behaviour is left."""
        deprecated("Precision.halfFloatCasting()", "half and float give float, as in PyTorch.")
        return self

    def runningStatisticsAlwaysFloat(self, value: bool) -> _PrecisionOptions:
        """Do nothing: one behaviour is left.

        Raises:
            ValueError: If not a bool.
        """
        if not isinstance(value, bool):
            raise ValueError("runningStatisticsAlwaysFloat needs to be set to a bool")
        deprecated(
            "Precision.runningStatisticsAlwaysFloat()", "statistics have the model's own dtype."
        )
        return self

    def enableFloatingPointExceptions(self, enabled: bool) -> _PrecisionOptions:
        """Stop at overflow on the hardware; refuses what is not a bool."""
        require(
            isinstance(enabled, bool), "enableFloatingPointExceptions needs to be set to a bool"
        )
        note_once("Precision.enableFloatingPointExceptions", ROUNDING)
        self._popart_options.set("enableFloatingPointChecks", enabled)
        return self

    def enableStochasticRounding(self, enabled: bool) -> _PrecisionOptions:
        """Round to half at random on the hardware."""
        note_once("Precision.enableStochasticRounding", ROUNDING)
        self._popart_options.set("enableStochasticRounding", enabled)
        return self

    def setPartialsType(self, dtype: torch.dtype) -> _PrecisionOptions:
        """Choose the dtype of partial sums on the hardware.

        Raises:
            ValueError: If it is neither float nor half.
        """
        names = {torch.float32: "float", torch.float16: "half"}
        if dtype not in names:
            raise ValueError("setPartialsType takes torch.float or torch.half")
        note_once("Precision.setPartialsType", ROUNDING)
        self._popart_options.set("partialsTypeMatMuls", names[dtype])
        self._popart_options.set("convolutionOptions", {"partialsType": names[dtype]})
        return self


class _TrainingOptions(OptionsDict):
    """Accumulation and reduction of gradients."""

    def __init__(self, popart: _PopartOptions) -> None:
        self._popart_options = popart
        super().__init__(
            gradient_accumulation=1,
            accumulation_and_replication_reduction_type=ReductionType.Mean,
            meanAccumulationAndReplicationReductionStrategy=MeanReductionStrategy.Post,
        )

    def gradientAccumulation(self, gradient_accumulation: int) -> _TrainingOptions:
        """Set the micro-batches of a replica behind one update."""
        self.set(gradient_accumulation=gradient_accumulation)
        return self

    def accumulationAndReplicationReductionType(
        self, reduction_type: ReductionType
    ) -> _TrainingOptions:
        """Set how gradients are reduced, over micro-batches and replicas alike.

        Raises:
            ValueError: If it is neither the sum nor the mean.
        """
        if reduction_type not in {ReductionType.Sum, ReductionType.Mean} or not isinstance(
            reduction_type, ReductionType
        ):
            raise ValueError(
                "accumulationAndReplicationReductionType must be set to "
                "poptorch.ReductionType.Mean or poptorch.ReductionType.Sum"
            )
        self.set(accumulation_and_replication_reduction_type=reduction_type)
        return self

    def setMeanAccumulationAndReplicationReductionStrategy(
        self, mean_reduction_strategy: MeanReductionStrategy
    ) -> _TrainingOptions:
        """Set when a mean is divided."""
        self.set(meanAccumulationAndReplicationReductionStrategy=mean_reduction_strategy)
        return self

    def setAutomaticLossScaling(self, enabled: bool) -> _TrainingOptions:
        """Let the hardware change the loss scale by itself."""
        note_once("Training.setAutomaticLossScaling", "the scale stays as the optimizer has it")
        self._popart_options.set("automaticLossScalingSettings.enabled", enabled)
        return self

    def setConvolutionDithering(self, enabled: bool) -> _TrainingOptions:
        """Lay convolutions out over tiles at random."""
        note_once("Training.setConvolutionDithering", HARDWARE_ONLY)
        self._popart_options.set("convolutionOptions", {"enableConvDithering": enabled})
        return self


class _DistributedOptions(OptionsDict):
    """Which of several processes this one is."""

    def __init__(self) -> None:
        super().__init__(num_distributed_processes=1, distributed_process_id=0, ipuof_configs={})
        self.setEnvVarNames("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK")

    def disable(self) -> _DistributedOptions:
        """Be one process of one."""
        return self.configureProcessId(0, 1)

    def setEnvVarNames(self, var_num_processes: str, var_process_id: str) -> _DistributedOptions:
        """Read the number and the index from these environment variables."""
        environment = current_environment()
        return self.configureProcessId(
            int(environment.get(var_process_id, "0")), int(environment.get(var_num_processes, "1"))
        )

    def configureProcessId(self, process_id: int, num_processes: int) -> _DistributedOptions:
        """Set the index of this process and their number."""
        self.set(distributed_process_id=process_id, num_distributed_processes=num_processes)
        return self

    @property
    def processId(self) -> int:
        """Index of this process."""
        return int(self.distributed_process_id)

    @property
    def numProcesses(self) -> int:
        """Number of processes."""
        return int(self.num_distributed_processes)
