"""Which stage, phase and IPU a block gets from each execution strategy."""

from __future__ import annotations

import pytest

from unified_ipu_torch.emulated import poptorch
from unified_ipu_torch.emulated.poptorch.strategies import Placement, current_manager


def places(strategy, blocks):
    """Open blocks in order, each (name or None, IPU or None)."""
    strategy.onStartTracing()
    try:
        manager = current_manager()
        assert manager is not None
        return [manager.beginStage(name, ipu) for name, ipu in blocks]
    finally:
        strategy.onEndTracing()


def test_a_stage_is_the_ipu_by_default():
    found = places(poptorch.PipelinedExecution(), [(None, 0), (None, 1), (None, 0)])
    assert found == [Placement(0, -1, 0), Placement(1, -1, 1), Placement(0, -1, 0)]


def test_auto_increment_makes_a_stage_of_each_block():
    strategy = poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement)
    found = places(strategy, [("a", 0), ("b", 1), ("c", 0), ("b", 1)])
    assert [(one.stage, one.ipu) for one in found] == [(1, 0), (2, 1), (3, 0), (2, 1)]


def test_same_as_ipu_needs_an_ipu():
    with pytest.raises(AssertionError, match="no IPU was specified for block a"):
        places(poptorch.PipelinedExecution(), [("a", None)])


def test_stages_are_given_by_name():
    second = poptorch.Stage("c").ipu(5)
    strategy = poptorch.PipelinedExecution(["a", "b"], second, "d")
    found = places(strategy, [("a", None), ("b", 1), ("c", 2), ("d", None)])
    assert [(one.stage, one.ipu) for one in found] == [(0, 0), (0, 1), (1, 5), (2, 2)]
    assert strategy.stage("c") is second
    with pytest.raises(AssertionError, match="Unknown block x"):
        strategy.stage("x")
    with pytest.raises(AssertionError, match="Unknown Block 'x' list of expected Blocks"):
        places(strategy, [("x", 0)])


def test_a_block_is_in_one_stage_only():
    with pytest.raises(AssertionError, match="a associated with more than one stage"):
        poptorch.PipelinedExecution("a", ["b", "a"])


def test_phases_number_their_stages():
    strategy = poptorch.SerialPhasedExecution(["a"], poptorch.Phase(poptorch.Stage("b")))
    strategy.phase(1).ipus(1)
    assert places(strategy, [("a", 0), ("b", 0)]) == [Placement(-1, 0, 0), Placement(-1, 1, 1)]
    with pytest.raises(AssertionError, match="Phase contains 1 stages but you provided 2 ipus"):
        strategy.phase(0).ipus(0, 1)
    with pytest.raises(AssertionError, match="explicitly specify the phases"):
        poptorch.ParallelPhasedExecution()


def test_the_backend_is_told_the_mode():
    assert poptorch.PipelinedExecution().backendOptions() == {"execution_mode": 0}
    assert poptorch.ShardedExecution().backendOptions() == {"execution_mode": 1}
    strategy = poptorch.ParallelPhasedExecution("a").sendTensorsOffChipAfterFwd()
    assert strategy.useSeparateBackwardPhase().backendOptions() == {
        "execution_mode": 2,
        "separate_backward_phase": True,
        "tensors_liveness": 1,
        "serial_phases_execution": False,
    }


def test_there_is_no_manager_outside_of_a_capture():
    assert current_manager() is None
