"""An optimizer's description in words, for the log of what the device is sent.

Source: PopTorch 3.4, ``popart_compiler/source/CompilerImpl.cpp`` (names of attributes).
"""

from __future__ import annotations

from typing import Any, List, Mapping, Tuple

_NAMES = {"lr": "learning_rate"}


def describe_graph(
    kind: str, fixed: Mapping[str, Any], defaults: Mapping[str, Any], loss_scaling: Tuple[Any, bool]
) -> str:
    """What holds for the whole program.

    Args:
        kind: Name of the update rule.
        fixed: dtypes and other settings.
        defaults: Attributes of parameters in no group, each with whether it is a constant.
        loss_scaling: Likewise.
    """
    words = [f"graph optimizer with {kind.rstrip('12')}"]
    shown = {name: value for name, value in fixed.items() if name != "velocity_accum_type"}
    if kind.startswith("SGD"):  # its velocity is the first moment there
        shown["first_order_momentum_accum_type"] = fixed["velocity_accum_type"]
    words += [f"{_camel(name)}={_plain(value)}" for name, value in shown.items()]
    words += _attributes(defaults, "default_")
    return ", ".join([*words, *_attributes({"loss_scaling": loss_scaling}, "")])


def describe_group(kind: str, index: int, group: Mapping[str, Any]) -> str:
    """What holds for one group of parameters.

    Args:
        kind: Name of the update rule.
        index: Of the group.
        group: Its attributes, each with whether it is a constant.
    """
    words = [f"group {index} optimizer with {kind.rstrip('12')}", *_attributes(group, "")]
    return ", ".join(words) + ","


def _attributes(values: Mapping[str, Any], prefix: str) -> List[str]:
    return [
        f"{_camel(prefix + _NAMES.get(name, name))}={_plain(value)}{' (const)' * is_constant}"
        for name, (value, is_constant) in values.items()
    ]


def _plain(value: Any) -> str:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return f"{value:g}" if is_number else str(value).replace("torch.", "")


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)
