"""What is in the plan's vocabulary but not built yet: refused by name, never ignored."""

from __future__ import annotations

from typing import Any, Dict, Tuple

from unified_ipu.errors import PlanError
from unified_ipu.plan.device_batch import runs_whole_calls
from unified_ipu.plan.plan import Plan
from unified_ipu.plan.validation import shown

# Values that work today, by setting; what is not listed works in all its range.
WORKING: Dict[str, Tuple[Any, ...]] = {
    "mesh.stage": (1,),
    "comms.compression": ("none",),
    "pipeline.schedule": ("1f1b",),
    "pipeline.split": ("auto",),
    "compile.cache_dir": ("",),
    "compile.optimization_level": (2,),
}

ON_DEVICES = ("compile.cache_dir",)
"""What works where programs are compiled."""

NOT_ON_DEVICES: Dict[str, Tuple[Any, ...]] = {"comms.algorithm": ("auto", "direct")}
"""What works there of that which works on hosts: devices sum gradients over links of their own."""


def not_built(plan: Plan) -> Tuple[str, ...]:
    """One sentence for every setting that asks for something that is not built yet."""
    tables = plan.to_dict()
    found = []
    is_compiled = runs_whole_calls(plan.target)
    limits = {**WORKING, **NOT_ON_DEVICES} if is_compiled else WORKING
    for path, working in limits.items():
        if is_compiled and path in ON_DEVICES:
            continue
        section, _, name = path.rpartition(".")
        value = tables[section][name] if section else tables[name]
        if value not in working:
            words = " or ".join(shown(each) for each in working)
            verb = "work" if len(working) > 1 else "works"
            where = f'with target = "{plan.target}"' if path in NOT_ON_DEVICES else "today"
            found.append(f"{path}: got {shown(value)}; only {words} {verb} {where}")
    return tuple(found)


def check_built(plan: Plan) -> None:
    """Refuse a plan that asks for something that is not built yet.

    Args:
        plan: Any valid plan.

    Raises:
        PlanError: Naming every such setting, what was given, and what works.
    """
    found = not_built(plan)
    if found:
        raise PlanError("not built yet:\n  " + "\n  ".join(found))
