"""Merging the layers of a plan: defaults < the script's plan < ``--plan`` < ``--set``."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, Optional, Sequence, Union

from unified_ipu.errors import PlanError
from unified_ipu.plan.document import parse_toml, read_document, read_tables
from unified_ipu.plan.plan import Plan
from unified_ipu.plan.tables import expand_dotted, overlay


def merge_plan(
    base: Union[str, Path, Plan, None],
    *,
    plan_path: Optional[str] = None,
    settings: Sequence[str] = (),
) -> Plan:
    """Lay the layers of a plan over the defaults; a later layer wins setting by setting.

    Args:
        base: What the script says: a plan, the path of one, or None.
        plan_path: Given by ``--plan``.
        settings: Given by ``--set``, each ``path=value``, in order.

    Returns:
        The checked plan.

    Raises:
        PlanError: If a file or a setting is wrong; names the file or ``--set``.
    """
    tables: Dict[str, Any] = {}
    for layer in (base, plan_path):
        if isinstance(layer, Plan):
            tables = overlay(tables, layer.to_dict())
        elif layer is not None:
            read_document(layer, Plan.from_dict)  # names the file if something in it is wrong
            tables = overlay(tables, read_tables(layer))
    plan = Plan.from_dict(tables)
    if not settings:
        return plan
    for setting in settings:
        tables = overlay(tables, parse_setting(setting))
    try:
        return Plan.from_dict(tables)
    except PlanError as error:
        raise PlanError(f"--set: {error}") from error


def parse_setting(setting: str) -> Dict[str, Any]:
    """Read one ``--set``.

    Args:
        setting: ``path=value``; the value is TOML, or else a bare word.

    Returns:
        Nested tables with that one setting.

    Raises:
        PlanError: If there is no "=" or the path is none.
    """
    path, sign, text = setting.partition("=")
    if not sign:
        raise PlanError(
            f"--set {setting}: got no value; expected path=value, such as "
            "--set batch.micro_batch_size=8"
        )
    text = text.strip()
    try:
        parsed = parse_toml(f"value = {text}")
    except PlanError:
        parsed = {}
    # More keys than one come from a text of several lines: that is no single value.
    value = parsed["value"] if set(parsed) == {"value"} else text
    try:
        return expand_dotted({path.strip(): value})
    except PlanError as error:
        raise PlanError(f"--set {setting}: {error}") from error
