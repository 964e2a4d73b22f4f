"""Every loss of torch.nn: S / W is torch's own mean, whatever is masked, weighted or padded.

One file, since all of it is one table of losses and the ways to call each.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn
from torch.nn import functional

from unified_ipu.adapter import Job, MicroBatch
from unified_ipu.errors import ConfigError
from unified_ipu_torch.batches import read_batch
from unified_ipu_torch.losses import KnownLoss, as_module, denominator
from unified_ipu_torch.objectives import build_objective

CPU = torch.device("cpu")
# What torch says to everybody who takes the mean of KLDivLoss.
pytestmark = pytest.mark.filterwarnings("ignore:reduction. 'mean' divides:UserWarning")
HAVE_PARAMETERS = {"AdaptiveLogSoftmaxWithLoss", "LinearCrossEntropyLoss"}


def real(rng, *shape):
    return torch.from_numpy(rng.standard_normal(shape))


def probabilities(rng, rows, classes):
    return torch.softmax(real(rng, rows, classes), 1)


def signs(rng, *shape):
    return torch.from_numpy(rng.choice([-1.0, 1.0], shape))


def indices(rng, classes, *shape):
    return torch.from_numpy(rng.integers(0, classes, shape))


def with_ignored(rng, classes, *shape):
    targets = indices(rng, classes, *shape)
    targets[torch.from_numpy(rng.random(shape) < 0.3)] = -100
    return targets


def class_weights(rng, classes):
    return torch.from_numpy(rng.uniform(0.5, 2.0, classes))


# name: (loss of rng and classes, outputs and targets of rng, rows, classes, extra)
CASES = {
    "CrossEntropyLoss": (
        lambda r, c: nn.CrossEntropyLoss(),
        lambda r, n, c, t: (real(r, n, c), indices(r, c, n)),
    ),
    "CrossEntropyLoss weights, ignored, sequences": (
        lambda r, c: nn.CrossEntropyLoss(weight=class_weights(r, c)),
        lambda r, n, c, t: (real(r, n, c, t), with_ignored(r, c, n, t)),
    ),
    "CrossEntropyLoss smoothing": (
        lambda r, c: nn.CrossEntropyLoss(label_smoothing=0.1),
        lambda r, n, c, t: (real(r, n, c, t), with_ignored(r, c, n, t)),
    ),
    "CrossEntropyLoss smoothing, weights": (
        lambda r, c: nn.CrossEntropyLoss(weight=class_weights(r, c), label_smoothing=0.1),
        lambda r, n, c, t: (real(r, n, c), with_ignored(r, c, n)),
    ),
    "CrossEntropyLoss probabilities, weights": (
        lambda r, c: nn.CrossEntropyLoss(weight=class_weights(r, c), label_smoothing=0.1),
        lambda r, n, c, t: (real(r, n, c), probabilities(r, n, c)),
    ),
    "NLLLoss": (
        lambda r, c: nn.NLLLoss(weight=class_weights(r, c), ignore_index=1),
        lambda r, n, c, t: (real(r, n, c), indices(r, c, n)),
    ),
    "L1Loss": (
        lambda r, c: nn.L1Loss(),
        lambda r, n, c, t: (real(r, n, c), real(r, n, c)),
    ),
    "MSELoss": (
        lambda r, c: nn.MSELoss(),
        lambda r, n, c, t: (real(r, n, c, t), real(r, n, c, t)),
    ),
    "SmoothL1Loss": (
        lambda r, c: nn.SmoothL1Loss(beta=0.5),
        lambda r, n, c, t: (real(r, n), real(r, n)),
    ),
    "HuberLoss": (
        lambda r, c: nn.HuberLoss(delta=0.5),
        lambda r, n, c, t: (real(r, n, c), real(r, n, c)),
    ),
    "BCELoss": (
        lambda r, c: nn.BCELoss(weight=class_weights(r, c)),
        lambda r, n, c, t: (real(r, n, c).sigmoid(), signs(r, n, c) * 0.5 + 0.5),
    ),
    "BCEWithLogitsLoss": (
        lambda r, c: nn.BCEWithLogitsLoss(pos_weight=class_weights(r, c)),
        lambda r, n, c, t: (real(r, n, c), signs(r, n, c) * 0.5 + 0.5),
    ),
    "PoissonNLLLoss": (
        lambda r, c: nn.PoissonNLLLoss(),
        lambda r, n, c, t: (real(r, n, c), real(r, n, c).abs()),
    ),
    "GaussianNLLLoss": (
        lambda r, c: nn.GaussianNLLLoss(),
        lambda r, n, c, t: ((real(r, n, c), real(r, n, c).abs() + 0.1), real(r, n, c)),
    ),
    "KLDivLoss": (
        lambda r, c: nn.KLDivLoss(),
        lambda r, n, c, t: (probabilities(r, n, c).log(), probabilities(r, n, c)),
    ),
    "KLDivLoss batchmean": (
        lambda r, c: nn.KLDivLoss(reduction="batchmean"),
        lambda r, n, c, t: (probabilities(r, n, c).log(), probabilities(r, n, c)),
    ),
    "SoftMarginLoss": (
        lambda r, c: nn.SoftMarginLoss(),
        lambda r, n, c, t: (real(r, n, c), signs(r, n, c)),
    ),
    "HingeEmbeddingLoss": (
        lambda r, c: nn.HingeEmbeddingLoss(),
        lambda r, n, c, t: (real(r, n, c), signs(r, n, c)),
    ),
    "MarginRankingLoss": (
        lambda r, c: nn.MarginRankingLoss(margin=0.1),
        lambda r, n, c, t: ((real(r, n), real(r, n)), signs(r, n)),
    ),
    "MultiLabelMarginLoss": (
        lambda r, c: nn.MultiLabelMarginLoss(),
        lambda r, n, c, t: (
            real(r, n, c),
            torch.cat([indices(r, c, n, 1), torch.full((n, c - 1), -1)], 1),
        ),
    ),
    "MultiLabelSoftMarginLoss": (
        lambda r, c: nn.MultiLabelSoftMarginLoss(weight=class_weights(r, c)),
        lambda r, n, c, t: (real(r, n, c), signs(r, n, c) * 0.5 + 0.5),
    ),
    "MultiMarginLoss": (
        lambda r, c: nn.MultiMarginLoss(weight=class_weights(r, c)),
        lambda r, n, c, t: (real(r, n, c), indices(r, c, n)),
    ),
    "CosineEmbeddingLoss": (
        lambda r, c: nn.CosineEmbeddingLoss(),
        lambda r, n, c, t: ((real(r, n, c), real(r, n, c)), signs(r, n)),
    ),
    "TripletMarginLoss": (
        lambda r, c: nn.TripletMarginLoss(),
        lambda r, n, c, t: ((real(r, n, c), real(r, n, c), real(r, n, c)), torch.zeros(n)),
    ),
    "TripletMarginWithDistanceLoss": (
        lambda r, c: nn.TripletMarginWithDistanceLoss(),
        lambda r, n, c, t: ((real(r, n, c), real(r, n, c), real(r, n, c)), torch.zeros(n)),
    ),
    "CTCLoss": (
        lambda r, c: nn.CTCLoss(),
        lambda r, n, c, t: (
            real(r, 2 * t + 1, n, c + 1).log_softmax(2),
            (indices(r, c, n, t) + 1, torch.full((n,), 2 * t + 1), indices(r, t, n) + 1),
        ),
    ),
}


class Answer(nn.Module):
    """Returns what it is asked to."""

    def __init__(self, outputs):
        super().__init__()
        self.outputs = outputs

    def forward(self, x):
        del x
        return self.outputs


def score(loss, outputs, targets, *, sample_weight=None, weights=None, **job):
    leaf = targets[0] if isinstance(targets, tuple) else targets
    rows = leaf.shape[0]
    tree: Any = (torch.zeros(rows), targets)
    tree = tree if weights is None else (*tree, torch.from_numpy(weights))
    batch = read_batch(MicroBatch(0, tree, rows, sample_weight=sample_weight), CPU)
    objective = build_objective(Job(None, loss=loss, **job), CPU)
    before = objective.weight_before(batch)
    if before == 0.0:
        return 0.0, 0.0
    found = objective.score(Answer(outputs), batch, before)
    assert found.value is not None
    return float(found.value) * found.factor, float(found.weight)


def cut(tree, keep, axis=0):
    if isinstance(tree, tuple):
        return tuple(cut(child, keep) for child in tree)
    return tree.index_select(axis, torch.from_numpy(np.flatnonzero(keep)))


sizes = st.tuples(st.integers(1, 5), st.integers(2, 4), st.integers(1, 3), st.integers(0, 99))


def test_every_loss_of_torch_is_known_or_has_parameters():
    named = {name.split(" ")[0] for name in CASES}
    there = {name for name in dir(nn) if name.endswith("Loss")}
    assert there - HAVE_PARAMETERS <= named
    assert named <= there


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=8)
@given(size=sizes)
def test_l1_the_sum_over_the_weight_is_torchs_own_mean(name, size):
    rows, classes, extra, seed = size
    rng = np.random.default_rng(seed)
    loss = CASES[name][0](rng, classes)
    outputs, targets = CASES[name][1](rng, rows, classes, extra)
    expected = float(KnownLoss(loss)(outputs, targets))
    total, weight = score(loss, outputs, targets)
    if weight == 0.0:
        assert np.isnan(expected)  # a mean over nothing
        return
    assert total / weight == pytest.approx(expected, rel=1e-12)
    if loss.reduction == "batchmean":  # of KLDivLoss; its other reductions count elements
        return
    for reduction in ("sum", "none"):
        loss.reduction = reduction
        summed, same_weight = score(loss, outputs, targets)
        assert same_weight == weight
        if not isinstance(loss, nn.CTCLoss):  # its sum does not divide rows by their lengths
            assert summed == pytest.approx(total, rel=1e-10, abs=1e-12)


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=8)
@given(size=sizes, data=st.data())
def test_l1_padding_counts_neither_in_the_sum_nor_in_the_weight(name, size, data):
    rows, classes, extra, seed = size
    rng = np.random.default_rng(seed)
    loss = CASES[name][0](rng, classes)
    outputs, targets = CASES[name][1](rng, rows, classes, extra)
    counted = np.array(data.draw(st.lists(st.booleans(), min_size=rows, max_size=rows)))
    total, weight = score(loss, outputs, targets, sample_weight=counted.astype(np.float32))
    if not counted.any():
        assert (total, weight) == (0.0, 0.0)
        return
    kept = cut(outputs, counted, axis=1 if isinstance(loss, nn.CTCLoss) else 0)
    expected, expected_weight = score(loss, kept, cut(targets, counted))
    assert weight == pytest.approx(expected_weight, rel=1e-12)
    assert total == pytest.approx(expected, rel=1e-10, abs=1e-12)


def test_l1_a_batch_of_ignored_targets_is_known_to_weigh_nothing_before_forward():
    loss = KnownLoss(nn.CrossEntropyLoss(ignore_index=7))
    assert loss.units_before(np.full((4,), 7), None) == 0.0
    assert loss.units_before(np.array([7, 1, 2, 7]), None) == 2.0
    assert loss.units_before(np.repeat([7, 1, 2], 100), None) == 200.0
    assert loss.units_before(torch.tensor([[7, 1], [2, 3]]), None) == 3.0
    assert loss.units_before(np.array([7, 1, 2, 7]), np.array([True, True, False, False])) == 1.0


def test_class_weights_are_summed_over_the_targets_that_count():
    loss = KnownLoss(nn.CrossEntropyLoss(weight=torch.tensor([0.5, 2.0, 4.0])))
    assert loss.units_before(np.array([0, 1, 2, -100]), None) == 6.5


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.int32, np.int64])
def test_class_indices_of_any_integer_type_are_taken(dtype):
    outputs = torch.zeros(3, 2)
    total, weight = score(
        nn.CrossEntropyLoss(), outputs, torch.from_numpy(np.array([0, 1, 1], dtype))
    )
    assert weight == 3.0
    assert total == pytest.approx(3 * np.log(2.0))


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (functional.cross_entropy, nn.CrossEntropyLoss),
        (functional.mse_loss, nn.MSELoss),
        (functional.binary_cross_entropy_with_logits, nn.BCEWithLogitsLoss),
    ],
)
def test_functions_are_as_good_as_modules(function, kind):
    assert type(as_module(function)) is kind
    assert denominator(as_module(function)) == denominator(kind())


def test_keywords_of_a_partial_reach_the_loss():
    loss = as_module(functools.partial(functional.cross_entropy, ignore_index=3, reduction="sum"))
    assert (loss.ignore_index, loss.reduction) == (3, "sum")


def test_a_partial_with_an_unknown_keyword_is_refused():
    keywords: Any = {"axis": 1}
    with pytest.raises(ConfigError, match="objective="):
        as_module(functools.partial(functional.cross_entropy, **keywords))


def test_a_subclass_with_its_own_forward_is_not_taken_for_torchs_loss():
    class Mine(nn.CrossEntropyLoss):
        def forward(self, input, target):  # noqa: A002 torch's names
            return super().forward(input, target) * 2

    assert denominator(Mine()) is None
    total, weight = score(Mine(), torch.zeros(4, 2), torch.tensor([0, 1, -100, -100]))
    assert weight == 4.0  # nothing is known about it but its rows
    assert total == pytest.approx(4 * 2 * np.log(2.0))


def test_a_loss_with_parameters_is_refused():
    with pytest.raises(ConfigError, match="part of the model"):
        build_objective(Job(None, loss=nn.AdaptiveLogSoftmaxWithLoss(64, 6, [2, 4])), CPU)


def test_a_reduction_that_contradicts_the_loss_is_refused():
    with pytest.raises(ConfigError, match="'sum', but the loss has reduction='mean'"):
        build_objective(Job(None, loss=nn.MSELoss(), loss_reduction="sum"), CPU)


def test_an_unknown_reduction_is_refused():
    with pytest.raises(ConfigError, match="mean, sum, none"):
        build_objective(Job(None, loss=nn.MSELoss(), loss_reduction="average"), CPU)


def test_an_opaque_mean_counts_rows():
    total, weight = score(lambda o, y: (o - y).abs().mean(), torch.ones(4, 2), torch.zeros(4, 2))
    assert (total, weight) == (4.0, 4.0)


def test_weight_replaces_the_rows_of_an_opaque_mean():
    found = score(
        lambda o, y: (o - y).abs().mean(),
        torch.ones(4, 2),
        torch.zeros(4, 2),
        weight=lambda batch: batch[1].numel(),
    )
    assert found == (8.0, 8.0)


def test_an_opaque_vector_without_a_word_about_it_is_refused():
    with pytest.raises(ConfigError, match='loss_reduction="none"'):
        score(lambda o, y: (o - y).abs().mean(1), torch.ones(4, 2), torch.zeros(4, 2))


def test_an_opaque_vector_is_summed_over_rows():
    found = score(
        lambda o, y: (o - y).abs().mean(1),
        torch.ones(4, 2),
        torch.zeros(4, 2),
        loss_reduction="none",
        sample_weight=np.array([1, 1, 1, 0], np.float32),
    )
    assert found == (3.0, 3.0)


def test_an_opaque_matrix_is_refused():
    with pytest.raises(ConfigError, match=r"shape \[4, 2\] for 4 rows"):
        score(lambda o, y: o - y, torch.ones(4, 2), torch.zeros(4, 2), loss_reduction="none")


def test_an_opaque_mean_cannot_carry_padding():
    with pytest.raises(ConfigError, match="padding"):
        score(
            lambda o, y: (o - y).abs().mean(),
            torch.ones(2, 2),
            torch.zeros(2, 2),
            sample_weight=np.array([1, 0], np.float32),
        )


def test_weight_cannot_count_padding():
    with pytest.raises(ConfigError, match=r"batch\.remainder"):
        score(
            nn.MSELoss(),
            torch.ones(2, 2),
            torch.zeros(2, 2),
            weight=lambda batch: 2,
            sample_weight=np.array([1, 0], np.float32),
        )


def test_sample_weights_multiply_the_sum_but_not_the_count():
    # Rows lose 1, 4, 9; weights 1, 0.5, 0; three real rows.
    outputs = torch.tensor([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]])
    weights = np.array([1.0, 0.5, 0.0], np.float32)
    found = score(nn.MSELoss(), outputs, torch.zeros(3, 2), weights=weights)
    assert found == (3.0, 3.0)
    found = score(
        nn.MSELoss(),
        outputs,
        torch.zeros(3, 2),
        weights=weights,
        sample_weight=np.array([1, 1, 0], np.float32),
    )
    assert found == (3.0, 2.0)


def test_sample_weights_of_another_length_are_refused():
    with pytest.raises(ConfigError, match="one number a row"):
        score(nn.MSELoss(), torch.ones(3, 2), torch.zeros(3, 2), weights=np.ones((3, 2)))


def test_padding_that_is_not_finite_does_not_reach_the_sum():
    outputs = torch.tensor([[1.0], [float("inf")]])
    found = score(
        nn.MSELoss(), outputs, torch.zeros(2, 1), sample_weight=np.array([1, 0], np.float32)
    )
    assert found == (1.0, 1.0)
