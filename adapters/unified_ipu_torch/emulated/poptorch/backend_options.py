"""What the backend knows of options: every key with its kind, checked before a model is compiled.

Source: PopTorch 3.4, ``popart_compiler/source/SessionOptions.cpp`` (the keys and kinds), and PopART
3.4, ``willow/include/popart/sessionoptions.hpp`` (how many members an enumeration has).
"""

from __future__ import annotations

from typing import Any, FrozenSet, Mapping, Tuple

from unified_ipu_torch.emulated.poptorch.errors import Error
from unified_ipu_torch.emulated.poptorch.log import logger

BOOL = frozenset(
    """
    aliasZeroCopy auto_round_num_ipus automaticLossScalingSettings.enabled
    batchSerializationSettings.concatOnExecutionPhaseChange
    batchSerializationSettings.concatOnPipelineStageChange
    batchSerializationSettings.concatOnVirtualGraphChange broadcast_buffers compileEngine
    constantWeights decomposeGradSum delayVarUpdates disableGradAccumulationTensorStreams
    disableOptimizerStateTensorStreams dotOpNames enableDistributedReplicatedGraphs
    enableEngineCaching enableExplicitIR enableExplicitMainLoops enableFloatingPointChecks
    enableFullyConnectedPass enableGradientAccumulation enableInplaceAmbiguityChecking
    enableLoadAndOffloadRNGState enableMergeExchange enableNonStableSoftmax enableOutlining
    enableOutliningCopyCostPruning enablePipelining enablePrefetchDatastreams
    enableReplicatedGraphs enableSerializedMatmuls enableStableNorm enableStochasticRounding
    enableSupportedDataTypeCasting ensureFp32LossScaleTensor explicitRecomputation
    exportPoplarComputationGraph exportPoplarVertexGraph groupHostSync
    groupNormStridedChannelGrouping instrumentWithHardwareCycleCounter opxAliasChecking
    opxModifyChecking rearrangeAnchorsOnHost rearrangeStreamsOnHost
    replicatedCollectivesSettings.mergeAllReduceCollectives
    replicatedCollectivesSettings.prepareScheduleForMergingCollectives
    scheduleNonWeightUpdateGradientConsumersEarly separateCallOpPdfs separate_backward_phase
    serial_phases_execution strictOpVersions useHostCopyOps use_model
    """.split()
)

UINT64 = frozenset(
    """
    accumulateOuterFragmentSettings.schedule accumulationAndReplicationReductionType
    accumulationFactor accumulation_and_replication_reduction_type autoRecomputation
    autodiffSettings.stitchStrategy automaticLossScalingSettings.gradientTensorTrackingMethod
    automaticLossScalingSettings.updatePeriod batchSerializationSettings.batchSchedule
    batchSerializationSettings.factor batchSerializationSettings.method
    batchSerializationSettings.transformContext compilationProgressTotal connection_type
    defaultBufferingDepth defaultPrefetchBufferingDepth device_iterations distributed_process_id
    executionPhaseSettings.phases executionPhaseSettings.stages execution_mode finalDotOp
    firstDotOp globalReplicaOffset globalReplicationFactor gradient_accumulation input_cgt
    input_group_size ipu_id ipu_version looseThresholdAtPeak max_repeat_logs
    meanAccumulationAndReplicationReductionStrategy mergeVarUpdate mergeVarUpdateMemThreshold
    numIOTiles num_distributed_processes output_mode output_return_period random_seed
    replication_factor subgraphCopyingStrategy swapLimitScheduler sync_pattern syntheticDataMode
    tensors_liveness transitiveClosureOptimizationThreshold virtualGraphMode
    """.split()
)

DOUBLE = frozenset(
    """
    automaticLossScalingSettings.binEdgeLocation
    automaticLossScalingSettings.thresholdUpperCountProportion outlineSequenceBreakCost
    outlineThreshold timeLimitScheduler
    """.split()
)

STRING = frozenset(
    """
    cachePath customCodeletCompileFlags kahnTieBreaker logDir log_dir model_name
    partialsTypeMatMuls saveInitializersToFile serializedPoprithmsShiftGraphsDir
    """.split()
)

CONTAINER = frozenset(
    """
    accumulateOuterFragmentSettings.excludedVirtualGraphs convolutionOptions customCodelets
    dotChecks engineOptions gclOptions hardwareInstrumentations lstmOptions matmulOptions
    reportOptions updatableNamedBuffers
    """.split()
)

# How many members an enumeration has; larger integers are refused.
MEMBERS = {
    "accumulateOuterFragmentSettings.schedule": 4,
    "accumulation_and_replication_reduction_type": 3,
    "accumulationAndReplicationReductionType": 3,
    "autoRecomputation": 5,
    "connection_type": 3,
    "execution_mode": 3,
    # Running and Post: the deprecated PostAndLoss has no counterpart in this backend.
    "meanAccumulationAndReplicationReductionStrategy": 2,
    "output_mode": 4,
    "subgraphCopyingStrategy": 2,
    "sync_pattern": 3,
    "syntheticDataMode": 4,
    "tensors_liveness": 4,
    "virtualGraphMode": 5,
}
AT_LEAST_ONE = ("device_iterations", "gradient_accumulation", "replication_factor")
_APART = frozenset(
    """
    anchored_tensors available_memory_proportion compilation_progress_bar_fn ipuof_configs
    location_accumulator location_activation location_optimizer location_weight patterns
    patterns_level
    """.split()
)


def validate_options(options: Mapping[str, Any]) -> None:
    """Refuse what the backend does not know, and counts that it could not run.

    Counts below one are refused here although the SDK takes them and fails later.

    Args:
        options: As ``Options.toDict`` gives them.

    Raises:
        Error: If a key is unknown, or a value of the wrong kind or out of range.
    """
    for name, value in options.items():
        if name not in _APART:
            _check(name, value)
    for name in AT_LEAST_ONE:
        if options.get(name, 1) < 1:
            raise Error(f"{name} must be at least 1, got {options[name]}", "popart_exception")


def _check(name: str, value: Any) -> None:
    for kinds, names, word in _KINDS:
        if isinstance(value, kinds):
            if name not in names:
                raise Error(f"Unknown {word} option {name}", "poptorch_cpp_error")
            break
    else:
        raise Error(f"Unknown value type {type(value)} for option {name}", "poptorch_cpp_error")
    if isinstance(value, int) and not 0 <= value < MEMBERS.get(name, 1 << 64):
        raise Error(f"Value {value} for {name} out of range", "poptorch_cpp_error")
    _log(name, value)


# In this order: a bool is an int in Python.
_KINDS: Tuple[Tuple[Any, FrozenSet[str], str], ...] = (
    (bool, BOOL, "bool"),
    (int, UINT64, "uint64"),
    (float, DOUBLE, "floating point"),
    (str, STRING, "string"),
    (dict, CONTAINER, "map"),
    ((list, set, tuple), CONTAINER, "set / vector"),
)


def _log(name: str, value: Any) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            logger.debug("poptorch.Options set %s[%s] to %s", name, key, item)
    elif isinstance(value, (list, set, tuple)):
        for item in value:
            logger.debug("poptorch.Options added %s to %s", item, name)
    else:
        shown = str(value).lower() if isinstance(value, bool) else value
        logger.debug("poptorch.Options set %s to value %s", name, shown)
