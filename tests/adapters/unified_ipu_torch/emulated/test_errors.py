"""The emulated PopTorch's errors, and one of each part of the SDK on request."""

from __future__ import annotations

import pickle

import pytest

from unified_ipu_torch.emulated import poptorch
from unified_ipu_torch.emulated.poptorch import poptorch_core

TYPES = {
    "Poptorch": "poptorch_cpp_error",
    "Popart": "popart_exception",
    "PoplarUnrecoverable": "poplar_unrecoverable_runtime_error",
    "PoplarRecoverableFullReset": "poplar_recoverable_runtime_error",
    "PoplarLinkError": "poplar_link_error",
}


def test_an_error_tells_its_type_message_and_location():
    error = poptorch.Error("no such thing")
    assert (error.type, error.message, error.location) == ("poptorch_py_error", "no such thing", "")
    assert str(error) == "'poptorch_py_error': no such thing"
    assert poptorch_core.Error is poptorch.Error


@pytest.mark.parametrize("kind", ["Error", "RecoverableError", "UnrecoverableError"])
def test_errors_cross_processes(kind):
    error = getattr(poptorch, kind)("a", "b", "c")
    again = pickle.loads(pickle.dumps(error))  # noqa: S301  # our own
    assert type(again) is type(error)
    assert (again.message, again.type, again.location, str(again)) == ("a", "b", "c", str(error))


@pytest.mark.parametrize("part", list(poptorch_core.TestErrorType))
def test_every_part_of_the_sdk_can_be_made_to_fail(part):
    with pytest.raises(poptorch.Error) as caught:
        poptorch_core._throwTestError(part)
    error = caught.value
    assert error.location.count("throwTestError::topLevel") == 1
    assert "throwTestError::bottomLevel" in error.args[0]
    assert "throwTestError" not in error.message
    assert TYPES.get(part.name, error.type) == error.type


def test_errors_say_whether_a_reset_helps():
    with pytest.raises(poptorch.RecoverableError) as caught:
        poptorch_core._throwTestError(poptorch_core.TestErrorType.PoplarRecoverableFullReset)
    assert caught.value.recovery_action == "FULL_RESET"
    with pytest.raises(poptorch.UnrecoverableError):
        poptorch_core._throwTestError(poptorch_core.TestErrorType.PoplarUnrecoverable)
