"""Layers of a plan: defaults, the script's, ``--plan``, ``--set``."""

from __future__ import annotations

import pytest

from unified_ipu.errors import PlanError
from unified_ipu.plan import BatchSettings, MeshAxes, Plan, UpdateSettings, merge_plan


def written(folder, name, text):
    path = folder / name
    path.write_text(text)
    return str(path)


def test_nothing_given_is_the_defaults():
    assert merge_plan(None) == Plan()


def test_later_layers_win_setting_by_setting(tmp_path):
    base = written(tmp_path, "a.toml", "seed = 1\n[batch]\nmicro_batch_size = 2\n[mesh]\ndata = 2")
    over = written(tmp_path, "b.json", '{"seed": 2, "batch": {"updates_per_call": 3}}')
    plan = merge_plan(base, plan_path=over, settings=["batch.updates_per_call=5", "seed=9"])
    assert plan == Plan(
        seed=9, mesh=MeshAxes(data=2), batch=BatchSettings(micro_batch_size=2, updates_per_call=5)
    )


def test_a_file_leaves_what_it_does_not_say_to_the_plan_below(tmp_path):
    over = written(tmp_path, "b.toml", "[batch]\nmicro_batch_size = 2")
    base = Plan(seed=3, update=UpdateSettings(clip_norm=1.0))
    plan = merge_plan(base, plan_path=over)
    assert plan == base.replace({"batch.micro_batch_size": 2})


def test_the_base_is_taken_as_a_path_too(tmp_path):
    written(tmp_path, "a.toml", "seed = 1")
    assert merge_plan(tmp_path / "a.toml").seed == 1


@pytest.mark.parametrize(
    ("setting", "path", "value"),
    [
        ("mesh.data=8", ("mesh", "data"), 8),
        ("mesh.data = auto", ("mesh", "data"), "auto"),
        ('mesh.data="auto"', ("mesh", "data"), "auto"),
        ("update.clip_norm=1e-1", ("update", "clip_norm"), 0.1),
        ("data.shuffle=false", ("data", "shuffle"), False),
        ("target=ipu-emulated", ("target",), "ipu-emulated"),
        ("data.python=/usr/bin/python3.8", ("data", "python"), "/usr/bin/python3.8"),
        ("data.python=", ("data", "python"), ""),
        ("data.python=a=b", ("data", "python"), "a=b"),
        ("data.python=1\nseed = 2", ("data", "python"), "1\nseed = 2"),
    ],
)
def test_a_setting_is_a_toml_value_or_a_bare_word(setting, path, value):
    found = merge_plan(None, settings=[setting]).to_dict()
    for part in path:
        found = found[part]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("mesh.data", "--set mesh.data: got no value; expected path=value"),
        ("=3", "--set =3: '' is no setting"),
        ("mesh..data=3", "--set mesh..data=3: 'mesh..data' is no setting"),
        ("mesh.dta=3", "--set: mesh.dta: no such setting; did you mean 'data'?"),
        ("mesh.data=zero", '--set: mesh.data: got "zero"; expected "auto" or an integer >= 1'),
        ("mesh=3", "--set: mesh: got 3; expected a table"),
        ("data.shuffle=True", '--set: data.shuffle: got "True"; expected true or false'),
    ],
)
def test_a_wrong_setting_names_the_option(setting, message):
    with pytest.raises(PlanError) as info:
        merge_plan(None, settings=[setting])
    assert str(info.value).startswith(message)


def test_the_file_with_the_fault_is_named(tmp_path):
    good = written(tmp_path, "good.toml", "seed = 1")
    bad = written(tmp_path, "bad.toml", "[mesh]\ndata = 0")
    for base, plan_path in ((good, bad), (bad, good)):
        with pytest.raises(PlanError) as info:
            merge_plan(base, plan_path=plan_path, settings=["seed=4"])
        assert str(info.value).startswith(f"{bad}: mesh.data: got 0")


def test_settings_that_belong_together_may_be_given_apart():
    plan = merge_plan(
        None, settings=["update.lr_scaling=linear", "update.base_global_batch_size=64"]
    )
    assert plan.update.base_global_batch_size == 64


def test_a_later_layer_overrules_the_other_way_to_say_the_batch(tmp_path):
    base = written(tmp_path, "a.toml", "[batch]\naccumulation_per_replica = 4")
    assert merge_plan(base).batch.global_batch_size is None
    overruled = merge_plan(base, settings=["batch.global_batch_size=32"])
    assert overruled.batch == BatchSettings(global_batch_size=32)
    other = merge_plan(Plan(), settings=["batch.accumulation_per_replica=2"])
    assert other.batch == BatchSettings(accumulation_per_replica=2)
