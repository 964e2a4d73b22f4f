"""What is not built yet is refused by name."""

from __future__ import annotations

import pytest

from unified_ipu.errors import PlanError
from unified_ipu.plan import Plan, check_built, not_built

REFUSED = [
    ("mesh.stage", 2, "mesh.stage: got 2; only 1 works today"),
    ("comms.compression", "topk", 'comms.compression: got "topk"; only "none" works'),
    ("pipeline.schedule", "gpipe", 'pipeline.schedule: got "gpipe"; only "1f1b" works'),
    ("pipeline.split", "layer3", 'pipeline.split: got "layer3"; only "auto" works'),
    ("compile.cache_dir", "x", 'compile.cache_dir: got "x"; only "" works'),
    ("compile.optimization_level", 3, "compile.optimization_level: got 3; only 2 works"),
]


def test_reducing_after_backward_may_be_asked_for():
    assert not_built(Plan().replace({"comms.overlap": "none"})) == ()


def test_the_defaults_are_built():
    check_built(Plan())
    assert not_built(Plan()) == ()


@pytest.mark.parametrize("value", ["cpu", "cuda", "ipu", "ipu-emulated"])
def test_every_target_is_built(value):
    check_built(Plan(target=value))


def test_where_programs_are_compiled_they_may_be_kept():
    plan = Plan().replace({"compile.cache_dir": "cache"})
    assert len(not_built(plan)) == 1
    assert not_built(plan.replace(target="ipu")) == ()


@pytest.mark.parametrize("value", ["ring", "hierarchical"])
def test_algorithms_are_of_hosts(value):
    plan = Plan().replace({"comms.algorithm": value})
    assert not_built(plan) == ()
    (refusal,) = not_built(plan.replace(target="ipu"))
    expected = f'comms.algorithm: got "{value}"; only "auto" or "direct" work with target = "ipu"'
    assert refusal == expected


@pytest.mark.parametrize(("path", "value", "message"), REFUSED)
def test_a_setting_that_is_not_built_is_named(path, value, message):
    with pytest.raises(PlanError) as info:
        check_built(Plan().replace({path: value}))
    assert message in str(info.value)


def test_all_of_them_are_named_at_once():
    plan = Plan().replace({"mesh.stage": 2, "compile.optimization_level": 3})
    with pytest.raises(PlanError) as info:
        check_built(plan)
    assert str(info.value).splitlines() == [
        "not built yet:",
        "  mesh.stage: got 2; only 1 works today",
        "  compile.optimization_level: got 3; only 2 works today",
    ]
