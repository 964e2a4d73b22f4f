"""One error of each part of the SDK on request, for scripts that show how they are handled.

Source: PopTorch 3.4, ``popart_compiler/source/Compiler.cpp`` (``throwTestError``).
"""

from __future__ import annotations

from enum import IntEnum
from typing import Dict, NoReturn, Tuple, Type

from unified_ipu_torch.emulated.poptorch.errors import Error, RecoverableError, UnrecoverableError

_LOCATION = "  [0] throwTestError::bottomLevel\n  [1] throwTestError::topLevel\n"


class TestErrorType(IntEnum):
    """Which part of the SDK fails."""

    __test__ = False  # the name looks like a test to pytest

    Poptorch = 0
    Popart = 1
    PopartInternal = 2
    Poplibs = 3
    PoplarUnrecoverable = 4
    PoplarUnknown = 5
    PoplarRecoverableFullReset = 6
    PoplarLinkError = 7


_ERRORS: Dict[TestErrorType, Tuple[Type[Error], str, str]] = {
    TestErrorType.Poptorch: (Error, "poptorch_cpp_error", "This is a PopTorch error"),
    TestErrorType.Popart: (Error, "popart_exception", "This is a Popart error"),
    TestErrorType.PopartInternal: (Error, "popart_internal_exception", "This is a Popart error"),
    TestErrorType.Poplibs: (Error, "poplibs_exception", "This is a Poplibs error"),
    TestErrorType.PoplarUnrecoverable: (
        UnrecoverableError,
        "poplar_unrecoverable_runtime_error",
        "This is not recoverable",
    ),
    TestErrorType.PoplarUnknown: (
        Error,
        "poplar_unknown_runtime_error",
        "Don't know what happened",
    ),
    TestErrorType.PoplarRecoverableFullReset: (
        RecoverableError,
        "poplar_recoverable_runtime_error",
        "Reboot needed",
    ),
    TestErrorType.PoplarLinkError: (
        Error,
        "poplar_link_error",
        "Link error. Output: Library -lfoo not found\ncheck path",
    ),
}


def throw_test_error(which: TestErrorType) -> NoReturn:
    """Raise the error of one part.

    Args:
        which: The part.

    Raises:
        Error: Always; of the class that this part raises.
    """
    kind, type_name, message = _ERRORS[which]
    raise kind(message, type_name, _LOCATION)
