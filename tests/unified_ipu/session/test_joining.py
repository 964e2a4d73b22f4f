from __future__ import annotations

from typing import Any

import pytest

from unified_ipu.errors import ConfigError, PlanError
from unified_ipu.plan import Plan
from unified_ipu.session.joining import join_plan, read_arguments, share_host
from unified_ipu.world import Handover, World, usable_cores


def test_plan_and_settings_are_found_among_other_arguments():
    found = read_arguments(["--epochs", "3", "--plan=a.toml", "--set", "seed=1", "--set=seed=2"])
    assert found == ("a.toml", ["seed=1", "seed=2"])


def test_a_setting_without_its_value_is_refused():
    with pytest.raises(ConfigError, match="--set is the last argument"):
        read_arguments(["--set"])


def test_the_plan_beside_the_script_is_the_lowest_layer(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("")
    (tmp_path / "plan.toml").write_text("seed = 3\n[batch]\nglobal_batch_size = 32\n")
    joined = join_plan(None, world=World(), argv=[str(script), "--set", "seed=5"])
    assert joined.plan.seed == 5
    assert joined.plan.batch.global_batch_size == 32
    assert joined.script_folder == str(tmp_path)


def test_what_our_launcher_handed_over_wins_over_the_file(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("")
    (tmp_path / "plan.toml").write_text("seed = 3\n")
    other = tmp_path / "other.toml"
    other.write_text("seed = 4\n[batch]\nmicro_batch_size = 8\n")
    world = World(launcher="unified-ipu", handover=Handover(plan=str(other), settings=("seed=6",)))
    joined = join_plan(None, world=world, argv=[str(script), "--set", "seed=9"])
    assert joined.plan.seed == 6
    assert joined.plan.batch.micro_batch_size == 8


def test_a_plan_for_two_replicas_started_alone_shows_the_command():
    with pytest.raises(PlanError, match=r"unified-ipu run --set mesh\.data=2 train\.py"):
        join_plan(Plan(), world=World(), argv=["train.py", "--set", "mesh.data=2"])


def test_auto_takes_the_world_that_another_launcher_made():
    world = World(
        rank=1, local_rank=1, world_size=3, local_world_size=3, launcher="torchrun", job="j"
    )
    joined = join_plan(Plan(), world=world, argv=[])
    assert joined.plan.mesh.data == 3
    assert joined.place.replicas == range(1, 2)
    assert joined.place.num_replicas == 3


def test_a_world_that_does_not_fit_the_plan_is_refused_with_both_numbers():
    world = World(world_size=3, local_world_size=3, launcher="torchrun", job="j")
    with pytest.raises(PlanError, match=r"2.*3|3.*2"):
        join_plan(Plan().replace({"mesh.data": 2}), world=world, argv=[])


DEVICE = {"target": "ipu-emulated", "ipu.replicas_per_process": 2, "batch.remainder": "pad"}


def on_devices(world_size, rank=0, **settings):
    world = World(
        rank=rank, local_rank=rank, world_size=world_size, local_world_size=world_size,
        launcher="torchrun", job="j",
    )  # fmt: skip
    return join_plan(Plan().replace({**DEVICE, **settings}), world=world, argv=[])


def test_on_devices_a_process_drives_several_replicas():
    joined = on_devices(3, rank=1, **{"batch.global_batch_size": 96})
    assert joined.plan.mesh.data == 6
    assert joined.place.replicas == range(2, 4)
    assert joined.place.num_replicas == 6
    assert joined.mesh.axes == {"data": 3}


def test_on_devices_the_world_is_replicas_by_those_of_a_process():
    assert on_devices(2, **{"mesh.data": 4}).place.replicas == range(2)
    with pytest.raises(PlanError, match="makes 2 processes; the world has 4; start 2"):
        on_devices(4, **{"mesh.data": 4})
    with pytest.raises(PlanError, match=r"does not divide the 3 replicas.*one of 1, 3"):
        on_devices(1, **{"mesh.data": 3})


def test_all_replicas_of_one_process_need_no_launcher():
    plan = Plan().replace({**DEVICE, "mesh.data": 2})
    assert join_plan(plan, world=World(), argv=["train.py"]).place.replicas == range(2)
    with pytest.raises(PlanError, match=r"mesh\.data=4 needs 2 processes"):
        join_plan(plan.replace({"mesh.data": 4}), world=World(), argv=["train.py"])


class Crowd:
    """A communicator whose ranks all say what this one does."""

    def __init__(self, size):
        self.rank, self.size = 0, size

    def all_gather_value(self, value):
        return [value] * self.size


def crowd() -> Any:
    return Crowd(4)


@pytest.mark.parametrize(
    ("launcher", "warns"), [("torchrun", True), ("slurm", True), ("unified-ipu", False)]
)
def test_more_threads_than_cores_under_another_launcher_are_a_warning(
    monkeypatch, caplog, launcher, warns
):
    monkeypatch.setenv("OMP_NUM_THREADS", "64")
    world = World(world_size=4, local_world_size=4, launcher=launcher, job="j")
    joined = share_host(join_plan(Plan(), world=world, argv=[]), crowd())
    assert joined.place.cores == max(1, usable_cores() // 4)
    assert ("4 processes of this host may start 256 threads" in caplog.text) == warns


def test_threads_that_fit_are_no_warning(monkeypatch, caplog):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    world = World(world_size=4, local_world_size=4, launcher="torchrun", job="j")
    share_host(join_plan(Plan(), world=world, argv=[]), crowd())
    assert caplog.text == ""
