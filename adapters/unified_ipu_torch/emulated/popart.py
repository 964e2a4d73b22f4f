"""The enumerations of ``popart`` that PopTorch scripts hand over as integers; nothing else of it.

Scripts write ``options._Popart.set(name, int(popart.Some.Member))``. Sessions and builders of
PopART belong to the ONNX adapter's emulation.

Source: PopART 3.4, ``willow/include/popart/sessionoptions.hpp`` (the integers) and
``python/popart/popart.cpp`` (the spelling in Python, where ``None`` cannot be a name).
"""

from __future__ import annotations

from enum import IntEnum

__emulated__ = True


class RecomputationType(IntEnum):
    """Which activations are computed again in the backward pass."""

    NoRecompute = 0
    Standard = 1
    NormOnly = 2
    Pipeline = 3
    RecomputeAll = 4


class MergeVarUpdateType(IntEnum):
    """Which updates of variables are merged."""

    Off = 0
    All = 1
    AutoLoose = 2
    AutoTight = 3


class VirtualGraphMode(IntEnum):
    """How operations are put on IPUs."""

    Off = 0
    Manual = 1
    Auto = 2
    ExecutionPhases = 3


class SyntheticDataMode(IntEnum):
    """What the device makes up instead of reading inputs."""

    Off = 0
    Zeros = 1
    RandomNormal = 2
    RandomUniform = 3


class Instrumentation(IntEnum):
    """Which cycles the hardware counts."""

    Outer = 0
    Inner = 1


class BatchSerializationBatchSchedule(IntEnum):
    """In which order the parts of a serialised batch run."""

    Scheduler = 0
    Isomorphic = 1
    OverlapOnIo = 2
    OverlapOnCompute = 3


class BatchSerializationTransformContext(IntEnum):
    """Which pass a batch is serialised in."""

    Fwd = 0
    Bwd = 1


class BatchSerializationMethod(IntEnum):
    """How a batch is serialised."""

    UnrollDynamic = 0
    UnrollStatic = 1
    Loop = 2


class AccumulateOuterFragmentSchedule(IntEnum):
    """In which order the operations behind accumulation run."""

    Scheduler = 0
    Serial = 1
    OverlapCycleOptimized = 2
    OverlapMemoryOptimized = 3


class SubgraphCopyingStrategy(IntEnum):
    """When inputs and outputs of subgraphs are copied."""

    OnEnterAndExit = 0
    JustInTime = 1


class GradientTensorTrackingMethod(IntEnum):
    """Which gradients automatic loss scaling looks at."""

    AllNonViewChangingGradientTensors = 0
    ConvAndMatmulGradients = 1
    GradientsOfUserSpecifiedTensors = 2


class MeanReductionStrategy(IntEnum):
    """When a mean over micro-batches and replicas is divided."""

    Running = 0
    Post = 1
