"""PopART's names and documented semantics on the host: no Poplar, no IPU.

Graphs are computed by torch, micro-batch after micro-batch, as the native options say; what is not
known to behave as on a device is refused. ``from unified_ipu_onnx.emulated import popart``.
"""

from __future__ import annotations

import sys
from typing import Any

from unified_ipu_onnx.emulated.popart.builder import Builder as Builder
from unified_ipu_onnx.emulated.popart.data_flow import (
    AnchorReturnType as AnchorReturnType,
    DataFlow as DataFlow,
    InputSettings as InputSettings,
    InputShapeInfo as InputShapeInfo,
)
from unified_ipu_onnx.emulated.popart.devices import (
    DeviceInfo as DeviceInfo,
    DeviceManager as DeviceManager,
)
from unified_ipu_onnx.emulated.popart.enums import (
    AccumulateOuterFragmentSchedule as AccumulateOuterFragmentSchedule,
    AdamMode as AdamMode,
    AnchorReturnTypeId as AnchorReturnTypeId,
    BatchSerializationBatchSchedule as BatchSerializationBatchSchedule,
    BatchSerializationMethod as BatchSerializationMethod,
    BatchSerializationTransformContext as BatchSerializationTransformContext,
    CommGroupType as CommGroupType,
    DataType as DataType,
    DeviceConnectionType as DeviceConnectionType,
    DeviceSelectionCriterion as DeviceSelectionCriterion,
    DeviceType as DeviceType,
    ExchangeStrategy as ExchangeStrategy,
    GradientTensorTrackingMethod as GradientTensorTrackingMethod,
    Instrumentation as Instrumentation,
    MeanReductionStrategy as MeanReductionStrategy,
    MergeVarUpdateType as MergeVarUpdateType,
    PatternsLevel as PatternsLevel,
    RecomputationType as RecomputationType,
    ReductionType as ReductionType,
    ReplicatedStreamMode as ReplicatedStreamMode,
    ReplicatedTensorSharding as ReplicatedTensorSharding,
    SGDAccumulatorAndMomentum as SGDAccumulatorAndMomentum,
    SubgraphCopyingStrategy as SubgraphCopyingStrategy,
    SyncPattern as SyncPattern,
    SyntheticDataMode as SyntheticDataMode,
    TensorStorage as TensorStorage,
    TileSet as TileSet,
    VariableRetrievalMode as VariableRetrievalMode,
    VirtualGraphMode as VirtualGraphMode,
    WeightDecayMode as WeightDecayMode,
)
from unified_ipu_onnx.emulated.popart.errors import (
    NotEmulatedError,
    OutOfMemoryException as OutOfMemoryException,
    popart_exception as popart_exception,
)
from unified_ipu_onnx.emulated.popart.log import Logger as Logger, getLogger as getLogger
from unified_ipu_onnx.emulated.popart.names import (
    reservedAccl1Prefix as reservedAccl1Prefix,
    reservedAccl2Prefix as reservedAccl2Prefix,
    reservedAccl3Prefix as reservedAccl3Prefix,
    reservedAcclPrefix as reservedAcclPrefix,
    reservedAccumPrefix as reservedAccumPrefix,
    reservedGradientPrefix as reservedGradientPrefix,
    reservedStepPrefix as reservedStepPrefix,
)
from unified_ipu_onnx.emulated.popart.optimizers import (
    SGD as SGD,
    Adam as Adam,
    Adaptive as Adaptive,
    ClipNormSettings as ClipNormSettings,
    ConstSGD as ConstSGD,
    Optimizer as Optimizer,
)
from unified_ipu_onnx.emulated.popart.patterns import Patterns as Patterns
from unified_ipu_onnx.emulated.popart.session import (
    InferenceSession as InferenceSession,
    TrainingSession as TrainingSession,
)
from unified_ipu_onnx.emulated.popart.session_options import (
    AccumulateOuterFragmentSettings as AccumulateOuterFragmentSettings,
    AutomaticLossScalingSettings as AutomaticLossScalingSettings,
    BatchSerializationSettings as BatchSerializationSettings,
    ExecutionPhaseSettings as ExecutionPhaseSettings,
    ExperimentalSettings as ExperimentalSettings,
    ReplicatedCollectivesSettings as ReplicatedCollectivesSettings,
    SessionOptions as SessionOptions,
)
from unified_ipu_onnx.emulated.popart.settings import (
    CommGroup as CommGroup,
    TensorLocation as TensorLocation,
    TensorLocationSettings as TensorLocationSettings,
)
from unified_ipu_onnx.emulated.popart.step_io import (
    PyStepIO as PyStepIO,
    PyStepIOCallback as PyStepIOCallback,
    PyWeightsIO as PyWeightsIO,
)
from unified_ipu_onnx.emulated.popart.support import DEFAULT_OPSET
from unified_ipu_onnx.emulated.popart.tensor_info import TensorInfo as TensorInfo

__emulated__ = True
__version__ = "3.4.0+emulated"
defaultAiOnnxOpset = DEFAULT_OPSET
defaultAiGraphcoreOpset = 1


def install() -> None:
    """Make ``import popart`` give this module, in this process.

    Raises:
        ImportError: If another popart was imported already.
    """
    found = sys.modules.get("popart")
    if found is not None and found is not sys.modules[__name__]:
        raise ImportError(f"popart was imported already, from {found}")
    sys.modules["popart"] = sys.modules[__name__]


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    raise (
        NotEmulatedError(name)
        if name in _REFUSED
        else AttributeError(f"module 'popart' has no attribute {name!r} here")
    )


_REFUSED = frozenset(
    {
        "GraphTransformer",
        "VariableSettings",
        "getSupportedOperations",
        "getSupportedOperationsDefinition",
        "getUnsupportedOperations",
    }
)
