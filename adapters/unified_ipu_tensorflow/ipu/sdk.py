"""The SDK's modules: ``tensorflow.python.ipu`` of Graphcore's TensorFlow, or the emulated one."""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

from unified_ipu.errors import CapabilityError
from unified_ipu_tensorflow.errors import NAME


class Sdk(NamedTuple):
    """What native calls may name of the SDK.

    Args:
        ipu: ``tensorflow.python.ipu``.
    """

    ipu: Any


def has_sdk() -> bool:
    """Whether this TensorFlow is Graphcore's."""
    found = _real_ipu()
    return found is not None and not getattr(found, "__emulated__", False)


def load_sdk(target: str) -> Sdk:
    """Return the modules of a target.

    Args:
        target: ``"ipu"`` or ``"ipu-emulated"``.

    Raises:
        CapabilityError: If the SDK is not here.
    """
    if target == "ipu-emulated":
        from unified_ipu_tensorflow.emulated import ipu

        return Sdk(ipu)
    found = _real_ipu()
    if found is None:
        raise CapabilityError(
            NAME,
            "this TensorFlow has no tensorflow.python.ipu; install the wheel of the Poplar SDK, or "
            'set target = "ipu-emulated"',
        )
    return Sdk(found)


def _real_ipu() -> Any:
    try:
        return importlib.import_module("tensorflow.python.ipu")
    except ImportError:
        return None
