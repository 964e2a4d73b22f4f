"""How many ranks, with how many threads."""

from __future__ import annotations

import pytest

from unified_ipu.errors import PlanError
from unified_ipu.launch.start import plan_beside, prepare, thread_variables
from unified_ipu.plan import Plan


def test_auto_takes_the_cores_but_not_more_than_have_work():
    assert prepare(None, environ={}, cores=3).num_ranks == 3
    assert prepare(None, environ={}, cores=64).num_ranks == 4  # 64 samples in micro-batches of 16


def test_an_explicit_number_runs_with_a_note_when_some_are_idle():
    start = prepare(Plan().replace(mesh={"data": 5}), environ={}, cores=5)
    assert start.num_ranks == 5
    assert "idle" in start.notes[0]


def test_what_is_not_built_is_refused():
    with pytest.raises(PlanError, match="not built yet"):
        prepare(None, settings=["comms.compression=topk"], environ={}, cores=1)


@pytest.mark.parametrize(("ranks", "cores", "threads"), [(2, 8, "4"), (3, 8, "2"), (4, 2, "1")])
def test_ranks_share_the_cores(ranks, cores, threads):
    found = thread_variables({}, num_ranks=ranks, cores=cores)
    assert set(found) == {"OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"}
    assert set(found.values()) == {threads}


def test_one_rank_and_settings_of_the_user_are_left_alone():
    assert thread_variables({}, num_ranks=1, cores=8) == {}
    assert thread_variables({"MKL_NUM_THREADS": "3"}, num_ranks=2, cores=8) == {}


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
    assert prepare(plan, cores=8).num_ranks == 1
    assert prepare(plan.replace({"mesh.data": 4}), cores=8).num_ranks == 2
