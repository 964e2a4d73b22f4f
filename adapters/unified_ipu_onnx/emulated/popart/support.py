"""Which operators the emulation takes: those of ONNX that PopART runs, a few of PopART's own."""

from __future__ import annotations

from unified_ipu_onnx.emulated.popart.errors import popart_exception
from unified_ipu_onnx.popart_operators import (
    DEFAULT_OPSET as DEFAULT_OPSET,
    GRAPHCORE as GRAPHCORE,
    IMPLEMENTED as IMPLEMENTED,
    NEWEST_OPSET as NEWEST_OPSET,
    OLDEST_OPSET as OLDEST_OPSET,
)

EMULATED = frozenset({"Detach", "IdentityLoss", "L1", "Nll", "Nop", "Scale"})
"""Of PopART's own domain, those that are computed here."""


def check_operator(domain: str, name: str, opset: int) -> None:
    """Refuse an operator that PopART does not run, or that is not computed here.

    Raises:
        popart_exception: With its domain, name and version.
    """
    if domain in {"", "ai.onnx"}:
        if name not in IMPLEMENTED:
            raise popart_exception(f"No class for ai.onnx.{name}:{opset}")
    elif domain == GRAPHCORE:
        if name not in EMULATED:
            raise popart_exception(
                f"ai.graphcore.{name}:{opset} is not emulated; of that domain {sorted(EMULATED)} "
                "are"
            )
    else:
        raise popart_exception(f"No class for {domain}.{name}:{opset}")
