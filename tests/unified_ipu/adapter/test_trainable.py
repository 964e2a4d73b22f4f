"""What is trained, by names; the same words in every adapter."""

from __future__ import annotations

import pytest

from unified_ipu.adapter import choose_trainable, nearest
from unified_ipu.errors import ConfigError

NAMES = ["a.weight", "a.bias", "b.weight"]


@pytest.mark.parametrize(
    ("trainable", "expected"),
    [
        (None, NAMES),
        ("a.bias", ["a.bias"]),
        (["b.weight", "a.weight"], ["a.weight", "b.weight"]),
        (lambda name: name.startswith("a"), ["a.weight", "a.bias"]),
    ],
)
def test_names_a_predicate_or_nothing_choose_in_the_models_order(trainable, expected):
    assert choose_trainable(trainable, NAMES) == expected


def test_a_name_that_does_not_exist_is_refused_with_the_nearest():
    words = r"'a\.wieght', which is no variable of the model.*did you mean 'a\.weight'"
    with pytest.raises(ConfigError, match=words):
        choose_trainable(["a.wieght"], NAMES, kind="variable")


@pytest.mark.parametrize("nothing", [lambda _: False, []])
def test_training_nothing_is_refused(nothing):
    with pytest.raises(ConfigError, match="leaves no parameter to train"):
        choose_trainable(nothing, NAMES)


def test_a_name_like_none_is_answered_with_the_first_ones():
    assert nearest("zzz", ["a", "b"]) == "known: a, b"
    assert nearest("zzz", list("abcdefghij")) == "known: a, b, c, d, e, f, g, h, ..."
