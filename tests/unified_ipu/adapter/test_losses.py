"""``ui.losses``: descriptions that check themselves, and pick the output that they read."""

from __future__ import annotations

import pickle
from typing import Any, cast

import pytest

from unified_ipu.adapter import losses
from unified_ipu.errors import ConfigError


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: losses.mean_squared_error(reduction="max"), r"reduction='max'.*mean, sum, none"),
        (lambda: losses.mean_squared_error(output=cast("Any", 1.5)), r"output=1.5"),
        (lambda: losses.mean_squared_error(output=True), r"output=True"),
        (lambda: losses.softmax_cross_entropy(class_weights=[1.0, -1.0]), r"\[1.0, -1.0\]"),
        (lambda: losses.negative_log_likelihood(class_weights=cast("Any", 3)), "class_weights=3"),
        (lambda: losses.huber(delta=0.0), r"huber\(delta=0.0\)"),
    ],
)
def test_an_impossible_value_is_named(make, words):
    with pytest.raises(ConfigError, match=words):
        make()


def test_a_description_is_a_value():
    loss = losses.softmax_cross_entropy(output="logits", class_weights=[1, 2], ignore_index=0)
    assert loss == losses.softmax_cross_entropy(
        output="logits", class_weights=(1.0, 2.0), ignore_index=0
    )
    assert hash(loss) == hash(pickle.loads(pickle.dumps(loss)))  # noqa: S301  our own bytes
    assert loss.class_weights == (1.0, 2.0)


def test_a_function_may_be_passed_uncalled():
    assert losses.described(losses.huber) == losses.huber()
    assert losses.described(len) is len
    assert losses.described(None) is None


def test_the_output_is_picked_by_name_or_index():
    named = {"logits": "a", "hidden": "b"}
    assert losses.mean_squared_error(output="logits").select(named) == "a"
    assert losses.mean_squared_error(output=1).select(("a", "b")) == "b"
    assert losses.mean_squared_error().select("a") == "a"


@pytest.mark.parametrize(
    ("output", "outputs", "words"),
    [
        (None, {"logits": 1, "hidden": 2}, "'logits', 'hidden'; pass output="),
        (None, (1, 2), "2 outputs without names; pass output="),
        ("logit", {"logits": 1}, "output='logit'.*'logits'"),
        ("logits", (1, 2), "output='logits'.*2 outputs without names"),
        ("logits", "a", "one output without a name"),
        (2, (1, 2), "output=2"),
        (0, {"logits": 1}, "output=0"),
    ],
)
def test_an_output_that_is_not_there_is_named(output, outputs, words):
    with pytest.raises(ConfigError, match=words):
        losses.mean_squared_error(output=output).select(outputs)
