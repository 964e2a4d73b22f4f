"""The plan's fields by dotted name, and where those go that mean the same to every adapter."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping

from unified_ipu.plan.plan import Plan

_CORE, _UNUSED = "core", "unused"
_HOST: Dict[str, str] = {
    "mesh.data": _CORE,
    "batch.global_batch_size": _CORE,
    "batch.accumulation_per_replica": _CORE,
    "batch.updates_per_call": _CORE,
    "batch.remainder": _CORE,
    "update.reduction": _CORE,
    "update.lr_scaling": _CORE,
    "update.warmup_updates": _CORE,
    "update.base_global_batch_size": _CORE,
    "update.clip_norm": _CORE,
    "precision.reduce": _CORE,
    "precision.loss_scale": _CORE,
    "comms.transport": _CORE,
    "comms.algorithm": _CORE,
    "comms.bucket_bytes": _CORE,
    "comms.compression": _CORE,
    "comms.overlap": _CORE,
    "comms.stall_report_seconds": _CORE,
    "comms.timeout_seconds": _CORE,
    "pipeline.schedule": _UNUSED,
    "pipeline.split": _UNUSED,
    "data.shuffle": _CORE,
    "data.isolate": _CORE,
    "data.workers": _CORE,
    "data.python": _CORE,
    "compile.cache_dir": _UNUSED,
    "compile.optimization_level": _UNUSED,
}
_AROUND, _PROCESSES = "the loop around the device", "processes of the host"
_DEVICE: Dict[str, str] = {
    "target": _AROUND,
    "deterministic": "note",
    "batch.remainder": _AROUND,
    "update.reduction": "coefficients",
    "comms.transport": _PROCESSES,
    "comms.algorithm": _PROCESSES,
    "comms.bucket_bytes": _PROCESSES,
    "comms.compression": "refused",
    "comms.overlap": _PROCESSES,
    "comms.stall_report_seconds": _PROCESSES,
    "comms.timeout_seconds": _PROCESSES,
    "data.shuffle": _AROUND,
    "data.isolate": _AROUND,
    "data.workers": _AROUND,
    "data.python": _AROUND,
    "compile.optimization_level": "refused",
}


def flat_fields(plan: Plan) -> Dict[str, Any]:
    """Values by dotted name: ``{"seed": 0, "mesh.data": "auto", ...}``.

    Args:
        plan: Any plan.
    """
    flat: Dict[str, Any] = {}
    for name, value in plan.to_dict().items():
        if isinstance(value, dict):
            flat.update({f"{name}.{inner}": each for inner, each in value.items()})
        else:
            flat[name] = value
    return flat


def host_fields(own: Mapping[str, str]) -> Dict[str, str]:
    """Where fields go on ``cpu`` and ``cuda``.

    Args:
        own: What a framework is told itself: its setting, by field.

    Returns:
        With the fields that the core sees to, ``"core"``, and those without a meaning there,
        ``"unused"``.
    """
    return {**_HOST, **own}


def device_fields(own: Mapping[str, str]) -> Dict[str, str]:
    """Where fields go on devices that run whole calls.

    Args:
        own: What the device's framework is told: its settings, by field.

    Returns:
        With the fields that the host sees to, and those that no such device has.
    """
    return {**_DEVICE, **own}


def fields_unknown_on_hosts(plan: Plan, fields: Mapping[str, str]) -> List[str]:
    """Fields of a newer core that an adapter does not know, and must refuse.

    Args:
        plan: Any plan.
        fields: What ``host_fields`` returned.
    """
    return sorted(
        name for name in flat_fields(plan) if name not in fields and not name.startswith("ipu.")
    )
