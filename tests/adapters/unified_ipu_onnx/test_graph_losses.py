"""Losses that the graph computes itself: S and W, by what the operator divides."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

import unified_ipu as ui
from tests.adapters.unified_ipu_onnx import graphs
from unified_ipu.errors import ConfigError

pytestmark = pytest.mark.timeout(120)

LOGITS = np.array([[1.0, 2.0, -1.0], [0.5, -0.5, 0.0], [3.0, 0.0, 1.0], [0.0, 1.0, 0.0]])
LABELS = np.array([1, 0, 2, 1])
WEIGHTS = np.array([0.5, 1.0, 2.0])


def cross_entropies(logits=LOGITS, labels=LABELS):
    logs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    return np.array([-logs[row, label] for row, label in enumerate(labels)])


def classifier(
    operator="SoftmaxCrossEntropyLoss",
    *,
    weights=None,
    through=None,
    outputs=("logits", "loss"),
    **attributes,
):
    """``logits = x * scale`` and the loss of labels, which may come through another operator."""
    labels = "labels" if through is None else "whole"
    nodes = [helper.make_node("Mul", ["x", "scale"], ["logits"])]
    scores = "logits"
    if operator == "NegativeLogLikelihoodLoss":
        nodes.append(helper.make_node("LogSoftmax", ["logits"], ["logs"], axis=1))
        scores = "logs"
    if through == "Squeeze":
        nodes.append(helper.make_node("Squeeze", ["labels", "last"], ["whole"]))
    held = {"scale": np.ones(1)}
    if through == "Squeeze":
        held["last"] = np.array([1])
    inputs = [scores, labels]
    if weights is not None:
        held["class_weights"] = weights
        inputs.append("class_weights")
    nodes.append(helper.make_node(operator, inputs, ["cost"], **attributes))
    nodes.append(helper.make_node("Identity", ["cost"], ["loss"]))
    described = {
        "logits": graphs.value("logits", ["rows", 3], "float64"),
        "loss": graphs.value("loss", ["rows"] if attributes.get("reduction") == "none" else [],
                             "float64"),
    }  # fmt: skip
    shape = ["rows", 1] if through == "Squeeze" else ["rows"]
    return graphs.model(
        nodes,
        [graphs.value("x", ["rows", 3], "float64"), graphs.value("labels", shape, "int64")],
        [described[name] for name in outputs],
        held,
    )


def pair(proto, x, labels, *, loss="loss", size=16, **given):
    """S and W of one update, in micro-batches of ``size`` rows."""
    plan = ui.Plan().replace({"batch.micro_batch_size": size})
    with ui.Session(plan, argv=[]) as session:
        program = session.compile(proto, loss=loss, optimizer=ui.optim.SGD(lr=1e-9), **given)
        parts = [(x[i : i + size], labels[i : i + size]) for i in range(0, len(x), size)]
        record = program.step(parts)
        return record.loss_sum, record.weight


@pytest.mark.parametrize("size", [16, 1, 3])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("operator", ["SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"])
def test_l1_2_class_weights_and_an_ignored_class_are_the_denominator(operator, reduction, size):
    each = cross_entropies()
    plain = pair(classifier(operator, reduction=reduction), LOGITS, LABELS, size=size)
    np.testing.assert_allclose(plain, (each.sum(), 4.0), rtol=1e-12)
    proto = classifier(operator, weights=WEIGHTS, ignore_index=1, reduction=reduction)
    found = pair(proto, LOGITS, LABELS, size=size)
    # Rows 1 and 2 count, with weights 0.5 and 2; a micro-batch of ignored rows alone is not run.
    np.testing.assert_allclose(found, (0.5 * each[1] + 2.0 * each[2], 2.5), rtol=1e-12)


@pytest.mark.parametrize("size", [16, 1])
def test_l1_2_targets_that_the_graph_computes_are_counted_after_it_ran(size):
    proto = classifier(through="Squeeze", weights=WEIGHTS, ignore_index=1)
    each = cross_entropies()
    found = pair(proto, LOGITS, LABELS[:, None], size=size)
    np.testing.assert_allclose(found, (0.5 * each[1] + 2.0 * each[2], 2.5), rtol=1e-12)


def test_one_value_a_target_is_summed_over_all_of_them():
    proto = graphs.model(
        [helper.make_node("Mul", ["x", "scale"], ["logits"]),
         helper.make_node("SoftmaxCrossEntropyLoss", ["logits", "labels"], ["loss"],
                          reduction="none", ignore_index=0)],
        [graphs.value("x", ["rows", 3, 2], "float64"),
         graphs.value("labels", ["rows", 2], "int64")],
        [graphs.value("loss", ["rows", 2], "float64")],
        {"scale": np.ones(1)},
    )  # fmt: skip
    x = np.stack([LOGITS, -LOGITS], axis=2)
    labels = np.stack([LABELS, LABELS], axis=1)
    kept = LABELS != 0
    total = cross_entropies()[kept].sum() + cross_entropies(-LOGITS)[kept].sum()
    np.testing.assert_allclose(pair(proto, x, labels), (total, 6.0), rtol=1e-12)


def test_a_loss_of_other_operators_counts_rows_or_what_the_user_says():
    proto = graphs.model(
        [helper.make_node("Mul", ["x", "scale"], ["y"]),
         helper.make_node("Sub", ["y", "target"], ["d"]),
         helper.make_node("Mul", ["d", "d"], ["square"]),
         helper.make_node("ReduceMean", ["square"], ["loss"], keepdims=0)],
        [graphs.value("x", ["rows", 3], "float64"), graphs.value("target", ["rows", 3], "float64")],
        [graphs.value("loss", [], "float64")],
        {"scale": np.ones(1)},
    )  # fmt: skip
    target = np.zeros_like(LOGITS)
    mean = (LOGITS**2).mean()
    for loss in ("loss", None):  # the only output need not be named
        np.testing.assert_allclose(pair(proto, LOGITS, target, loss=loss), (4 * mean, 4.0))
    weighed = pair(proto, LOGITS, target, weight=lambda batch: batch[0].numel())
    np.testing.assert_allclose(weighed, (12 * mean, 12.0))


def test_batches_may_name_the_inputs_of_the_graph():
    with ui.Session(ui.Plan(), argv=[]) as session:
        program = session.compile(classifier(), loss="loss", optimizer=ui.optim.SGD(lr=1e-9))
        record = program.step({"labels": LABELS, "x": LOGITS})
    np.testing.assert_allclose(record.loss_sum, cross_entropies().sum())


def test_the_other_outputs_are_what_is_measured_and_predicted():
    with ui.Session(ui.Plan(), argv=[]) as session:
        program = session.compile(classifier(), loss="loss", optimizer=ui.optim.SGD(lr=1e-9))
        loader = session.loader((LOGITS, LABELS), train=False)
        found = program.evaluate(loader, {"accuracy": ui.metrics.accuracy})
        np.testing.assert_allclose(found["loss"], cross_entropies().mean())
        assert found["accuracy"] == 0.75
        np.testing.assert_allclose(program.predict(loader), LOGITS)


def test_rows_of_padding_do_not_count_where_the_loss_is_one_a_row():
    plan = ui.Plan().replace(
        {"batch.micro_batch_size": 3, "batch.global_batch_size": 3, "batch.remainder": "pad"}
    )
    with ui.Session(plan, argv=[]) as session:
        program = session.compile(
            classifier(reduction="none", ignore_index=2),
            loss="loss",
            optimizer=ui.optim.SGD(lr=1e-9),
        )
        totals = [program.step(call) for call in session.loader((LOGITS, LABELS))]
    each = cross_entropies()[LABELS != 2]
    assert sum(record.weight for record in totals) == 3.0
    np.testing.assert_allclose(sum(record.loss_sum for record in totals), each.sum())


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"loss": None}, "'logits', 'loss'; name the one that is the loss"),
        ({"loss": "lost"}, "loss='lost' is no output of the graph; did you mean 'loss'"),
        ({"loss": "loss", "loss_reduction": "sum"}, "with reduction 'mean'"),
    ],
)
def test_what_contradicts_the_graph_is_refused(given, words):
    with ui.Session(ui.Plan(), argv=[]) as session, pytest.raises(ConfigError, match=words):
        session.compile(classifier(), optimizer=ui.optim.SGD(lr=0.1), **given)


def test_a_loss_on_an_output_of_the_graph_needs_no_operator_in_it():
    proto = classifier()
    loss = ui.losses.softmax_cross_entropy(output="logits")
    with ui.Session(ui.Plan(), argv=[]) as session:
        program = session.compile(proto, loss=loss, optimizer=ui.optim.SGD(lr=1e-9))
        record = program.step(({"x": LOGITS, "labels": LABELS}, LABELS))
    np.testing.assert_allclose((record.loss_sum, record.weight), (cross_entropies().sum(), 4.0))
