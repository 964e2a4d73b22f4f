"""Blocks, pipelines and the number of IPUs in the emulated PopTorch."""

from __future__ import annotations

import logging

import pytest
import torch

from unified_ipu_torch.emulated import poptorch
from unified_ipu_torch.emulated.poptorch.blocks import LegacyBeginBlockFn


class Blocks(torch.nn.Module):
    """Blocks on given IPUs, one after the other."""

    def __init__(self, ipus, *, training=False):
        super().__init__()
        self.w = torch.nn.Parameter(torch.ones(1))
        self.ipus = tuple(ipus)
        self.with_loss = training

    def forward(self, x):
        poptorch.Block.useAutoId()
        for ipu in self.ipus:
            with poptorch.Block(ipu_id=ipu):
                x = x * self.w
        if self.with_loss:
            with poptorch.Block("loss", ipu_id=self.ipus[-1]):
                return poptorch.identity_loss(x, reduction="mean")
        return x


def options(iterations=1, accumulation=1, strategy=None):
    found = poptorch.Options().deviceIterations(iterations).autoRoundNumIPUs(True)
    found.Training.gradientAccumulation(accumulation)
    return found.setExecutionStrategy(strategy) if strategy else found


def test_a_pipeline_of_four_stages_trains_with_seven_micro_batches_at_least():
    words = (
        r"gradientAccumulation must be greater than or equal to the number of pipeline stages "
        r"\(7\) .* a model with 4 pipeline stages in PopTorch will have an additional 3 stages"
    )
    model = Blocks(range(4), training=True)
    with pytest.raises(poptorch.Error, match=words):
        poptorch.trainingModel(model, options(2, 6))(torch.zeros(12))
    executor = poptorch.trainingModel(Blocks(range(4), training=True), options(2, 7))
    assert executor(torch.ones(14)).item() == pytest.approx(1.0, abs=0.5)


def test_inference_through_four_stages_needs_four_iterations_unless_sharded():
    with pytest.raises(poptorch.Error, match=r"deviceIterations must be greater .* \(4\)"):
        poptorch.inferenceModel(Blocks(range(4)), options(3))(torch.zeros(3))
    assert (
        poptorch.inferenceModel(Blocks(range(4)), options(4))(torch.ones(4)).tolist() == [1.0] * 4
    )
    sharded = options(1, strategy=poptorch.ShardedExecution())
    assert poptorch.inferenceModel(Blocks(range(4)), sharded)(torch.ones(1)).tolist() == [1.0]


def test_neighbours_on_one_ipu_are_one_stage_and_a_return_is_another():
    strategy = poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement)
    poptorch.inferenceModel(Blocks([0, 0, 1]), options(2, strategy=strategy))(torch.ones(2))
    returning = Blocks([0, 1, 0])
    with pytest.raises(poptorch.Error, match=r"stages \(3\)"):
        poptorch.inferenceModel(returning, options(2, strategy=strategy))(torch.ones(2))


def test_everything_belongs_to_a_block_once_there_is_one():
    class Outside(torch.nn.Module):
        def forward(self, x):
            with poptorch.Block("a", ipu_id=0):
                x = x * 4
            return x * 4

    model = Outside()
    executor = poptorch.inferenceModel(model)
    with pytest.raises(poptorch.Error, match="No active Block"):
        executor.compile(torch.ones(1))
    assert not poptorch.isRunningOnIpu()
    assert model(torch.ones(1)).item() == 16.0  # on the host blocks mean nothing


def test_ipus_come_in_powers_of_two(caplog):
    exact = options(3).autoRoundNumIPUs(False)
    words = r"specifies the use of 3 IPUs, however PopTorch must reserve a minimum of 4"
    with pytest.raises(poptorch.Error, match=words):
        poptorch.inferenceModel(Blocks(range(3)), exact)(torch.ones(3))
    with caplog.at_level(logging.WARNING, logger="poptorch::python"):
        poptorch.inferenceModel(Blocks(range(3)), options(3))(torch.ones(3))
    assert "Reserving 4 IPUs" in caplog.text


def test_a_process_has_64_ipus_at_most():
    opts = poptorch.Options().replicationFactor(128)
    with pytest.raises(poptorch.Error, match=r"Too many IPUs requested \(128\)"):
        poptorch.inferenceModel(torch.nn.Linear(1, 1), opts)(torch.ones(128, 1))


def layers():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU(), torch.nn.Linear(2, 1))


def test_modules_begin_blocks_in_place_and_print_them():
    model = layers()
    assert poptorch.BeginBlock(model[2], ipu_id=1) is model[2]
    with pytest.raises(poptorch.Error, match="already been assigned to a block"):
        poptorch.BeginBlock(model[2])
    x = torch.ones(2, 2)
    executor = poptorch.inferenceModel(model, options(2))
    assert "(2): BeginBlock(user_id=None, ipu_id=1) Linear(in_features=2" in repr(executor)
    torch.testing.assert_close(executor(x), layers()(x).detach())
    poptorch.removeBlocks(model)
    assert "BeginBlock" not in poptorch.module_repr(model)
    executor = poptorch.inferenceModel(model)
    torch.testing.assert_close(executor(x), layers()(x).detach())
    with pytest.raises(poptorch.Error, match=r"not an instance of torch.nn.Module or function"):
        poptorch.BeginBlock(3)


def test_functions_can_be_blocks():
    double = poptorch.BeginBlock(lambda x: 2 * x, user_id="a", ipu_id=0)
    assert isinstance(double, LegacyBeginBlockFn)

    class Model(torch.nn.Module):
        @poptorch.BlockFunction("b", ipu_id=1)
        def last(self, x):
            return x + 1

        def forward(self, x):
            return self.last(double(x))

    found = poptorch.inferenceModel(Model(), options(2))(torch.ones(2))
    assert found.tolist() == [3.0, 3.0]
    with pytest.raises(poptorch.Error, match=r"stages \(2\)"):
        poptorch.inferenceModel(Model(), options(1))(torch.ones(1))


def test_named_blocks_have_to_be_known_to_the_strategy():
    strategy = poptorch.PipelinedExecution(poptorch.Stage("a"))

    class Model(torch.nn.Module):
        def forward(self, x):
            with poptorch.Block("b"):
                return x + 1

    with pytest.raises(AssertionError, match="Unknown Block 'b'"):
        poptorch.inferenceModel(Model(), options(strategy=strategy))(torch.ones(1))


def test_phases_run_and_parallel_ones_keep_their_parity():
    class Model(torch.nn.Module):
        def __init__(self, second):
            super().__init__()
            self.second = second

        def forward(self, x):
            with poptorch.Block("a", ipu_id=0):
                x = x + 1
            with poptorch.Block("b", ipu_id=self.second):
                return x * 2

    parallel = poptorch.ParallelPhasedExecution("a", "b")
    found = poptorch.inferenceModel(Model(1), options(strategy=parallel))(torch.ones(1))
    assert found.tolist() == [4.0]
    serial = poptorch.SerialPhasedExecution("a", "b")
    assert poptorch.inferenceModel(Model(0), options(strategy=serial))(torch.ones(1)).item() == 4.0
    with pytest.raises(poptorch.Error, match="even phases must run on even IPUs"):
        poptorch.inferenceModel(Model(0), options(strategy=parallel))(torch.ones(1))


class Overlaps(torch.nn.Module):
    def forward(self, x):
        x = poptorch.set_overlap_for_input(x, poptorch.OverlapMode.OverlapAccumulationLoop)
        return x + 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda o: o, "not supported with poptorch.PipelinedExecution"),
        (
            lambda o: o.setExecutionStrategy(poptorch.ShardedExecution()),
            "No IO tiles allocated",
        ),
        (
            lambda o: tiles(o.setExecutionStrategy(poptorch.ShardedExecution())).outputMode(
                poptorch.OutputMode.Final
            ),
            "Unsupported output mode for overlapped IO",
        ),
    ],
)
def test_overlapping_transfers_want_tiles_and_no_pipeline(change, words):
    with pytest.raises(poptorch.Error, match=words):
        poptorch.inferenceModel(Overlaps(), change(poptorch.Options()))(torch.ones(1))


def test_overlapping_transfers_change_no_value():
    opts = tiles(poptorch.Options().setExecutionStrategy(poptorch.ShardedExecution()))
    assert poptorch.inferenceModel(Overlaps(), opts)(torch.ones(1)).item() == 2.0


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (
            lambda x: poptorch.set_overlap_for_input(x + 1, poptorch.OverlapMode.NoOverlap),
            "not a tensor input to the model",
        ),
        (
            lambda x: poptorch.set_overlap_for_output(x, poptorch.OverlapMode.NoOverlap) + 1,
            "not a tensor output to the model",
        ),
    ],
)
def test_only_inputs_and_outputs_overlap(function, words):
    class Model(torch.nn.Module):
        def forward(self, x):
            return function(x)

    opts = tiles(poptorch.Options().setExecutionStrategy(poptorch.ShardedExecution()))
    with pytest.raises(poptorch.Error, match=words):
        poptorch.inferenceModel(Model(), opts)(torch.ones(1))


def tiles(opts):
    opts.TensorLocations.numIOTiles(32)
    return opts
