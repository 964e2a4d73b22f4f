"""``poptorch.poptorch_core``: the names of the SDK's binary part that scripts and tests reach."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Mapping

from unified_ipu_torch.emulated.poptorch.backend_options import validate_options
from unified_ipu_torch.emulated.poptorch.context import isRunningOnIpu
from unified_ipu_torch.emulated.poptorch.errors import (
    Error as Error,
    RecoverableError as RecoverableError,
    UnrecoverableError as UnrecoverableError,
)
from unified_ipu_torch.emulated.poptorch.hardware import VERSION, ipuHardwareIsAvailable
from unified_ipu_torch.emulated.poptorch.log import setLogLevel as setLogLevel
from unified_ipu_torch.emulated.poptorch.planted_errors import (
    TestErrorType as TestErrorType,
    throw_test_error,
)


class TracingMode(IntEnum):
    """How a model is captured."""

    PopART = 0


def ipuHardwareVersion(numIpus: int = 1) -> int:
    """Version of the hardware, 0 where there is none.

    Args:
        numIpus: How many are wanted.
    """
    return VERSION if ipuHardwareIsAvailable(numIpus) else 0


def isCompilingWithDispatcher() -> bool:
    """Whether a model is being captured."""
    return isRunningOnIpu()


def _validateOptions(options: Mapping[str, Any]) -> None:
    validate_options(options)


def _throwTestError(which: TestErrorType) -> None:
    throw_test_error(which)
