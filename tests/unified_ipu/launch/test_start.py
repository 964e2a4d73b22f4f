"""How many ranks, with how many threads."""

from __future__ import annotations

import pytest

from unified_ipu.errors import ConfigError, PlanError
from unified_ipu.launch.start import plan_beside, prepare
from unified_ipu.plan import Plan
from unified_ipu.world import Core, Processors


def machine(cores, nodes=1):
    return Processors(tuple(Core((cpu,), node=cpu * nodes // cores) for cpu in range(cores)))


def test_auto_takes_the_cores_but_not_more_than_have_work():
    assert prepare(None, environ={}, processors=machine(3)).num_ranks == 3
    assert (
        prepare(None, environ={}, processors=machine(64)).num_ranks == 4
    )  # 64 samples in micro-batches of 16


def test_an_explicit_number_runs_with_a_note_when_some_are_idle():
    start = prepare(Plan().replace(mesh={"data": 5}), environ={}, processors=machine(5))
    assert start.num_ranks == 5
    assert "idle" in start.notes[0]


def test_what_is_not_built_is_refused():
    with pytest.raises(PlanError, match="not built yet"):
        prepare(None, settings=["comms.compression=topk"], environ={}, processors=machine(1))


def test_the_plan_is_looked_for_beside_the_script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    script = tmp_path / "sub" / "train.py"
    script.write_text("")
    assert plan_beside(str(script)) is None
    (tmp_path / "plan.toml").write_text("")
    assert plan_beside(str(script)) is None
    assert plan_beside("") == str(tmp_path / "plan.toml")
    (tmp_path / "sub" / "plan.toml").write_text("")
    assert plan_beside("sub/train.py") == str(tmp_path / "sub" / "plan.toml")


def test_on_devices_a_process_is_started_for_so_many_replicas():
    plan = Plan().replace(
        {"target": "ipu-emulated", "ipu.replicas_per_process": 2, "batch.remainder": "pad"}
    )
    assert prepare(plan, processors=machine(8)).num_ranks == 1
    assert prepare(plan.replace({"mesh.data": 4}), processors=machine(8)).num_ranks == 2


def test_ranks_are_placed_and_told_so():
    start = prepare(None, environ={"HOME": "/h"}, processors=machine(4, nodes=2))
    assert start.num_ranks == 4
    assert start.bindings == ((0, 1), (0, 1), (2, 3), (2, 3))
    assert start.environ["OMP_NUM_THREADS"] == "1"
    assert start.environ["HOME"] == "/h"
    assert "ranks 0-1 on 0-1" in start.notes[-1]


def test_ranks_that_take_gpus_are_not_bound_to_a_node_that_may_be_another(monkeypatch):
    monkeypatch.setitem(prepare.__globals__, "usable_gpus", lambda _: 2)
    assert prepare(None, environ={}, processors=machine(4, nodes=2)).bindings == ()
    on_cpus = prepare(None, settings=["target=cpu"], environ={}, processors=machine(4, nodes=2))
    assert len(on_cpus.bindings) == 4
    asked = prepare(None, environ={}, processors=machine(4, nodes=2), bind="numa")
    assert asked.bindings == ((0, 1), (2, 3))


def test_binding_where_processes_cannot_be_bound_is_refused(monkeypatch):
    monkeypatch.delattr("os.sched_setaffinity")
    with pytest.raises(ConfigError, match="cannot be bound on"):
        prepare(None, environ={}, processors=machine(4), bind="core")
