"""PopART's enumerations, with the integers of the SDK.

Source: PopART of SDK 3.4, ``python/popart/popart_core/popart.cpp`` and the headers it binds.
"""

from __future__ import annotations

from enum import IntEnum

from unified_ipu_torch.emulated.popart import (
    AccumulateOuterFragmentSchedule as AccumulateOuterFragmentSchedule,
    BatchSerializationBatchSchedule as BatchSerializationBatchSchedule,
    BatchSerializationMethod as BatchSerializationMethod,
    BatchSerializationTransformContext as BatchSerializationTransformContext,
    GradientTensorTrackingMethod as GradientTensorTrackingMethod,
    Instrumentation as Instrumentation,
    MeanReductionStrategy as MeanReductionStrategy,
    MergeVarUpdateType as MergeVarUpdateType,
    RecomputationType as RecomputationType,
    SubgraphCopyingStrategy as SubgraphCopyingStrategy,
    SyntheticDataMode as SyntheticDataMode,
    VirtualGraphMode as VirtualGraphMode,
)


class AdamMode(IntEnum):
    """Variants of Adam."""

    Adam = 0
    AdamNoBias = 1
    AdaMax = 2
    Lamb = 3
    LambNoBias = 4


class AnchorReturnTypeId(IntEnum):
    """Which of a step's values come back."""

    Final = 0
    EveryN = 1
    All = 2
    Sum = 3


class CommGroupType(IntEnum):
    """How replicas are grouped."""

    All = 0
    Consecutive = 1
    Orthogonal = 2
    Ungrouped = 3


class DataType(IntEnum):
    """Types of elements."""

    UINT8 = 0
    INT8 = 1
    FLOAT8_143 = 2
    FLOAT8_152 = 3
    UINT16 = 4
    INT16 = 5
    INT32 = 6
    INT64 = 7
    UINT32 = 8
    UINT64 = 9
    BOOL = 10
    FLOAT = 11
    FLOAT16 = 12
    BFLOAT16 = 13
    DOUBLE = 14
    COMPLEX64 = 15
    COMPLEX128 = 16
    STRING = 17
    UNDEFINED = 18


class DeviceConnectionType(IntEnum):
    """When a session attaches to its device."""

    Always = 0
    OnDemand = 1
    Never = 2


class DeviceSelectionCriterion(IntEnum):
    """Which free device is taken."""

    First = 0
    Random = 1


class DeviceType(IntEnum):
    """Kinds of devices."""

    IpuModel = 0
    Cpu = 1
    Ipu = 2
    OfflineIpu = 3
    Sim = 4


class ExchangeStrategy(IntEnum):
    """When host transfers happen."""

    JustInTime = 0
    OverlapInnerLoop = 1
    OverlapLoops = 2
    OverlapStep = 3


class PatternsLevel(IntEnum):
    """Sets of graph rewrites."""

    NoPatterns = 0
    Minimal = 1
    Default = 2
    All = 3


class ReductionType(IntEnum):
    """How values become one."""

    Sum = 0
    Mean = 1
    NoReduction = 2


class ReplicatedStreamMode(IntEnum):
    """Whether replicas get rows of their own."""

    Broadcast = 0
    Replicate = 1


class ReplicatedTensorSharding(IntEnum):
    """Whether replicas share a tensor among them."""

    Off = 0
    On = 1


class SGDAccumulatorAndMomentum(IntEnum):
    """Whether gradients are summed into the velocity or apart from it."""

    Combined = 0
    Separate = 1


class SyncPattern(IntEnum):
    """Which IPUs wait for one another."""

    Full = 0
    SinglePipeline = 1
    ReplicaAndLadder = 2


class TensorStorage(IntEnum):
    """Where a tensor lies."""

    OnChip = 0
    OffChip = 1


class TileSet(IntEnum):
    """Tiles for computing or for host transfers."""

    Compute = 0
    IO = 1


class VariableRetrievalMode(IntEnum):
    """How a variable comes back from replicas."""

    OnePerGroup = 0
    AllReduceReplicas = 1
    AllReplicas = 2


class WeightDecayMode(IntEnum):
    """Where weight decay enters."""

    Decay = 0
    L2Regularization = 1
