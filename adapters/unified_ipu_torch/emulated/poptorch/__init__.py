"""PopTorch's names and documented semantics on the host.

Import it as ``from unified_ipu_torch.emulated import poptorch``; only ``install()`` of the parent
package makes ``import poptorch`` mean this. ``poptorch.__emulated__`` is True.
"""

from __future__ import annotations

from unified_ipu_torch.emulated.poptorch import (
    enums as enums,
    optim as optim,
    options as options,
    poptorch_core as poptorch_core,
    profiling as profiling,
    testing as testing,
)
from unified_ipu_torch.emulated.poptorch.accessor import (
    AsynchronousDataAccessor as AsynchronousDataAccessor,
)
from unified_ipu_torch.emulated.poptorch.attribute import Attribute as Attribute
from unified_ipu_torch.emulated.poptorch.blocks import (
    BeginBlock as BeginBlock,
    Block as Block,
    BlockFunction as BlockFunction,
    removeBlocks as removeBlocks,
)
from unified_ipu_torch.emulated.poptorch.context import (
    isRunningOnIpu as isRunningOnIpu,
)
from unified_ipu_torch.emulated.poptorch.control_flow import (
    cond as cond,
    for_loop as for_loop,
)
from unified_ipu_torch.emulated.poptorch.dataloader import DataLoader as DataLoader
from unified_ipu_torch.emulated.poptorch.enums import (
    AutoStage as AutoStage,
    CommGroupType as CommGroupType,
    ConnectionType as ConnectionType,
    DataLoaderMode as DataLoaderMode,
    HalfFloatCastingBehavior as HalfFloatCastingBehavior,
    Liveness as Liveness,
    MatMulSerializationMode as MatMulSerializationMode,
    MeanReductionStrategy as MeanReductionStrategy,
    MultiConvPlanType as MultiConvPlanType,
    OutputMode as OutputMode,
    OverlapMode as OverlapMode,
    ReductionType as ReductionType,
    SharingStrategy as SharingStrategy,
    SyncPattern as SyncPattern,
    VariableRetrievalMode as VariableRetrievalMode,
)
from unified_ipu_torch.emulated.poptorch.errors import (
    Error as Error,
    RecoverableError as RecoverableError,
    UnrecoverableError as UnrecoverableError,
)
from unified_ipu_torch.emulated.poptorch.executor import (
    PoplarExecutor as PoplarExecutor,
)
from unified_ipu_torch.emulated.poptorch.hardware import (
    ipuHardwareIsAvailable as ipuHardwareIsAvailable,
    ipuHardwareVersion as ipuHardwareVersion,
)
from unified_ipu_torch.emulated.poptorch.hooks import (
    registerPostCompileHook as registerPostCompileHook,
    registerPreCompileHook as registerPreCompileHook,
)
from unified_ipu_torch.emulated.poptorch.host_ops import (
    CPU as CPU,
    MultiConv as MultiConv,
    NameScope as NameScope,
    ctc_beam_search_decoder as ctc_beam_search_decoder,
    custom_op as custom_op,
    fps as fps,
    nearest as nearest,
    register_custom_op as register_custom_op,
)
from unified_ipu_torch.emulated.poptorch.locations import (
    TensorLocationSettings as TensorLocationSettings,
)
from unified_ipu_torch.emulated.poptorch.log import logger as logger, setLogLevel as setLogLevel
from unified_ipu_torch.emulated.poptorch.models import (
    inferenceModel as inferenceModel,
    load as load,
    trainingModel as trainingModel,
)
from unified_ipu_torch.emulated.poptorch.ops import (
    dynamic_slice as dynamic_slice,
    dynamic_update as dynamic_update,
    identity_loss as identity_loss,
    ipu_print_tensor as ipu_print_tensor,
    nop as nop,
    recomputationCheckpoint as recomputationCheckpoint,
    serializedMatMul as serializedMatMul,
    set_available_memory as set_available_memory,
    set_overlap_for_input as set_overlap_for_input,
    set_overlap_for_output as set_overlap_for_output,
)
from unified_ipu_torch.emulated.poptorch.option_text import ConfigFileError as ConfigFileError
from unified_ipu_torch.emulated.poptorch.options import Options as Options
from unified_ipu_torch.emulated.poptorch.printing import (
    module_repr as module_repr,
)
from unified_ipu_torch.emulated.poptorch.strategies import (
    ParallelPhasedExecution as ParallelPhasedExecution,
    Phase as Phase,
    PipelinedExecution as PipelinedExecution,
    SerialPhasedExecution as SerialPhasedExecution,
    ShardedExecution as ShardedExecution,
    Stage as Stage,
)
from unified_ipu_torch.emulated.poptorch.structures import (
    ICustomArgParser as ICustomArgParser,
    registerCustomArgParser as registerCustomArgParser,
)

__emulated__ = True
__version__ = "3.4.0+emulated"
