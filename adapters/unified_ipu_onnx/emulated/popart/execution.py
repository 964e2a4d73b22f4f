"""Native options as the counts and reductions of a device call."""

from __future__ import annotations

from dataclasses import dataclass

from unified_ipu.device import (
    CallShape,
    Fabric,
    OutputSelection,
    Position,
    Reduction,
    fabric_of,
    training_stages,
)
from unified_ipu.errors import ConfigError
from unified_ipu_onnx.emulated.popart.data_flow import DataFlow
from unified_ipu_onnx.emulated.popart.devices import DeviceInfo
from unified_ipu_onnx.emulated.popart.enums import (
    AnchorReturnTypeId,
    MeanReductionStrategy,
    ReductionType,
    VirtualGraphMode,
)
from unified_ipu_onnx.emulated.popart.errors import NotEmulatedError, popart_exception
from unified_ipu_onnx.emulated.popart.log import note_once
from unified_ipu_onnx.emulated.popart.session_options import SessionOptions


@dataclass(frozen=True)
class Execution:
    """How a session runs.

    Args:
        shape: Updates, micro-batches of each, replicas of this process.
        reduction: What becomes of their gradients.
        seed_factor: Multiplies the loss before backward: 1, or 1 over all replicas.
        fabric: The processes of the device.
    """

    shape: CallShape
    reduction: Reduction
    seed_factor: float
    fabric: Fabric


def execution_of(
    options: SessionOptions, flow: DataFlow, device: DeviceInfo, *, trains: bool
) -> Execution:
    """Read the options.

    Args:
        options: Of the session.
        flow: Its batches per step.
        device: That it runs on.
        trains: Whether it has a loss.

    Raises:
        popart_exception: If they contradict one another, or ask for what is not emulated.
    """
    accumulation = _accumulation(options, trains=trains)
    local = options.replicatedGraphCount if options.enableReplicatedGraphs else 1
    fabric = _fabric(options, local)
    if device.numIpus % local:
        raise popart_exception(
            f"For replicated graphs, the number of IPUs ({device.numIpus}) must be divisible by "
            f"the replication factor ({local})"
        )
    _check_pipeline(options, flow, device.numIpus // local, accumulation, trains=trains)
    _check_emulated(options)
    is_mean = options.accumulationAndReplicationReductionType is ReductionType.Mean
    strategy = options.meanAccumulationAndReplicationReductionStrategy
    running = strategy is MeanReductionStrategy.Running
    return Execution(
        CallShape(flow.batchesPerStep(), accumulation, local),
        Reduction("mean_running" if running else "mean_post") if is_mean else Reduction(),
        # Autodiff divides the seed; the collective itself always sums.
        1.0 / (local * fabric.size) if is_mean else 1.0,
        fabric,
    )


class EveryNth(OutputSelection):
    """A period counts micro-batches of a replica, and not updates: with accumulation that differs.

    Held by ``tests/integration/anchorreturntype_test.py`` of PopART: of two updates with two
    micro-batches each, a period of 2 returns the second of each.
    """

    def block(self, position: Position) -> int:
        """The block that a micro-batch goes to; -1 if it is not returned."""
        taken = position.iteration * self.shape.accumulation + position.step + 1
        if taken % self.period:
            return -1
        return (taken // self.period - 1) * self.shape.replicas + position.replica


def selection_of(flow: DataFlow, name: str, shape: CallShape) -> OutputSelection:
    """Which micro-batches return an anchor."""
    kind = flow.art(name)
    if kind.id() is AnchorReturnTypeId.EveryN:
        return EveryNth(shape, "every_n", kind.rp())
    modes = {
        AnchorReturnTypeId.All: "all",
        AnchorReturnTypeId.Final: "final",
        AnchorReturnTypeId.Sum: "sum",
    }
    return OutputSelection(shape, modes[kind.id()])


def _accumulation(options: SessionOptions, *, trains: bool) -> int:
    factor = int(options.accumulationFactor)
    if factor < 1:
        raise popart_exception(f"accumulationFactor must be at least 1, got {factor}")
    if options.enableGradientAccumulation:
        if not trains:
            raise popart_exception("Gradient Accumulation only available when training")
        return factor
    if factor > 1:
        raise popart_exception(
            f"accumulationFactor is set to {factor}, but enableGradientAccumulation is False"
        )
    return 1


def _fabric(options: SessionOptions, local: int) -> Fabric:
    if local < 1:
        raise popart_exception(f"replicatedGraphCount must be at least 1, got {local}")
    if not options.enableDistributedReplicatedGraphs:
        return fabric_of(1)
    if options.enableReplicatedGraphs and local == 1:
        raise popart_exception(
            "with enableDistributedReplicatedGraphs, enableReplicatedGraphs needs a local "
            "replicatedGraphCount above 1"
        )
    total, offset = options.globalReplicationFactor, options.globalReplicaOffset
    if total % local or offset % local or not 0 <= offset < total:
        raise popart_exception(
            f"globalReplicationFactor {total} and globalReplicaOffset {offset} must be multiples "
            f"of the local replication factor {local}, the offset below the factor"
        )
    try:
        return fabric_of(total // local, offset // local)
    except ConfigError as error:
        raise popart_exception(str(error)) from error


def _check_pipeline(
    options: SessionOptions, flow: DataFlow, ipus: int, accumulation: int, *, trains: bool
) -> None:
    if not options.enablePipelining:
        return
    if options.virtualGraphMode is VirtualGraphMode.Off or ipus < 2:
        raise popart_exception("Pipelining requires more than 1 IPU and virtualGraphMode not Off")
    if any(flow.art(n).id() is AnchorReturnTypeId.EveryN for n in flow.anchors()):
        raise popart_exception("AnchorReturnType::EVERYN is not valid for pipelined models")
    stages = training_stages(ipus) if trains else ipus
    if trains and not options.enableGradientAccumulation:
        note_once("stale", "a pipeline without accumulation trains on stale weights on hardware")
    depth = accumulation if options.enableGradientAccumulation else flow.batchesPerStep()
    if depth < stages:
        raise popart_exception(
            "For pipelining, depth (gradient accumulation factor or batchesPerStep) must equal at "
            f"least the number of pipeline stages ({stages})"
        )


def _check_emulated(options: SessionOptions) -> None:
    refused = {
        "automaticLossScalingSettings": options.automaticLossScalingSettings.enabled,
        "batchSerializationSettings": options.batchSerializationSettings.factor > 0,
        "customCodelets": bool(options.customCodelets),
        "executionPhaseSettings": options.executionPhaseSettings.phases > 1,
        "updatableNamedBuffers": bool(options.updatableNamedBuffers),
    }
    for name, asked in refused.items():
        if asked:
            raise NotEmulatedError(f"SessionOptions.{name}")
    if options.accumulationAndReplicationReductionType is ReductionType.NoReduction:
        raise popart_exception("accumulationAndReplicationReductionType must be Sum or Mean")
    if options.enableExplicitMainLoops and not options.useHostCopyOps:
        raise popart_exception("enableExplicitMainLoops needs useHostCopyOps")
