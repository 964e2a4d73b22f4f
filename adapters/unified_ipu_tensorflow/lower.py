"""Our plan as TensorFlow's own settings; pure, so it can be read and tested without a device."""

from __future__ import annotations

from typing import List, Tuple

from unified_ipu.adapter import Lowering, Plan
from unified_ipu.plan import (
    fields_unknown_on_hosts,
    flat_fields,
    host_fields,
    runs_whole_calls,
)
from unified_ipu_tensorflow.errors import NAME
from unified_ipu_tensorflow.lower_ipu import lower_for_ipu

_OWN = {
    "target": "device",
    "seed": "tf.random.set_seed",
    "deterministic": "tf.config.experimental.enable_op_determinism",
    "mesh.stage": "stages",
    "batch.micro_batch_size": "rows of forward",
    "precision.compute": "keras.mixed_precision",
}
HOST_FIELDS = host_fields(_OWN)
"""Where every field of the plan goes on ``cpu`` and ``cuda``."""


def lower(plan: Plan, target: str, *, can_repeat: bool = True) -> Lowering:
    """Map every plan field to TensorFlow's settings, or refuse it.

    Args:
        plan: Any valid plan.
        target: ``"cpu"``, ``"cuda"``, ``"ipu"``, ``"ipu-emulated"``, or another one, which is
            refused.
        can_repeat: Whether this TensorFlow has deterministic kernels to switch on.

    Returns:
        The settings, and what cannot be done.

    Source: ours; ``test_adapter.py`` walks all fields.
    """
    if runs_whole_calls(target):
        return lower_for_ipu(plan, target)
    if target not in {"cpu", "cuda"}:
        change = 'set target = "cpu", "cuda", "ipu" or "ipu-emulated"'
        return Lowering(
            NAME, target, refused=(("target", f"{target} is not written for TensorFlow; {change}"),)
        )
    values = flat_fields(plan)
    settings = {native: values[path] for path, native in _OWN.items()}
    settings["device"] = target
    refused: List[Tuple[str, str]] = []
    if plan.precision.compute != "float32":
        settings["keras.mixed_precision"] = f"mixed_{plan.precision.compute}"
    if plan.deterministic and not can_repeat:
        change = "deterministic kernels come with TensorFlow 2.8; set it to false, or upgrade"
        refused.append(("deterministic", change))
    if plan.mesh.stage != 1:
        refused.append(("mesh.stage", "pipeline stages are not built yet; set it to 1"))
    unknown = fields_unknown_on_hosts(plan, HOST_FIELDS)
    refused += [
        (path, "this version of the TensorFlow adapter does not know it") for path in unknown
    ]
    return Lowering(NAME, target, settings, tuple(refused))
