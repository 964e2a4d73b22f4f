"""``ui.losses`` on torch: the formulas in numpy, the named output, the weight of what counts."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import unified_ipu as ui
from unified_ipu.errors import ConfigError


class Named(torch.nn.Module):
    """Passes its input on as one of two outputs, or as a pair."""

    def __init__(self, kind) -> None:
        super().__init__()
        self.kind = kind
        self.scale = torch.nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, x):
        y = x * self.scale
        if self.kind == "plain":
            return y
        return {"logits": y, "other": -y} if self.kind == "named" else (-y, y)


def scored(loss, x, y, *, kind="plain"):
    """S, W of the sum over all rows."""
    with ui.Session(ui.Plan(), argv=[]) as session:
        program = session.compile(
            Named(kind), loss=loss, optimizer=ui.optim.SGD(lr=0.1), adapter="torch"
        )
        record = program.step((x, y))
        return record.loss_sum, record.weight


LOGITS = np.array([[1.0, 2.0, -1.0], [0.5, -0.5, 0.0], [3.0, 0.0, 1.0], [0.0, 1.0, 0.0]])
CLASSES = np.array([1, 0, 2, 1])
WEIGHTS = np.array([0.5, 1.0, 2.0])


def likelihoods(outputs):
    return np.array([-outputs[row, target] for row, target in enumerate(CLASSES)])


def cross_entropies():
    return likelihoods(LOGITS - np.log(np.exp(LOGITS).sum(1, keepdims=True)))


def close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_softmax_cross_entropy_with_class_weights_and_an_ignored_class():
    each = cross_entropies()
    close(scored(ui.losses.softmax_cross_entropy(), LOGITS, CLASSES), (each.sum(), 4.0))
    loss = ui.losses.softmax_cross_entropy(class_weights=WEIGHTS, ignore_index=1)
    kept = np.array([0.5, 2.0])
    close(scored(loss, LOGITS, CLASSES), ((each[[1, 2]] * kept).sum(), 2.5))
    summed = ui.losses.softmax_cross_entropy(reduction="sum")
    close(scored(summed, LOGITS, CLASSES), (each.sum(), 4.0))


def test_negative_log_likelihood_reads_logarithms():
    loss = ui.losses.negative_log_likelihood
    close(scored(loss, LOGITS, CLASSES), (likelihoods(LOGITS).sum(), 4.0))


def test_losses_of_elements_divide_by_their_number():
    targets = np.array([[0.0, 1.0, 1.0], [1.0, 0.0, 0.0], [0.5, 0.0, 1.0], [1.0, 1.0, 0.0]])
    d = LOGITS - targets
    expected = {
        ui.losses.mean_squared_error: (d**2).sum(),
        ui.losses.mean_absolute_error: np.abs(d).sum(),
        ui.losses.sigmoid_cross_entropy: (np.log1p(np.exp(LOGITS)) - targets * LOGITS).sum(),
    }
    for loss, total in expected.items():
        close(scored(loss(), LOGITS, targets), (total, 12.0))
    near = np.abs(d) <= 0.75
    huber = np.where(near, 0.5 * d**2, 0.75 * (np.abs(d) - 0.375)).sum()
    close(scored(ui.losses.huber(delta=0.75), LOGITS, targets), (huber, 12.0))


@pytest.mark.parametrize(("kind", "output"), [("named", "logits"), ("pair", 1)])
def test_the_loss_reads_the_output_it_names(kind, output):
    loss = ui.losses.softmax_cross_entropy(output=output)
    close(scored(loss, LOGITS, CLASSES, kind=kind), (cross_entropies().sum(), 4.0))


def test_an_output_that_is_missing_is_refused_with_those_there_are():
    with pytest.raises(ConfigError, match="'logits', 'other'; pass output="):
        scored(ui.losses.softmax_cross_entropy(), LOGITS, CLASSES, kind="named")
    with pytest.raises(ConfigError, match="output='logit'"):
        scored(ui.losses.mean_squared_error(output="logit"), LOGITS, LOGITS, kind="named")


def test_a_reduction_that_contradicts_is_refused():
    with ui.Session(ui.Plan(), argv=[]) as session, pytest.raises(ConfigError, match="'sum'"):
        session.compile(
            Named("plain"),
            loss=ui.losses.mean_squared_error(reduction="sum"),
            loss_reduction="mean",
            optimizer=ui.optim.SGD(lr=0.1),
        )
