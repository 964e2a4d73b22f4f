"""Our plan as torch's own settings; pure, so it can be read and tested without a device."""

from __future__ import annotations

from typing import Any, Dict, List, Tuple

from unified_ipu.adapter import Lowering, Plan
from unified_ipu.plan import runs_whole_calls
from unified_ipu_torch.errors import NAME
from unified_ipu_torch.lower_ipu import lower_for_ipu

CORE = "core"
"""Done by the update loop, the loader or the reducer; torch sees nothing of it."""

UNUSED = "unused"
"""Has no meaning where torch runs eagerly."""

DEVICE_TABLE = "ipu."
"""Settings of devices, without a meaning on hosts."""

HOST_FIELDS: Dict[str, str] = {
    "target": "device",
    "seed": "torch.manual_seed",
    "deterministic": "torch.use_deterministic_algorithms",
    "mesh.data": CORE,
    "mesh.stage": "stages",
    "batch.global_batch_size": CORE,
    "batch.micro_batch_size": "rows of forward",
    "batch.accumulation_per_replica": CORE,
    "batch.updates_per_call": CORE,
    "batch.remainder": CORE,
    "update.reduction": CORE,
    "update.lr_scaling": CORE,
    "update.warmup_updates": CORE,
    "update.base_global_batch_size": CORE,
    "update.clip_norm": CORE,
    "precision.compute": "torch.autocast",
    "precision.reduce": CORE,
    "precision.loss_scale": CORE,
    "comms.transport": CORE,
    "comms.algorithm": CORE,
    "comms.bucket_bytes": CORE,
    "comms.compression": CORE,
    "comms.overlap": CORE,
    "comms.stall_report_seconds": CORE,
    "comms.timeout_seconds": CORE,
    "pipeline.schedule": UNUSED,
    "pipeline.split": UNUSED,
    "data.shuffle": CORE,
    "data.isolate": CORE,
    "data.workers": CORE,
    "data.python": CORE,
    "compile.cache_dir": UNUSED,
    "compile.optimization_level": UNUSED,
}
"""Where every field of the plan goes on ``cpu`` and ``cuda``."""


def lower(plan: Plan, target: str) -> Lowering:
    """Map every plan field to torch's settings, or refuse it.

    Args:
        plan: Any valid plan.
        target: ``"cpu"``, ``"cuda"``, ``"ipu"``, ``"ipu-emulated"``, or another one, which is
            refused.

    Returns:
        The settings, and what cannot be done.

    Source: ours; ``test_adapter.py`` walks all fields.
    """
    if runs_whole_calls(target):
        return lower_for_ipu(plan, target)
    if target not in {"cpu", "cuda"}:
        change = 'set target = "cpu", "cuda", "ipu" or "ipu-emulated"'
        return Lowering(
            NAME, target, refused=(("target", f"{target} is not written for torch; {change}"),)
        )
    values = flatten(plan.to_dict())
    settings: Dict[str, Any] = {}
    for path, native in HOST_FIELDS.items():
        if native not in {CORE, UNUSED}:
            settings[native] = values[path]
    settings["device"] = target
    refused: List[Tuple[str, str]] = []
    if plan.mesh.stage != 1:
        refused.append(("mesh.stage", "pipeline stages are not built yet; set it to 1"))
    unknown = sorted(p for p in values if p not in HOST_FIELDS and not p.startswith(DEVICE_TABLE))
    refused += [(path, "this version of the torch adapter does not know it") for path in unknown]
    notes = []
    if plan.deterministic and target == "cuda":
        notes.append("deterministic CUDA kernels need CUBLAS_WORKSPACE_CONFIG=:4096:8 at start")
    return Lowering(NAME, target, settings, tuple(refused), tuple(notes))


def flatten(tables: Dict[str, Any], prefix: str = "") -> Dict[str, Any]:
    """Nested tables as one, with dotted paths."""
    flat: Dict[str, Any] = {}
    for name, value in tables.items():
        if isinstance(value, dict):
            flat.update(flatten(value, f"{prefix}{name}."))
        else:
            flat[prefix + name] = value
    return flat
