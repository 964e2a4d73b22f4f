"""A device target may refuse what a host target must do."""

from __future__ import annotations

import pytest
from unified_ipu_numpy_conformance import NumpySubject

from unified_ipu.errors import CapabilityError, ConfigError, PlanError
from unified_ipu.testing import ThreadRanks
from unified_ipu.testing.refusals import Refused, or_refused, skip_if_refused


def refuse(kind):
    raise kind("numpy", "no such thing") if kind is CapabilityError else kind("no such thing")


@pytest.mark.parametrize("kind", [PlanError, CapabilityError])
def test_a_refusal_is_a_result_on_a_device_and_an_error_on_the_host(kind):
    assert "no such thing" in or_refused("ipu-emulated", lambda: refuse(kind)).message
    for target in ("auto", "cpu", "cuda"):
        with pytest.raises(kind):
            or_refused(target, lambda: refuse(kind))


def test_another_error_is_an_error_everywhere():
    with pytest.raises(ConfigError):
        or_refused("ipu-emulated", lambda: refuse(ConfigError))


def test_what_all_ranks_refuse_is_skipped_with_the_reason():
    assert skip_if_refused("ipu", [1, 2]) == [1, 2]
    with pytest.raises(pytest.skip.Exception, match="ipu refuses: too ragged"):
        skip_if_refused("ipu", [Refused("too ragged")] * 2)
    with pytest.raises(AssertionError, match=r"only ranks \[1\] refused: too ragged"):
        skip_if_refused("ipu", [1, Refused("too ragged")])


def open_session(rank, compression="none"):
    settings = {"batch": {"global_batch_size": 3}, "comms": {"compression": compression}}
    with rank.session(settings) as session:
        return session.plan.target


@pytest.mark.parametrize("target", ["cpu", "ipu-emulated"])
def test_the_target_of_the_ranks_is_the_one_of_their_plans(target):
    assert ThreadRanks(NumpySubject(), target).run(open_session, 2) == [target, target]


def test_a_plan_that_a_session_refuses_on_a_device_skips_the_test():
    with pytest.raises(pytest.skip.Exception, match="ipu-emulated refuses: not built"):
        ThreadRanks(NumpySubject(), "ipu-emulated").run(open_session, 2, compression="topk")
