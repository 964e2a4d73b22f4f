"""Every error survives the way to another process, and tells where it happened."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest

from unified_ipu import errors
from unified_ipu.errors import AdapterError, PlanError, UnifiedIpuError, located


def walk(root):
    yield root
    for child in root.__subclasses__():
        yield from walk(child)


CLASSES = sorted(
    {error for error in walk(UnifiedIpuError) if error.__module__.startswith("unified_ipu")},
    key=lambda error: error.__name__,
)


def make(error):
    return error("torch", "no such thing") if issubclass(error, AdapterError) else error("no such")


@pytest.mark.parametrize("error", CLASSES, ids=lambda error: error.__name__)
@pytest.mark.parametrize("protocol", [2, pickle.HIGHEST_PROTOCOL])
def test_an_error_is_pickled_with_message_and_rank(error, protocol):
    before = make(error)
    before.rank = 3
    after = pickle.loads(pickle.dumps(before, protocol=protocol))  # noqa: S301 - our own bytes
    assert type(after) is error
    assert str(after) == str(before)
    assert str(after).startswith("rank 3: ")
    assert vars(after) == vars(before)


def test_every_error_is_defined_in_one_file_under_one_root():
    assert {error.__module__ for error in CLASSES} == {"unified_ipu.errors"}
    defined = {
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, Exception)
    }
    assert defined == set(CLASSES)


def test_the_tree_at_the_top_names_every_class():
    assert errors.__doc__ is not None
    assert {error.__name__ for error in CLASSES} <= set(errors.__doc__.replace("(", " ").split())


@pytest.mark.parametrize("error", CLASSES, ids=lambda error: error.__name__)
def test_every_error_says_when_it_is_raised(error):
    assert error.__doc__ is not None
    assert error.__doc__.strip().endswith(".")


@pytest.mark.parametrize(
    ("error", "familiar"),
    [
        (errors.PlanError, ValueError),
        (errors.NumericsError, ArithmeticError),
        (errors.AdapterNotFoundError, LookupError),
        (errors.AdapterLoadError, ImportError),
        (errors.CollectiveTimeoutError, TimeoutError),
    ],
)
def test_the_familiar_except_catches_ours(error, familiar):
    with pytest.raises(familiar):
        raise make(error)


def test_the_rank_is_put_in_front_once_and_the_inner_one_stays():
    with pytest.raises(PlanError) as caught, located(0), located(2):
        raise PlanError("micro_batch_size = 0 must be at least 1")
    assert str(caught.value) == "rank 2: micro_batch_size = 0 must be at least 1"


def test_foreign_errors_pass_without_a_rank():
    with pytest.raises(KeyError) as caught, located(2):
        raise KeyError("x")
    assert not hasattr(caught.value, "rank")


def test_an_adapter_error_names_its_adapter():
    error = errors.CapabilityError("numpy", "no convolutions")
    assert (error.adapter, error.message) == ("numpy", "no convolutions")
    assert str(error) == "adapter 'numpy': no convolutions"
    assert errors.AdapterLoadError("torch", "pip install torch").args == (
        "torch",
        "pip install torch",
    )


def test_an_error_crosses_a_real_process_boundary():
    code = (
        "import pickle, sys\n"
        "from unified_ipu.errors import DeviceError\n"
        "error = DeviceError('torch', 'out of memory')\n"
        "error.rank = 1\n"
        "sys.stdout.buffer.write(pickle.dumps(error))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, check=True, timeout=60
    )
    assert str(pickle.loads(done.stdout)) == (  # noqa: S301 - our own bytes
        "rank 1: adapter 'torch': out of memory"
    )
