"""Our plan as settings of torch and onnxruntime; pure, so it can be read and tested anywhere."""

from __future__ import annotations

from dataclasses import replace

from unified_ipu.adapter import Lowering, Plan
from unified_ipu_onnx.errors import NAME
from unified_ipu_onnx.lower_ipu import lower_for_ipu
from unified_ipu_torch.lower import lower as lower_for_torch


def lower(plan: Plan, target: str) -> Lowering:
    """Map every plan field to torch's settings, which train the graph, or refuse it.

    Args:
        plan: Any valid plan.
        target: ``"cpu"``, ``"cuda"``, ``"ipu"``, ``"ipu-emulated"``, or another one, which is
            refused.

    Returns:
        The settings, and what cannot be done.
    """
    if target in {"ipu", "ipu-emulated"}:
        return lower_for_ipu(plan, target)
    if target not in {"cpu", "cuda"}:
        change = 'set target = "cpu", "cuda" or "ipu"'
        return Lowering(
            NAME, target, refused=(("target", f"{target} is not written for ONNX; {change}"),)
        )
    return replace(lower_for_torch(plan, target), adapter=NAME)
