"""Options of a session: all names of the SDK, and which of them mean something here.

Source: PopART of SDK 3.4, ``willow/include/popart/sessionoptions.hpp`` for defaults and
``python/popart/popart_core/popart.cpp`` for the names that Python sees.
"""

from __future__ import annotations

from typing import Any, ClassVar, Dict, List, Sequence, Tuple

from unified_ipu_onnx.emulated.popart.enums import (
    AccumulateOuterFragmentSchedule,
    Instrumentation,
    MeanReductionStrategy,
    MergeVarUpdateType,
    RecomputationType,
    ReductionType,
    SubgraphCopyingStrategy,
    SyntheticDataMode,
    VirtualGraphMode,
)
from unified_ipu_onnx.emulated.popart.log import note_once
from unified_ipu_onnx.emulated.popart.settings import Settings, TensorLocationSettings


class AutomaticLossScalingSettings(Settings):
    """A loss scale that the device adapts; refused by a session here."""

    _defaults: ClassVar[Dict[str, Any]] = {
        "enabled": False,
        "binEdgeLocation": 0.125,
        "thresholdUpperCountProportion": 1e-7,
        "toTrackTensors": None,
        "updatePeriod": 1,
    }


class ReplicatedCollectivesSettings(Settings):
    """Which collectives are merged; without effect here."""

    _defaults: ClassVar[Dict[str, Any]] = {
        "prepareScheduleForMergingCollectives": False,
        "mergeAllReduceCollectives": False,
        "mergeReduceScatterCollectives": False,
        "mergeAllGatherCollectives": False,
    }


class ExecutionPhaseSettings(Settings):
    """Phases of execution; more than none are refused by a session here."""

    _defaults: ClassVar[Dict[str, Any]] = {"phases": 0, "stages": 2}


class BatchSerializationSettings(Settings):
    """Batches in slices; more than none are refused by a session here."""

    _defaults: ClassVar[Dict[str, Any]] = {
        "factor": 0,
        "concatOnVirtualGraphChange": True,
        "concatOnExecutionPhaseChange": True,
        "concatOnPipelineStageChange": True,
    }


class AccumulateOuterFragmentSettings(Settings):
    """In which order updates of weights run; without effect here.

    Args:
        schedule: The order.
        excludedVirtualGraphs: IPUs that keep their own.
    """

    _defaults: ClassVar[Dict[str, Any]] = {
        "schedule": AccumulateOuterFragmentSchedule.Serial,
        "excludedVirtualGraphs": [],
    }

    def __init__(
        self,
        schedule: AccumulateOuterFragmentSchedule = AccumulateOuterFragmentSchedule.Serial,
        excludedVirtualGraphs: Sequence[int] = (),
    ) -> None:
        super().__init__(schedule=schedule, excludedVirtualGraphs=list(excludedVirtualGraphs))


class ExperimentalSettings(Settings):
    """What the SDK may change any day; without effect here."""

    _defaults: ClassVar[Dict[str, Any]] = {
        "customTransformApplierSettings": {},
        "createHostTransferableTensorWithOffset": False,
    }


MEANING: Dict[str, Any] = {
    "accumulationAndReplicationReductionType": ReductionType.Sum,
    "accumulationFactor": 1,
    "automaticLossScalingSettings": AutomaticLossScalingSettings(),
    "autoRecomputation": RecomputationType.NoRecompute,
    "batchSerializationSettings": BatchSerializationSettings(),
    "constantWeights": True,
    "customCodelets": [],
    "enableDistributedReplicatedGraphs": False,
    "enableExplicitMainLoops": False,
    "enableGradientAccumulation": False,
    "enablePipelining": False,
    "enableReplicatedGraphs": False,
    "executionPhaseSettings": ExecutionPhaseSettings(),
    "globalReplicaOffset": 0,
    "globalReplicationFactor": 1,
    "meanAccumulationAndReplicationReductionStrategy": MeanReductionStrategy.Post,
    "replicatedGraphCount": 1,
    "syntheticDataMode": SyntheticDataMode.Off,
    "updatableNamedBuffers": [],
    "useHostCopyOps": False,
    "virtualGraphMode": VirtualGraphMode.Off,
}
"""Options that the emulation heeds or refuses."""

WITHOUT_EFFECT: Dict[str, Any] = {
    "accumulateOuterFragmentSettings": AccumulateOuterFragmentSettings(),
    "dotChecks": set(),
    "dotOpNames": False,
    "experimentalSettings": ExperimentalSettings(),
    "finalDotOp": 10000,
    "firstDotOp": 0,
    "hardwareInstrumentations": {Instrumentation.Outer},
    "activationTensorLocationSettings": TensorLocationSettings(),
    "accumulatorTensorLocationSettings": TensorLocationSettings(),
    "aliasZeroCopy": False,
    "bufferingDepthMap": {},
    "cachePath": "session_cache",
    "compileEngine": True,
    "convolutionOptions": {},
    "createImplicitPipeliningFwdOnlyProgram": False,
    "customCodeletCompileFlags": "",
    "decomposeGradSum": False,
    "defaultBufferingDepth": 1,
    "delayVarUpdates": True,
    "disableGradAccumulationTensorStreams": False,
    "disableOptimizerStateTensorStreams": False,
    "enableConstantFoldingOfMultipleConsumers": True,
    "enableEfficientOverlapIOTopoCons": False,
    "enableEngineCaching": False,
    "enableFloatingPointChecks": False,
    "enableFullyConnectedPass": True,
    "enableInplaceAmbiguityChecking": False,
    "enableLoadAndOffloadRNGState": False,
    "enableMergeExchange": True,
    "enableNonStableSoftmax": False,
    "enableOutlining": True,
    "enableOutliningCopyCostPruning": True,
    "enablePrefetchDatastreams": True,
    "enableStableNorm": False,
    "enableStochasticRounding": False,
    "enableSupportedDataTypeCasting": True,
    "enableVariablesCaching": True,
    "engineOptions": {},
    "ensureFp32LossScaleTensor": False,
    "explicitRecomputation": False,
    "exportPoplarComputationGraph": False,
    "exportPoplarVertexGraph": False,
    "gclOptions": {},
    "groupHostSync": False,
    "groupNormStridedChannelGrouping": False,
    "instrumentWithHardwareCycleCounter": False,
    "kahnTieBreaker": "greedy",
    "logDir": "",
    "lstmOptions": {},
    "matmulOptions": {},
    "mergeVarUpdate": MergeVarUpdateType.Off,
    "mergeVarUpdateMemThreshold": 1000000,
    "numIOTiles": 0,
    "optimizerStateTensorLocationSettings": TensorLocationSettings(),
    "opxAliasChecking": False,
    "opxModifyChecking": False,
    "outlineSequenceBreakCost": 10000.0,
    "outlineThreshold": 1.0,
    "partialsTypeMatMuls": "",
    "rearrangeAnchorsOnHost": True,
    "rearrangeStreamsOnHost": False,
    "replicatedCollectivesSettings": ReplicatedCollectivesSettings(),
    "reportOptions": {},
    "scheduleNonWeightUpdateGradientConsumersEarly": False,
    "separateCallOpPdfs": True,
    "stashAllTensorsInferencePipeline": False,
    "strictOpVersions": True,
    "subgraphCopyingStrategy": SubgraphCopyingStrategy.OnEnterAndExit,
    "swapLimitScheduler": 1000000000,
    "tensorLocationSettingsOverride": {},
    "throwIfLog2ScaleTensorNotInRange": True,
    "timeLimitScheduler": 1e9,
    "useLoopCandidateCreator": False,
    "virtualGraphSplitRatios": [],
    "weightTensorLocationSettings": TensorLocationSettings(),
}
"""Options for memory, speed and reports: kept readable, and otherwise nothing."""

_ALIASES = {
    "defaultPrefetchBufferingDepth": "defaultBufferingDepth",
    "prefetchBufferingDepthMap": "bufferingDepthMap",
}


class SessionOptions(Settings):
    """Options of a session; every one can be read and set, a misspelt one is an error."""

    _defaults: ClassVar[Dict[str, Any]] = {**MEANING, **WITHOUT_EFFECT}

    def __init__(self) -> None:
        super().__init__()

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(_ALIASES.get(name, name), value)

    def __getattr__(self, name: str) -> Any:
        if name in _ALIASES:
            return getattr(self, _ALIASES[name])
        return super().__getattr__(name)

    def enableExplicitIR(self, value: bool) -> None:
        """Switch the explicit forms of loops, recomputation and host copies on or off together."""
        self.enableExplicitMainLoops = value
        self.useHostCopyOps = value
        self.explicitRecomputation = value

    def getGlobalReplicationFactor(self) -> int:
        """Replicas over all processes."""
        factor = 1
        if self.enableDistributedReplicatedGraphs:
            factor = self.globalReplicationFactor
        elif self.enableReplicatedGraphs:
            factor = self.replicatedGraphCount
        return int(factor)


def without_effect(options: SessionOptions) -> List[Tuple[str, Any]]:
    """Options that were changed and mean nothing without a device."""
    values = vars(options)
    return [(n, values[n]) for n, default in WITHOUT_EFFECT.items() if values[n] != default]


def note_without_effect(options: SessionOptions) -> None:
    """Say of each changed option without a meaning here, once a process, that it has none."""
    for name, value in without_effect(options):
        note_once(name, f"SessionOptions.{name} = {value!r} has no effect without a device")
