from __future__ import annotations

from typing import Any, cast

import pytest

from unified_ipu.adapter import optim
from unified_ipu.errors import ConfigError


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: optim.SGD(lr=0.0), r"SGD\(lr=0.0\)"),
        (lambda: optim.SGD(lr=float("nan")), r"SGD\(lr=nan\)"),
        (lambda: optim.SGD(lr=True), r"SGD\(lr=True\)"),
        (lambda: optim.SGD(lr=0.1, momentum=-1.0), r"momentum=-1.0"),
        (lambda: optim.SGD(lr=0.1, nesterov=True), "momentum > 0"),
        (lambda: optim.Adam(betas=(0.9, 1.0)), r"betas=\(0.9, 1.0\)"),
        (lambda: optim.Adam(betas=cast("Any", 0.9)), r"betas=0.9"),
        (lambda: optim.AdamW(weight_decay=-0.1), r"AdamW\(weight_decay=-0.1\)"),
    ],
)
def test_a_value_out_of_range_is_named(make, words):
    with pytest.raises(ConfigError, match=words):
        make()


def test_defaults_are_those_of_torch():
    assert optim.Adam() == optim.Adam(lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)
    assert optim.AdamW().weight_decay == 0.01
