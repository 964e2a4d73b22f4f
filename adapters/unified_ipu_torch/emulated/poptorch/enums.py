"""PopTorch's enumerations, with the integers that its backend is sent.

Source: PopTorch 3.4, ``python/enums.py``.
"""

from __future__ import annotations

from enum import Enum, IntEnum


class MeanReductionStrategy(IntEnum):
    """When a mean over micro-batches and replicas is divided."""

    Running = 0
    Post = 1
    PostAndLoss = 2


class DataLoaderMode(IntEnum):
    """How ``DataLoader`` reads its data set."""

    Sync = 0
    Async = 1
    AsyncRebatched = 2


class SharingStrategy(IntEnum):
    """How the accessor's process would be started; here it is a thread."""

    SharedMemory = 0
    FileSystem = 1
    Fork = 2
    ForkServer = 3


class OutputMode(IntEnum):
    """Which micro-batches' outputs come back from a call."""

    Final = 0
    EveryN = 1
    All = 2
    Sum = 3
    Default = 4


class ConnectionType(IntEnum):
    """When to attach to the device."""

    Always = 0
    OnDemand = 1
    Never = 2


class HalfFloatCastingBehavior(IntEnum):
    """How half and float were mixed in older versions; only ``HalfUpcastToFloat`` is left."""

    FloatDowncastToHalf = 0
    HalfUpcastToFloat = 1
    Default = 2


class ReductionType(IntEnum):
    """How gradients are reduced over micro-batches and replicas."""

    Sum = 0
    Mean = 1
    NoReduction = 2


class SyncPattern(IntEnum):
    """Which IPUs wait for each other."""

    Full = 0
    SinglePipeline = 1
    ReplicaAndLadder = 2


class MatMulSerializationMode(Enum):
    """Along which dim a serialised matrix product is cut."""

    InputChannels = "input_channels"
    ReducingDim = "reducing_dim"
    OutputChannels = "output_channels"
    Disabled = "none"


class Liveness(IntEnum):
    """When tensors leave the chip in phased execution."""

    AlwaysLive = 0
    OffChipAfterFwd = 1
    OffChipAfterFwdNoOverlap = 2
    OffChipAfterEachPhase = 3


class OverlapMode(Enum):
    """Which loop overlaps host transfers with computation."""

    NoOverlap = "no_overlap"
    OverlapAccumulationLoop = "overlap_accumulation_loop"
    OverlapDeviceIterationLoop = "overlap_device_iteration_loop"


class AutoStage(IntEnum):
    """How blocks get their stage when none is given."""

    SameAsIpu = 0
    AutoIncrement = 1


class MultiConvPlanType(IntEnum):
    """Whether the convolutions of a ``MultiConv`` run side by side."""

    Parallel = 0
    Serial = 1


class CommGroupType(IntEnum):
    """Which replicas share an input or a variable."""

    All = 0
    Consecutive = 1
    Orthogonal = 2
    NoGrouping = 3


class VariableRetrievalMode(IntEnum):
    """Which replicas' values of a variable come back."""

    OnePerGroup = 0
    AllReplicas = 2
