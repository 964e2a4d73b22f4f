"""Which of PopTorch's public names the emulation has, as a table for the documents.

``python -m unified_ipu_torch.emulated.surface`` prints it. Only the names are written down here;
how a name fares is read off the code: a function that only refuses, or says it has no effect.

Source: PopTorch 3.4, ``python/*.py``: every public class, function and method.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from typing import Any, Dict, List, Tuple

from unified_ipu_torch.emulated import poptorch
from unified_ipu_torch.emulated.poptorch import (
    locations,
    optim,
    option_groups,
    strategies,
    structures,
    variable_attributes,
)

DONE, NOTE, REFUSED, ABSENT = "done", "note", "refused", "absent"
WORDS = {
    DONE: "as documented",
    NOTE: "accepted and kept; has no effect, which is logged once",
    REFUSED: "raises `poptorch.Error` with the reason",
    ABSENT: "not there",
}
# What a function calls that says, itself or through its group, that it has no effect.
_NOTES = {"note_once", "_note", "_set", "_flag", "_integer", "setEngineOptions"}
_REFUSALS = {"absent"}

NAMES: Tuple[Tuple[str, Any, str], ...] = (
    (
        "poptorch",
        poptorch,
        """
        AsynchronousDataAccessor Attribute AutoStage BeginBlock Block BlockFunction CPU
        CommGroupType ConfigFileError ConnectionType DataLoader DataLoaderMode Error
        HalfFloatCastingBehavior ICustomArgParser Liveness MatMulSerializationMode
        MeanReductionStrategy MultiConv MultiConvPlanType NameScope Options OutputMode OverlapMode
        ParallelPhasedExecution Phase PipelinedExecution PoplarExecutor RecoverableError
        ReductionType SerialPhasedExecution ShardedExecution SharingStrategy Stage SyncPattern
        TensorLocationSettings UnrecoverableError VariableRetrievalMode cond
        ctc_beam_search_decoder custom_op dynamic_slice dynamic_update enums for_loop fps
        identity_loss inferenceModel ipuHardwareIsAvailable ipuHardwareVersion ipu_print_tensor
        isRunningOnIpu load logger module_repr nearest nop optim options poptorch_core profiling
        recomputationCheckpoint registerCustomArgParser registerGeometricCustomArgParsers
        registerPostCompileHook registerPreCompileHook removeBlocks serializedMatMul setLogLevel
        set_available_memory set_overlap_for_input set_overlap_for_output testing trainingModel
        """,
    ),
    (
        "poptorch.Options",
        poptorch.Options,
        """
        Distributed Jit Precision TensorLocations Training anchorTensor appendToLocationExcludes
        autoRoundNumIPUs broadcastBuffers clone connectionType defaultOutputMode deviceIterations
        disableModuleNamescope enableExecutableCaching enableProfiling enableStableNorm
        enableSyntheticData from_json inputReplicaGrouping loadFromFile logCycleCount logDir
        maxRepeatLogs modelName outputMode randomSeed relaxOptimizerAttributesChecks
        replicationFactor setAvailableMemoryProportion setExecutionStrategy
        showCompilationProgressBar sourceLocationExcludes syncPattern toDict updatableNamedBuffers
        useIpuId useIpuModel useOfflineIpuTarget
        """,
    ),
    (
        "Options.Training",
        option_groups._TrainingOptions,
        """
        accumulationAndReplicationReductionType gradientAccumulation setAutomaticLossScaling
        setConvolutionDithering setMeanAccumulationAndReplicationReductionStrategy
        """,
    ),
    (
        "Options.Precision",
        option_groups._PrecisionOptions,
        """
        enableFloatingPointExceptions enableStochasticRounding halfFloatCasting
        runningStatisticsAlwaysFloat setPartialsType
        """,
    ),
    ("Options.Jit", option_groups._JitOptions, "traceModel"),
    ("Options._Popart", option_groups._PopartOptions, "set setEngineOptions setPatterns"),
    (
        "Options.Distributed",
        option_groups._DistributedOptions,
        "configureProcessId disable numProcesses processId setEnvVarNames",
    ),
    (
        "Options.TensorLocations",
        locations._TensorLocationOptions,
        """
        numIOTiles setAccumulatorLocation setActivationLocation setOptimizerLocation
        setWeightLocation
        """,
    ),
    (
        "poptorch.TensorLocationSettings",
        poptorch.TensorLocationSettings,
        """
        minElementsForOffChip minElementsForReplicatedTensorSharding useIOTilesToLoad
        useIOTilesToStore useOnChipStorage useReplicatedTensorSharding
        """,
    ),
    ("poptorch.Stage", strategies.Stage, "blocks ipu"),
    ("poptorch.Phase", strategies.Phase, "ipus stage"),
    (
        "execution strategies",
        strategies.SerialPhasedExecution,
        "phase setTensorsLiveness stage useSeparateBackwardPhase",
    ),
    (
        "poptorch.PoplarExecutor",
        poptorch.PoplarExecutor,
        """
        attachToDevice compilationTime compile compileAndExport copyNamedBuffersToDevice
        copyWeightsToDevice copyWeightsToHost copyWeightsToHostIfNeeded cycleCount destroy
        detachFromDevice getAnchoredTensor getComputeLatency getHostIpuLatency getIpuHostLatency
        getLatency getPerfCounters getTensorNames isAttachedToDevice isCompiled loadExecutable
        load_state_dict model options rng_state save setOptimizer
        """,
    ),
    ("poptorch.DataLoader", poptorch.DataLoader, "combinedBatchSize options terminate"),
    ("poptorch.AsynchronousDataAccessor", poptorch.AsynchronousDataAccessor, "terminate"),
    ("poptorch.Block", poptorch.Block, "start useAutoId"),
    ("poptorch.CPU", poptorch.CPU, "execute registerPersistentData"),
    (
        "poptorch.MultiConv",
        poptorch.MultiConv,
        """
        availableMemoryProportions cycleBackOff enableConvDithering partialsTypes
        perConvReservedTiles planType
        """,
    ),
    ("poptorch.optim", optim, "Adam AdamW LAMB Optimizer RMSprop SGD VariableAttributes"),
    (
        "poptorch.optim.VariableAttributes",
        variable_attributes.VariableAttributes,
        "isConstant markAsConstant markAsVariable",
    ),
    (
        "poptorch.optim.Optimizer",
        variable_attributes.Optimizer,
        "get_state_dict has_state load_state_dict set_state_dict state_dict",
    ),
    ("poptorch.ICustomArgParser", structures.ICustomArgParser, "reconstruct yieldTensors"),
    ("poptorch.profiling", poptorch.profiling, "Channel"),
)


def status_of(owner: Any, name: str) -> str:
    """How a name of the SDK fares in the emulation.

    Args:
        owner: A module or class of the emulation.
        name: The SDK's.

    Returns:
        ``DONE``, ``NOTE``, ``REFUSED`` or ``ABSENT``.
    """
    if not hasattr(owner, name):
        return ABSENT
    found = inspect.getattr_static(owner, name)
    if isinstance(found, (staticmethod, classmethod)):
        found = found.__func__
    if not inspect.isfunction(found) and not _is_noted_class(found):
        return DONE
    tree = ast.parse(textwrap.dedent(inspect.getsource(found)))
    if _only_refuses(tree):
        return REFUSED
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    is_noted = any(_name(call) in _NOTES or _sets_popart(call) for call in calls)
    return NOTE if is_noted and name not in WITH_EFFECT else DONE


# Sent to PopART under a name of its own, and obeyed here.
WITH_EFFECT = {"enableSyntheticData", "updatableNamedBuffers", "set_overlap_for_input"}


def _is_noted_class(found: Any) -> bool:
    return inspect.isclass(found) and found.__name__ in {"Attribute", "NameScope"}


def _only_refuses(tree: ast.Module) -> bool:
    function = tree.body[0]
    body = getattr(function, "body", [])
    last = body[-1].value if body and isinstance(body[-1], ast.Expr) else None
    is_refusal = isinstance(last, ast.Call) and getattr(last.func, "id", "") in _REFUSALS
    return is_refusal and len(body) <= 2


def _name(call: ast.Call) -> str:
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _sets_popart(call: ast.Call) -> bool:
    """Whether it sets an option by PopART's own name, which is a text."""
    first = call.args[0] if call.args else None
    return _name(call) == "set" and isinstance(first, ast.Constant) and isinstance(first.value, str)


def render() -> str:
    """The table in Markdown."""
    lines = ["| | " + " | ".join(f"{state}: {WORDS[state]}" for state in WORDS) + " |"]
    lines.append("|---" * (len(WORDS) + 1) + "|")
    for title, owner, names in NAMES:
        found: Dict[str, List[str]] = {state: [] for state in WORDS}
        for name in names.split():
            found[status_of(owner, name)].append(f"`{name}`")
        cells = " | ".join(", ".join(found[state]) for state in WORDS)
        lines.append(f"| `{title}` | {cells} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(render(), end="")  # noqa: T201  # what the command is for
