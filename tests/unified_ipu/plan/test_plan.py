"""Making, checking, changing, reading and writing plans."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given, settings, strategies as st

from unified_ipu.errors import ConfigError, PlanError
from unified_ipu.plan import (
    BatchSettings,
    CommsSettings,
    DataSettings,
    MeshAxes,
    Plan,
    PrecisionSettings,
    UpdateSettings,
)

DEFAULTS = """\
target = "auto"
seed = 0
deterministic = false

[mesh]
data = "auto"
stage = 1

[batch]
global_batch_size = 64
micro_batch_size = 16
updates_per_call = 1
remainder = "exact"

[update]
reduction = "mean"
lr_scaling = "none"
warmup_updates = 0

[precision]
compute = "float32"
reduce = "float32"
loss_scale = "none"

[comms]
transport = "auto"
algorithm = "auto"
bucket_bytes = 26214400
compression = "none"
overlap = "auto"
stall_report_seconds = 30.0
timeout_seconds = 1800.0

[pipeline]
schedule = "1f1b"
split = "auto"

[data]
shuffle = true
isolate = "auto"
workers = 1
python = ""

[compile]
cache_dir = ""
optimization_level = 2

[ipu]
replicas_per_process = 1
partials_type = "float32"
stochastic_rounding = false
weights = "on-chip"
optimizer_state = "on-chip"
activations = "on-chip"
accumulators = "on-chip"
replicated_tensor_sharding = false
prefetch_depth = 1
io_tiles = 0
synthetic_data = false
offline_compile = false
random_layers = "refuse"
"""

WRONG = [
    ({"mesh": {"dta": 1}}, "mesh.dta: no such setting; did you mean 'data'? allowed: data, stage"),
    ({"mesh": {"xyzzy": 1}}, "mesh.xyzzy: no such setting; allowed: data, stage"),
    ({"bacth": {}}, "bacth: no such setting; did you mean 'batch'? allowed: target, seed, "),
    ({"mesh": {"data": 0}}, 'mesh.data: got 0; expected "auto" or an integer >= 1'),
    ({"mesh": {"data": -1}}, 'mesh.data: got -1; expected "auto" or an integer >= 1'),
    ({"mesh": {"data": True}}, 'mesh.data: got true; expected "auto" or an integer >= 1'),
    ({"mesh": {"data": "four"}}, 'mesh.data: got "four"; expected "auto" or an integer >= 1'),
    ({"mesh": {"data": 2.5}}, 'mesh.data: got 2.5; expected "auto" or an integer >= 1'),
    ({"mesh": 3}, "mesh: got 3; expected a table"),
    ({"seed": -1}, "seed: got -1; expected an integer >= 0"),
    ({"target": "gpu"}, 'target: got "gpu"; expected "auto", "cpu", "cuda", "ipu" or "ipu-emu'),
    ({"deterministic": 1}, "deterministic: got 1; expected true or false"),
    ({"batch": {"micro_batch_size": 0}}, "batch.micro_batch_size: got 0; expected an integer"),
    ({"batch": {"remainder": "keep"}}, 'batch.remainder: got "keep"; expected "exact", "pad" or'),
    ({"update": {"clip_norm": 0}}, "update.clip_norm: got 0; expected a number > 0"),
    ({"update": {"clip_norm": float("nan")}}, "update.clip_norm: got NaN; expected a number > 0"),
    ({"precision": {"loss_scale": "banana"}}, 'loss_scale: got "banana"; expected "none" or "dy'),
    ({"precision": {"loss_scale": -2}}, "precision.loss_scale: got -2; expected"),
    ({"comms": {"timeout_seconds": 0}}, "comms.timeout_seconds: got 0; expected a number > 0"),
    ({"comms": {"bucket_bytes": 1.5}}, "comms.bucket_bytes: got 1.5; expected an integer >= 1"),
    ({"data": {"python": 3}}, "data.python: got 3; expected a text"),
]


@pytest.mark.parametrize(("tables", "message"), WRONG, ids=[m[:40] for _, m in WRONG])
def test_a_wrong_setting_is_named_with_what_was_given_and_what_is_allowed(tables, message):
    with pytest.raises(PlanError) as info:
        Plan.from_dict(tables)
    assert message in str(info.value)


def test_a_wrong_setting_in_a_file_names_the_file(tmp_path):
    path = tmp_path / "plan.toml"
    path.write_text("[mesh]\ndta = 1\n")
    with pytest.raises(PlanError) as info:
        Plan.load(path)
    assert str(info.value).startswith(f"{path}: mesh.dta: no such setting; did you mean 'data'?")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("plan.toml", "[mesh]\ndata = \n", "line 2"),
        ("plan.json", '{\n"mesh": ,}', "line 2"),
        ("plan.json", "[1]", "got a JSON list; expected an object"),
    ],
)
def test_a_file_that_cannot_be_parsed_names_the_line(tmp_path, name, text, message):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(PlanError) as info:
        Plan.load(str(path))
    assert str(path) in str(info.value)
    assert message in str(info.value)


def test_a_missing_file_is_a_plan_error(tmp_path):
    with pytest.raises(PlanError, match="cannot read the plan: No such file"):
        Plan.load(tmp_path / "plan.toml")


def test_a_file_of_other_bytes_is_a_plan_error(tmp_path):
    path = tmp_path / "plan.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(PlanError, match="not UTF-8"):
        Plan.load(path)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MeshAxes(data=0), 'mesh.data: got 0; expected "auto" or an integer >= 1'),
        (lambda: BatchSettings(micro_batch_size=-2), "batch.micro_batch_size: got -2; expected"),
        (lambda: CommsSettings(timeout_seconds=-1.0), "comms.timeout_seconds: got -1.0"),
        (lambda: Plan(seed=-1), "seed: got -1; expected an integer >= 0"),
        (
            lambda: Plan(target="gpu"),  # type: ignore[arg-type]  # the point
            'target: got "gpu"',
        ),
        (
            lambda: Plan(mesh={"data": 2}),  # type: ignore[arg-type]  # the point
            'mesh: got {"data": 2}; expected a MeshAxes',
        ),
        (lambda: Plan().replace(seed=-1), "seed: got -1"),
        (lambda: Plan().replace(sede=1), "sede: no such setting; did you mean 'seed'?"),
        (lambda: Plan().replace(mesh={"data": 0}), "mesh.data: got 0"),
        (lambda: Plan().replace({"mesh.dta": 1}), "mesh.dta: no such setting"),
        (lambda: Plan().replace({"mesh.": 1}), "'mesh.' is no setting; expected a dotted path"),
        (lambda: Plan().replace({"seed.x": 1}), 'seed: got {"x": 1}; expected an integer >= 0'),
        (lambda: Plan().replace(mesh=BatchSettings()), "no such setting"),
    ],
)
def test_every_way_to_make_a_plan_checks_it(make, message):
    with pytest.raises(PlanError) as info:
        make()
    assert message in str(info.value)


def test_a_plan_is_frozen_and_keyword_only():
    with pytest.raises(AttributeError):
        Plan().seed = 1  # type: ignore[misc]  # the point
    with pytest.raises(TypeError):
        Plan("cpu")  # type: ignore[call-arg]  # the point


def test_a_plan_error_is_a_config_error_and_a_value_error():
    with pytest.raises(ValueError, match="seed"):
        Plan(seed=-1)
    assert issubclass(PlanError, ConfigError)


def test_learning_rate_scaling_needs_its_base():
    for make in (
        lambda: UpdateSettings(lr_scaling="linear"),
        lambda: Plan.from_dict({"update": {"lr_scaling": "linear"}}),
        lambda: Plan().replace({"update.lr_scaling": "linear"}),
    ):
        with pytest.raises(PlanError) as info:
            make()
        assert str(info.value).startswith(
            'update.lr_scaling: got "linear" without base_global_batch_size; set '
            "update.base_global_batch_size"
        )


def test_learning_rates_scale_linearly_or_by_the_root():
    linear = UpdateSettings(lr_scaling="linear", base_global_batch_size=64)
    root = UpdateSettings(lr_scaling="sqrt", base_global_batch_size=64)
    assert linear.lr_scale(256) == 4.0
    assert linear.lr_scale(16) == 0.25
    assert root.lr_scale(256) == 2.0
    assert UpdateSettings(base_global_batch_size=64).lr_scale(256) == 1.0


def test_the_defaults_are_written_as_documented():
    assert Plan().to_toml() == DEFAULTS


def test_a_plan_survives_toml_and_json(tmp_path):
    plan = Plan(
        target="cpu",
        seed=2**40,
        mesh=MeshAxes(data=3),
        batch=BatchSettings(accumulation_per_replica=2),
        update=UpdateSettings(clip_norm=0.1, lr_scaling="sqrt", base_global_batch_size=32),
        precision=PrecisionSettings(loss_scale=1e30),
        data=DataSettings(shuffle=False, python='/opt/"sdk"/\u00fc\\ \t\x7f\x01python'),
    )
    toml = tmp_path / "plan.toml"
    toml.write_text(plan.to_toml(), encoding="utf-8")
    assert Plan.load(toml) == plan
    as_json = tmp_path / "plan.json"
    as_json.write_text(json.dumps(plan.to_dict()), encoding="utf-8")
    assert Plan.load(as_json) == plan


@given(
    st.text(st.characters(blacklist_categories=["Cs"])),
    st.floats(min_value=1e-300, max_value=1e300, exclude_min=True),
    st.one_of(st.just("auto"), st.integers(1, 2**62)),
    st.one_of(st.none(), st.integers(1, 2**62)),
    st.one_of(st.none(), st.integers(1, 2**62)),
)
@settings(max_examples=60)
def test_any_plan_survives_toml(tmp_path_factory, python, clip, data, total, accumulation):
    plan = Plan(
        mesh=MeshAxes(data=data),
        batch=BatchSettings(global_batch_size=total, accumulation_per_replica=accumulation),
        update=UpdateSettings(clip_norm=clip),
        data=DataSettings(python=python),
    )
    path = tmp_path_factory.getbasetemp() / "any.toml"
    path.write_bytes(plan.to_toml().encode())
    assert Plan.load(path) == plan


def test_replace_changes_single_settings_and_keeps_the_rest():
    plan = Plan(seed=7, batch=BatchSettings(global_batch_size=128, micro_batch_size=4))
    changed = plan.replace({"batch.micro_batch_size": 8, "mesh.data": 2}, seed=1)
    assert (changed.seed, changed.mesh.data) == (1, 2)
    assert changed.batch == BatchSettings(global_batch_size=128, micro_batch_size=8)
    assert plan.replace(batch={"micro_batch_size": 8}).batch.global_batch_size == 128
    assert plan.replace(batch=BatchSettings()).batch == BatchSettings()
    assert plan.seed == 7


def test_none_unsets_what_can_be_absent():
    plan = Plan(update=UpdateSettings(clip_norm=1.0))
    assert plan.replace({"update.clip_norm": None}).update.clip_norm is None
    with pytest.raises(PlanError, match=r"batch\.micro_batch_size: got nothing; expected"):
        plan.replace({"batch.micro_batch_size": None})


def test_the_accumulation_may_take_the_place_of_the_global_batch():
    assert BatchSettings().global_batch_size == 64
    given_instead = Plan().replace({"batch.accumulation_per_replica": 4})
    assert given_instead.batch.global_batch_size is None
    back = given_instead.replace({"batch.global_batch_size": 32})
    assert back.batch == BatchSettings(global_batch_size=32)
    both = Plan().replace(batch={"accumulation_per_replica": 4, "global_batch_size": 64})
    assert (both.batch.accumulation_per_replica, both.batch.global_batch_size) == (4, 64)


def test_integers_are_taken_where_numbers_are_expected():
    assert Plan.from_dict({"update": {"clip_norm": 1}}).update.clip_norm == 1.0
    assert Plan.from_dict({"comms": {"timeout_seconds": 60}}).comms.timeout_seconds == 60.0


def test_a_plan_is_no_dataclass_and_needs_no_framework_values():
    assert not dataclasses.is_dataclass(Plan)
    assert json.loads(json.dumps(Plan().to_dict()))["batch"]["accumulation_per_replica"] is None
