"""What was decided: the plan, and the arithmetic that follows from it."""

from __future__ import annotations

from unified_ipu.plan.algorithms import (
    automatic_algorithms as automatic_algorithms,
    why_no_algorithm as why_no_algorithm,
)
from unified_ipu.plan.batch import BatchPlan as BatchPlan, MicroSpan as MicroSpan
from unified_ipu.plan.buckets import BucketPlan as BucketPlan, plan_buckets as plan_buckets
from unified_ipu.plan.built import check_built as check_built, not_built as not_built
from unified_ipu.plan.device_batch import (
    DeviceBatch as DeviceBatch,
    device_batch as device_batch,
    notes_on_random_layers as notes_on_random_layers,
    notes_on_updates as notes_on_updates,
    power_of_two_refusal as power_of_two_refusal,
    runs_whole_calls as runs_whole_calls,
)
from unified_ipu.plan.fields import (
    device_fields as device_fields,
    fields_unknown_on_hosts as fields_unknown_on_hosts,
    flat_fields as flat_fields,
    host_fields as host_fields,
)
from unified_ipu.plan.ipu_settings import IpuSettings as IpuSettings
from unified_ipu.plan.merge import merge_plan as merge_plan
from unified_ipu.plan.plan import Plan as Plan
from unified_ipu.plan.replicas import (
    num_processes as num_processes,
    replicas_per_process as replicas_per_process,
    resolve_mesh as resolve_mesh,
)
from unified_ipu.plan.settings import (
    BatchSettings as BatchSettings,
    CommsSettings as CommsSettings,
    CompileSettings as CompileSettings,
    DataSettings as DataSettings,
    MeshAxes as MeshAxes,
    PipelineSettings as PipelineSettings,
    PrecisionSettings as PrecisionSettings,
    UpdateSettings as UpdateSettings,
)
from unified_ipu.plan.tensors import Bucket as Bucket, Slot as Slot, TensorSpec as TensorSpec

__all__ = [
    "BatchPlan",
    "BatchSettings",
    "Bucket",
    "BucketPlan",
    "CommsSettings",
    "CompileSettings",
    "DataSettings",
    "DeviceBatch",
    "IpuSettings",
    "MeshAxes",
    "MicroSpan",
    "PipelineSettings",
    "Plan",
    "PrecisionSettings",
    "Slot",
    "TensorSpec",
    "UpdateSettings",
    "automatic_algorithms",
    "check_built",
    "device_batch",
    "device_fields",
    "fields_unknown_on_hosts",
    "flat_fields",
    "host_fields",
    "merge_plan",
    "not_built",
    "notes_on_random_layers",
    "notes_on_updates",
    "num_processes",
    "plan_buckets",
    "power_of_two_refusal",
    "replicas_per_process",
    "resolve_mesh",
    "runs_whole_calls",
    "why_no_algorithm",
]
