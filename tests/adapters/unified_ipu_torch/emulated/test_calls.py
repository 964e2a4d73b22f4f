"""Calls of the emulated PopTorch: which rows go where, what is reduced, what comes back."""

from __future__ import annotations

import pytest
import torch

from unified_ipu.device import connect_fabric
from unified_ipu_torch.emulated import poptorch

ROWS = torch.arange(1.0, 17.0).reshape(16, 1)


class Square(torch.nn.Module):
    """Loss (w x)^2 of each row, reduced by a mean; its gradient at w = 1 is 2 x^2."""

    def __init__(self, reduction="mean"):
        super().__init__()
        self.w = torch.nn.Parameter(torch.ones(()))
        self.reduction = reduction
        self.seen = []

    def forward(self, x):
        self.seen.append(tuple(x.shape))
        loss = (self.w * x) ** 2
        return x.sum(), poptorch.identity_loss(loss, reduction=self.reduction)


def options(accumulation=1, replicas=1, iterations=1, reduction=poptorch.ReductionType.Mean):
    found = poptorch.Options().deviceIterations(iterations).replicationFactor(replicas)
    found.autoRoundNumIPUs(True)
    found.Training.gradientAccumulation(accumulation)
    found.Training.accumulationAndReplicationReductionType(reduction)
    return found


def gradient_of_one_call(model, opts):
    executor = poptorch.trainingModel(model, opts, torch.optim.SGD(model.parameters(), lr=1.0))
    executor(ROWS)
    return 1.0 - model.w.detach().item()


SPLITS = [(1, 1, 187.0), (4, 1, 748.0), (2, 2, 748.0), (2, 4, 1496.0), (16, 1, 2992.0)]


@pytest.mark.parametrize(("accumulation", "replicas", "summed"), SPLITS)
def test_a_mean_loss_depends_on_the_split_under_sum_and_not_under_mean(
    accumulation, replicas, summed
):
    sum_options = options(accumulation, replicas, reduction=poptorch.ReductionType.Sum)
    assert gradient_of_one_call(Square(), sum_options) == summed
    assert gradient_of_one_call(Square(), options(accumulation, replicas)) == 187.0


def test_running_means_and_post_means_agree_and_a_sum_loss_under_sum_is_the_whole_batch():
    running = options(4, 2)
    running.Training.setMeanAccumulationAndReplicationReductionStrategy(
        poptorch.MeanReductionStrategy.Running
    )
    assert gradient_of_one_call(Square(), running) == 187.0
    summed = options(4, 2, reduction=poptorch.ReductionType.Sum)
    assert gradient_of_one_call(Square("sum"), summed) == 2992.0


def test_updates_of_a_call_run_in_sequence_on_neighbouring_rows():
    # By hand: lr 0.01, update d on rows 8d..8d+7 with the mean of 2 w x^2 over them.
    model = Square()
    executor = poptorch.trainingModel(
        model, options(2, 2, iterations=2), torch.optim.SGD(model.parameters(), lr=0.01)
    )
    executor(ROWS)
    first = 1.0 - 0.01 * 2.0 * 25.5  # mean of the squares of 1..8
    second = first - 0.01 * 2.0 * first * 161.5  # of 9..16
    assert model.w.item() == pytest.approx(second, rel=1e-6)


@pytest.mark.case("O-I1")
def test_the_model_sees_micro_batches_and_inference_ignores_accumulation():
    model, rows = Square(), torch.ones(24, 1)
    training = poptorch.trainingModel(model, options(3, iterations=2))
    training(rows[:12])
    assert model.seen == [(2, 1)]  # what a pass appends is its own; the capture's stays
    _, loss = poptorch.trainingModel(Square(), all_outputs(options(3, iterations=2)))(rows[:12])
    assert loss.shape == (6,)
    inference = poptorch.inferenceModel(Square(), poptorch.Options().deviceIterations(4))
    assert inference(rows[:8])[1].shape == (4,)
    with pytest.raises(poptorch.Error, match=r"You must set .*gradientAccumulation to 1"):
        poptorch.inferenceModel(Square(), options(3, iterations=4))


def all_outputs(opts):
    return opts.outputMode(poptorch.OutputMode.All)


class Indices(torch.nn.Module):
    """Returns what it is given, so that outputs name their slice; trains nothing of interest."""

    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(()))

    def forward(self, x):
        return x, x.sum(), poptorch.identity_loss(self.w * x, reduction="mean")


@pytest.mark.case("O-I3")
@pytest.mark.parametrize(
    ("mode", "period", "expected"),
    [
        (poptorch.OutputMode.All, None, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]),
        (poptorch.OutputMode.Final, None, [9]),
        (poptorch.OutputMode.EveryN, 5, [4, 9]),
        (poptorch.OutputMode.Sum, None, [45]),
        (poptorch.OutputMode.Default, None, [9]),
    ],
)
def test_ten_iterations_return_what_their_mode_says(mode, period, expected):
    opts = poptorch.Options().deviceIterations(10).outputMode(mode, period)
    rows, scalar, _ = poptorch.trainingModel(Indices(), opts)(torch.arange(10.0))
    assert rows.tolist() == expected
    assert scalar.tolist() == (expected if len(expected) > 1 else expected[0])


def test_inference_returns_all_by_default():
    rows, _, _ = poptorch.inferenceModel(Indices(), poptorch.Options().deviceIterations(10))(
        torch.arange(10.0)
    )
    assert rows.tolist() == list(range(10))


@pytest.mark.parametrize(
    ("mode", "rows", "loss_shape"),
    [
        (poptorch.OutputMode.All, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11], (12,)),
        (poptorch.OutputMode.Final, [9, 10, 11], (3,)),
        (poptorch.OutputMode.Sum, [18, 22, 26], (3,)),
    ],
)
def test_outputs_of_replicas_lie_side_by_side(mode, rows, loss_shape):
    opts = options(2, 3, iterations=2).outputMode(mode)
    found, scalar, loss = poptorch.trainingModel(Indices(), opts)(torch.arange(12.0))
    assert found.tolist() == rows
    assert scalar.shape == loss.shape == loss_shape


def test_outputs_are_ordinary_writable_tensors_of_at_most_32_bits():
    class Model(torch.nn.Module):
        def forward(self, x):
            return x * 2, {"labels": (x > 1.0).long()}, None, 3

    result = poptorch.inferenceModel(Model())(torch.tensor([1.0, 2.0], dtype=torch.float64))
    assert (result[0].dtype, result[1]["labels"].dtype) == (torch.float32, torch.int32)
    assert result[2:] == (None, 3)
    result[0].div_(2.0)
    assert result[0].tolist() == [1.0, 2.0]
    assert not result[0].requires_grad


def test_replicas_of_an_input_group_read_the_same_rows():
    opts = poptorch.Options().replicationFactor(4)
    opts.inputReplicaGrouping(2, poptorch.CommGroupType.Consecutive)
    found, _, _ = poptorch.inferenceModel(Indices(), opts)(torch.arange(2.0))
    assert found.tolist() == [0, 0, 1, 1]
    opts = poptorch.Options().replicationFactor(4)
    opts.inputReplicaGrouping(2, poptorch.CommGroupType.Orthogonal)
    found, _, _ = poptorch.inferenceModel(Indices(), opts)(torch.arange(2.0))
    assert found.tolist() == [0, 1, 0, 1]


def test_input_groups_with_several_micro_batches_a_replica_are_refused():
    opts = poptorch.Options().replicationFactor(2).deviceIterations(2)
    opts.inputReplicaGrouping(2, poptorch.CommGroupType.Consecutive)
    with pytest.raises(poptorch.Error, match="inputReplicaGrouping together with deviceIterations"):
        poptorch.inferenceModel(Indices(), opts)(torch.arange(2.0))


def test_rows_that_do_not_divide_are_refused_with_all_factors():
    words = r"batch dimension \(13\) must be a multiple of .*deviceIterations\(2\).* = 12"
    with pytest.raises(AssertionError, match=words):
        poptorch.trainingModel(Indices(), options(3, 2, iterations=2))(torch.ones(13))


def test_a_period_that_does_not_divide_the_iterations_is_refused():
    opts = poptorch.Options().deviceIterations(10).outputMode(poptorch.OutputMode.EveryN, 3)
    with pytest.raises(poptorch.Error, match="period 3 does not divide deviceIterations 10"):
        poptorch.inferenceModel(Indices(), opts)(torch.arange(10.0))


def test_synthetic_data_replaces_what_the_host_sends():
    opts = poptorch.Options().enableSyntheticData(True)
    executor = poptorch.inferenceModel(Indices(), opts)
    rows, _, _ = executor(torch.full((1000,), 7.0))
    assert abs(rows.mean().item()) < 0.2
    assert rows.std().item() == pytest.approx(1.0, abs=0.15)


def test_several_processes_need_links():
    opts = poptorch.Options()
    opts.Distributed.configureProcessId(0, 2)
    executor = poptorch.trainingModel(Indices(), opts)
    with pytest.raises(ValueError, match="nothing links the emulated devices"):
        executor(torch.ones(2))


class Twin:
    """Links to one more process that sends what this one does."""

    rank, size = 0, 2

    def sum(self, array, name=""):
        return array * 2.0


@pytest.mark.parametrize(
    ("reduction", "gradient"),
    [(poptorch.ReductionType.Mean, 187.0), (poptorch.ReductionType.Sum, 1496.0)],
)
def test_reductions_go_over_the_replicas_of_all_processes(reduction, gradient):
    opts = options(2, 2, reduction=reduction)  # 748 under Sum in one process
    opts.Distributed.configureProcessId(0, 2)
    connect_fabric(Twin())
    try:
        assert gradient_of_one_call(Square(), opts) == gradient
    finally:
        connect_fabric(None)


def test_a_host_without_kernels_for_half_says_so():
    def forward(_):
        raise RuntimeError("\"addmm_impl_cpu_\" not implemented for 'Half'")

    class Model(torch.nn.Module):
        def forward(self, x):
            return forward(x)

    with pytest.raises(poptorch.Error, match="on this host cannot compute this in float16"):
        poptorch.inferenceModel(Model())(torch.ones(1).half())


def test_dropout_follows_the_seed_of_the_device_and_not_the_hosts_numbers():
    class Drops(torch.nn.Module):
        def forward(self, x):
            return torch.nn.functional.dropout(x, 0.5, training=True)

    def run():
        executor = poptorch.inferenceModel(Drops(), poptorch.Options().randomSeed(7))
        before = torch.get_rng_state()
        results = [executor(torch.ones(64)) for _ in range(2)]
        assert torch.equal(before, torch.get_rng_state())
        return results

    first, second = run()
    assert not torch.equal(first, second)
    torch.rand(3)
    again = run()
    assert torch.equal(first, again[0])
    assert torch.equal(second, again[1])
