"""What was decided: the plan, and the arithmetic that follows from it."""

from __future__ import annotations

from unified_ipu.plan.batch import BatchPlan as BatchPlan
from unified_ipu.plan.batch import MicroSpan as MicroSpan
from unified_ipu.plan.buckets import BucketPlan as BucketPlan
from unified_ipu.plan.buckets import plan_buckets as plan_buckets
from unified_ipu.plan.plan import Plan as Plan
from unified_ipu.plan.settings import BatchSettings as BatchSettings
from unified_ipu.plan.settings import CommsSettings as CommsSettings
from unified_ipu.plan.settings import CompileSettings as CompileSettings
from unified_ipu.plan.settings import DataSettings as DataSettings
from unified_ipu.plan.settings import MeshAxes as MeshAxes
from unified_ipu.plan.settings import PipelineSettings as PipelineSettings
from unified_ipu.plan.settings import PrecisionSettings as PrecisionSettings
from unified_ipu.plan.settings import UpdateSettings as UpdateSettings
from unified_ipu.plan.tensors import Bucket as Bucket
from unified_ipu.plan.tensors import Slot as Slot
from unified_ipu.plan.tensors import TensorSpec as TensorSpec

__all__ = [
    "BatchPlan",
    "BatchSettings",
    "Bucket",
    "BucketPlan",
    "CommsSettings",
    "CompileSettings",
    "DataSettings",
    "MeshAxes",
    "MicroSpan",
    "PipelineSettings",
    "Plan",
    "PrecisionSettings",
    "Slot",
    "TensorSpec",
    "UpdateSettings",
    "plan_buckets",
]
