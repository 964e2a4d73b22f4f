"""The boundary between the core and the frameworks."""

from __future__ import annotations

from unified_ipu.adapter import losses as losses, metrics as metrics, optim as optim
from unified_ipu.adapter.capability import Capability as Capability, Support as Support
from unified_ipu.adapter.contract import (
    Adapter as Adapter,
    Array as Array,
    Buffer as Buffer,
    Call as Call,
    DeviceCall as DeviceCall,
    Executor as Executor,
    Job as Job,
    Kernels as Kernels,
    Loss as Loss,
    Lowering as Lowering,
    Metric as Metric,
    MicroBatch as MicroBatch,
    NativeCall as NativeCall,
    Place as Place,
    Plan as Plan,
    Replica as Replica,
    Slot as Slot,
    Tally as Tally,
    TensorSpec as TensorSpec,
    Tree as Tree,
    Update as Update,
)
from unified_ipu.adapter.crossing import (
    Bridge as Bridge,
    Copies as Copies,
    CopyReason as CopyReason,
    CountsCopies as CountsCopies,
    array_of as array_of,
    check_dtype as check_dtype,
    crossing_dtypes as crossing_dtypes,
    is_aligned as is_aligned,
    named as named,
    owner_of as owner_of,
)
from unified_ipu.adapter.device_contract import (
    Device as Device,
    DeviceTally as DeviceTally,
    DeviceUpdate as DeviceUpdate,
    Measure as Measure,
)
from unified_ipu.adapter.eject import (
    EjectRequest as EjectRequest,
    Ejects as Ejects,
    NativeText as NativeText,
)
from unified_ipu.adapter.host_batch import host_batch as host_batch
from unified_ipu.adapter.metrics import (
    GatheredMetric as GatheredMetric,
    HostMetric as HostMetric,
)
from unified_ipu.adapter.names import (
    CanonicalTensor as CanonicalTensor,
    canonical_tensors as canonical_tensors,
)
from unified_ipu.adapter.native_calls import (
    apply_native_calls as apply_native_calls,
    native_arguments as native_arguments,
    native_value as native_value,
)
from unified_ipu.adapter.native_text import (
    assignment_text as assignment_text,
    call_text as call_text,
    expression_text as expression_text,
    literal as literal,
    native_code as native_code,
    setting_text as setting_text,
)
from unified_ipu.adapter.record import Record as Record
from unified_ipu.adapter.registry import (
    available_adapters as available_adapters,
    find_adapter as find_adapter,
    load_adapter as load_adapter,
    registered as registered,
)
from unified_ipu.adapter.trainable import (
    choose_trainable as choose_trainable,
    nearest as nearest,
)
from unified_ipu.adapter.tree import (
    inputs_of as inputs_of,
    leaves as leaves,
    map_tree as map_tree,
    rows as rows,
    split_batch as split_batch,
)

__all__ = [
    "Adapter",
    "Array",
    "Bridge",
    "Buffer",
    "Call",
    "CanonicalTensor",
    "Capability",
    "Copies",
    "CopyReason",
    "CountsCopies",
    "Device",
    "DeviceCall",
    "DeviceTally",
    "DeviceUpdate",
    "EjectRequest",
    "Ejects",
    "Executor",
    "GatheredMetric",
    "HostMetric",
    "Job",
    "Kernels",
    "Loss",
    "Lowering",
    "Measure",
    "Metric",
    "MicroBatch",
    "NativeCall",
    "NativeText",
    "Place",
    "Plan",
    "Record",
    "Replica",
    "Slot",
    "Support",
    "Tally",
    "TensorSpec",
    "Tree",
    "Update",
    "apply_native_calls",
    "array_of",
    "assignment_text",
    "available_adapters",
    "call_text",
    "canonical_tensors",
    "check_dtype",
    "choose_trainable",
    "crossing_dtypes",
    "expression_text",
    "find_adapter",
    "host_batch",
    "inputs_of",
    "is_aligned",
    "leaves",
    "literal",
    "load_adapter",
    "losses",
    "map_tree",
    "metrics",
    "named",
    "native_arguments",
    "native_code",
    "native_value",
    "nearest",
    "optim",
    "owner_of",
    "registered",
    "rows",
    "setting_text",
    "split_batch",
]
