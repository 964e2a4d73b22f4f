"""Fields by dotted name, and where those go that every adapter treats alike."""

from __future__ import annotations

from unified_ipu.plan import (
    Plan,
    device_fields,
    fields_unknown_on_hosts,
    flat_fields,
    host_fields,
)

OF_FRAMEWORKS = {  # what each framework is told by a setting of its own
    "target": "device",
    "seed": "set_seed",
    "deterministic": "deterministic",
    "mesh.stage": "stages",
    "batch.micro_batch_size": "rows",
    "precision.compute": "autocast",
}


def test_a_plan_is_flat_by_dotted_names():
    values = flat_fields(Plan().replace({"seed": 3, "mesh.data": 2}))
    assert (values["seed"], values["mesh.data"], values["mesh.stage"]) == (3, 2, 1)
    assert not [name for name, value in values.items() if isinstance(value, dict)]


def test_on_hosts_the_core_sees_to_most_fields_and_some_have_no_meaning():
    fields = host_fields(OF_FRAMEWORKS)
    assert fields["batch.remainder"] == "core"
    assert fields["compile.cache_dir"] == "unused"
    assert fields["seed"] == "set_seed"
    assert fields_unknown_on_hosts(Plan(), fields) == []


def test_what_an_adapter_leaves_out_is_unknown_but_settings_of_devices_are_none_of_its_business():
    own = {name: setting for name, setting in OF_FRAMEWORKS.items() if name != "precision.compute"}
    assert fields_unknown_on_hosts(Plan(), host_fields(own)) == ["precision.compute"]


def test_on_devices_the_adapters_own_settings_win():
    fields = device_fields({"seed": "randomSeed", "deterministic": "setDeterministic"})
    assert fields["seed"] == "randomSeed"
    assert fields["deterministic"] == "setDeterministic"
    assert fields["comms.overlap"] == "processes of the host"
    assert fields["comms.compression"] == "refused"
    assert set(fields) <= set(flat_fields(Plan()))
