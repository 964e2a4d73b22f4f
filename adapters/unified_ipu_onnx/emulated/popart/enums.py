"""PopART's enumerations, with the integers of the SDK.

Source: PopART of SDK 3.4, ``python/popart/popart_core/popart.cpp`` and the headers it binds.
"""

from __future__ import annotations

from enum import IntEnum


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


class MeanReductionStrategy(IntEnum):
    """When a mean over micro-batches is divided."""

    Running = 0
    Post = 1


class MergeVarUpdateType(IntEnum):
    """Which updates of variables are merged."""

    Off = 0
    All = 1
    AutoLoose = 2
    AutoTight = 3


class PatternsLevel(IntEnum):
    """Sets of graph rewrites."""

    NoPatterns = 0
    Minimal = 1
    Default = 2
    All = 3


class RecomputationType(IntEnum):
    """Which activations are computed again in backward."""

    NoRecompute = 0
    Standard = 1
    NormOnly = 2
    Pipeline = 3
    RecomputeAll = 4


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


class SubgraphCopyingStrategy(IntEnum):
    """When inputs of a subgraph are copied."""

    OnEnterAndExit = 0
    JustInTime = 1


class SyncPattern(IntEnum):
    """Which IPUs wait for one another."""

    Full = 0
    SinglePipeline = 1
    ReplicaAndLadder = 2


class SyntheticDataMode(IntEnum):
    """What inputs are made of instead of the host's."""

    Off = 0
    Zeros = 1
    RandomNormal = 2
    RandomUniform = 3


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


class VirtualGraphMode(IntEnum):
    """How operators are placed on IPUs."""

    Off = 0
    Manual = 1
    Auto = 2
    ExecutionPhases = 3


class WeightDecayMode(IntEnum):
    """Where weight decay enters."""

    Decay = 0
    L2Regularization = 1
