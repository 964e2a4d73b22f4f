"""The operator of a node is the newest one that its operator set knows."""

from __future__ import annotations

import onnx
import pytest

from unified_ipu_onnx.operators import REGISTRY
from unified_ipu_onnx.registry import Operator, Registry


def build(node):
    return node


def test_the_newest_version_not_above_the_models_is_taken():
    registry = Registry([Operator("Op", 11, build), Operator("Op", 6, build)])
    assert [getattr(registry.find("", "Op", v), "since", None) for v in (5, 6, 10, 11, 20)] == [
        None, 6, 6, 11, 11,
    ]  # fmt: skip


def test_domains_are_told_apart():
    registry = Registry([Operator("Op", 1, build, domain="mine")])
    assert registry.find("", "Op", 5) is None
    assert registry.find("mine", "Op", 5) is not None


def test_one_version_given_twice_is_an_error():
    with pytest.raises(ValueError, match="Op since 6 is given twice"):
        Registry([Operator("Op", 6, build), Operator("Op", 6, build)])


def test_every_operator_is_one_of_the_standard_or_of_popart():
    known = {(s.domain, s.name) for s in onnx.defs.get_all_schemas_with_history()}
    assert len(REGISTRY.names()) > 100
    names = set(REGISTRY.names())
    assert {name for domain, name in names - known if domain == "ai.graphcore"} == {
        "Detach", "IdentityLoss", "L1", "Nll", "Nop", "Scale",
    }  # fmt: skip
    assert {domain for domain, _ in names - known} == {"ai.graphcore"}
