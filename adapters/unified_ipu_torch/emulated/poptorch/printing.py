"""Models as text, with the blocks that their modules begin.

Source: PopTorch 3.4, ``python/_printing.py``.
"""

from __future__ import annotations

import textwrap
from typing import Any

from unified_ipu_torch.emulated.poptorch.blocks import block_of


def module_repr(module: Any) -> str:
    """A module as torch prints it, each one with its block in front.

    Args:
        module: The model.
    """
    lines = module.extra_repr().split("\n") if module.extra_repr() else []
    children = []
    for name, child in module._modules.items():
        if child is not None:
            children.append(f"({name}): {textwrap.indent(module_repr(child), '  ').lstrip()}")
    inside = lines + children
    if not inside:
        body = ""
    elif len(inside) == 1 and not children:
        body = inside[0]
    else:
        body = "\n" + textwrap.indent("\n".join(inside), "  ") + "\n"
    block = block_of(module)
    begins = f"{block} " if block else ""
    return f"{begins}{module._get_name()}({body})"
