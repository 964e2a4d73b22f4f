"""A walk over all fields of a plan: each is mapped, refused, or has a meaning on the host only."""

from __future__ import annotations

from typing import Any, Callable, Dict, Mapping, Set

from unified_ipu.adapter import Lowering
from unified_ipu.plan import Plan

BASE = {"batch.remainder": "pad", "mesh.data": 1}

# Another value than the default for every field, and whether it shows: in the calls, as a
# refusal, or nowhere, since it has a meaning on the host only.
OTHER = {
    "target": ("ipu", "host"),
    "seed": (7, "call"),
    "deterministic": (True, "note"),
    "mesh.data": (2, "call"),
    "mesh.stage": (2, "call"),
    "batch.global_batch_size": (128, "call"),
    "batch.micro_batch_size": (8, "call"),
    "batch.accumulation_per_replica": (4, "same"),
    "batch.updates_per_call": (5, "call"),
    "batch.remainder": ("exact", "refused"),
    "update.reduction": ("sum", "note"),
    "update.lr_scaling": ("linear", "host"),
    "update.warmup_updates": (5, "host"),
    "update.base_global_batch_size": (32, "host"),
    "update.clip_norm": (1.0, "call"),
    "precision.compute": ("float16", "call"),
    "precision.reduce": ("compute", "half"),
    "precision.loss_scale": (128.0, "call"),
    "comms.transport": ("c10d", "host"),
    "comms.algorithm": ("ring", "host"),
    "comms.bucket_bytes": (1 << 20, "host"),
    "comms.compression": ("float16", "refused"),
    "comms.overlap": ("none", "host"),
    "comms.stall_report_seconds": (5.0, "host"),
    "comms.timeout_seconds": (60.0, "host"),
    "pipeline.schedule": ("gpipe", "stages"),
    "pipeline.split": ("layer3", "stages"),
    "data.shuffle": (False, "host"),
    "data.isolate": ("never", "host"),
    "data.workers": (2, "host"),
    "data.python": ("python3.8", "host"),
    "compile.cache_dir": ("cache", "call"),
    "compile.optimization_level": (3, "refused"),
    "ipu.ipus_per_replica": (2, "shape"),
    "ipu.replicas_per_process": (2, "call"),
    "ipu.partials_type": ("float16", "call"),
    "ipu.stochastic_rounding": (True, "call"),
    "ipu.available_memory_proportion": (0.4, "call"),
    "ipu.weights": ("off-chip", "call"),
    "ipu.optimizer_state": ("off-chip", "call"),
    "ipu.activations": ("off-chip", "call"),
    "ipu.accumulators": ("off-chip", "call"),
    "ipu.replicated_tensor_sharding": (True, "replicas"),
    "ipu.prefetch_depth": (3, "call"),
    "ipu.io_tiles": (32, "call"),
    "ipu.synthetic_data": (True, "call"),
    "ipu.offline_compile": (True, "call"),
    "ipu.random_layers": ("native", "note"),
}


NEEDED: Dict[str, Dict[str, Any]] = {  # what else a field needs to have a meaning
    "mesh.data": {"ipu.replicas_per_process": 2},
    "mesh.stage": {"batch.micro_batch_size": 4},
    "update.lr_scaling": {"update.base_global_batch_size": 32},
    "ipu.replicas_per_process": {"mesh.data": 2},
    "half": {"precision.compute": "float16"},
    "stages": {"mesh.stage": 2, "batch.micro_batch_size": 4},
    "replicas": {"mesh.data": 2, "ipu.replicas_per_process": 2},
}


def fields(tables: Mapping[str, Any], prefix: str = "") -> Set[str]:
    """Dotted paths of all settings."""
    found: Set[str] = set()
    for name, value in tables.items():
        if isinstance(value, dict):
            found |= fields(value, f"{prefix}{name}.")
        else:
            found.add(prefix + name)
    return found


def check_field(lower: Callable[[Plan, str], Lowering], field: str) -> None:
    """Change one field, and look where it shows."""
    value, where = OTHER[field]
    around = {**BASE, **NEEDED.get(field, {}), **NEEDED.get(where, {})}
    before = lower(Plan().replace(around), "ipu")
    after = lower(Plan().replace({**around, field: value}), "ipu")
    if where in {"refused", "stages"}:
        assert field not in dict(before.refused)
        assert field in dict(after.refused)
    elif where in {"call", "half", "replicas"}:
        assert after.refused == ()
        assert after.calls != before.calls
    elif where == "note":
        assert after.notes != before.notes
    elif where == "shape":
        assert after.device_call != before.device_call
    else:
        assert (after.calls, after.refused) == (before.calls, before.refused)
