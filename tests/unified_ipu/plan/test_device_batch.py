"""The batch of a device: literal shapes, and what static shapes cannot carry."""

from __future__ import annotations

import pytest

from unified_ipu.errors import PlanError
from unified_ipu.plan import Plan, device_batch, power_of_two_refusal


def plan_of(**settings):
    return Plan().replace({"batch.remainder": "pad", **settings})


def refused(**settings):
    return dict(device_batch(plan_of(**settings))[1])


def test_rows_of_a_call_are_updates_times_accumulation_times_replicas_times_micro_batch():
    # PopTorch's own example: D = 2, R = 3, A = 4, B = 2 make batches of 48 rows.
    batch, refusals = device_batch(
        plan_of(
            **{
                "mesh.data": 3,
                "ipu.replicas_per_process": 3,
                "batch.global_batch_size": 24,
                "batch.micro_batch_size": 2,
                "batch.updates_per_call": 2,
            }
        )
    )
    assert refusals == ()
    assert (batch.accumulation, batch.host_rows, batch.samples) == (4, 48, 48)


def test_replicas_of_other_processes_count_in_samples_and_not_in_host_rows():
    batch, refusals = device_batch(
        plan_of(
            **{
                "mesh.data": 8,
                "ipu.replicas_per_process": 2,
                "batch.global_batch_size": 64,
                "batch.micro_batch_size": 4,
            }
        )
    )
    assert refusals == ()
    assert (batch.accumulation, batch.processes) == (2, 4)
    assert (batch.host_rows, batch.samples, batch.ipus) == (16, 64, 2)


def test_a_global_batch_that_does_not_fill_updates_is_refused_with_the_nearest_ones():
    found = refused(**{"mesh.data": 2, "batch.global_batch_size": 60, "batch.micro_batch_size": 16})
    assert "multiple of micro_batch_size x replicas = 32" in found["batch.global_batch_size"]
    assert "set it to 32 or 64" in found["batch.global_batch_size"]


def test_exact_remainders_are_refused_with_the_two_that_work():
    _, refusals = device_batch(Plan())
    assert '"pad"' in dict(refusals)["batch.remainder"]
    assert '"drop"' in dict(refusals)["batch.remainder"]


def test_replicas_that_do_not_divide_into_processes_are_refused():
    found = refused(**{"mesh.data": 6, "ipu.replicas_per_process": 4})
    assert "6 replicas" in found["ipu.replicas_per_process"]


def test_fewer_ipus_than_stages_are_refused_with_both_numbers():
    found = refused(**{"mesh.stage": 4, "ipu.ipus_per_replica": 2})
    assert "4 stages" in found["ipu.ipus_per_replica"]
    assert "got 2" in found["ipu.ipus_per_replica"]


@pytest.mark.parametrize(
    ("replicas", "ipus", "words"),
    [(1, 1, ""), (4, 2, ""), (3, 1, "= 3 in one process"), (2, 3, "use 4 or 8")],
)
def test_ipus_of_a_process_come_in_powers_of_two(replicas, ipus, words):
    batch, _ = device_batch(
        plan_of(**{"ipu.replicas_per_process": replicas, "ipu.ipus_per_replica": ipus})
    )
    found = power_of_two_refusal(batch)
    assert bool(found) == bool(words)
    if words:
        assert words in found[0][1]


def test_accumulation_may_be_given_instead_of_the_global_batch():
    plan = Plan.from_dict(
        {
            "mesh": {"data": 4},
            "batch": {"accumulation_per_replica": 8, "micro_batch_size": 2, "remainder": "drop"},
            "ipu": {"replicas_per_process": 4},
        }
    )
    batch, refusals = device_batch(plan)
    assert refusals == ()
    assert (batch.accumulation, batch.host_rows) == (8, 64)


@pytest.mark.parametrize("tiles", [2, 31, 33, 194, 1000])
def test_io_tiles_out_of_range_are_refused_with_the_range(tiles):
    with pytest.raises(PlanError, match=r"ipu\.io_tiles: got .*even number from 32 to 192"):
        Plan().replace({"ipu.io_tiles": tiles})


@pytest.mark.parametrize("tiles", [0, 32, 34, 192])
def test_io_tiles_in_range_are_taken(tiles):
    assert Plan().replace({"ipu.io_tiles": tiles}).ipu.io_tiles == tiles


@pytest.mark.parametrize("share", [0.0, 1.5, -0.1])
def test_a_memory_proportion_is_above_0_and_at_most_1(share):
    with pytest.raises(PlanError, match=r"ipu\.available_memory_proportion"):
        Plan().replace({"ipu.available_memory_proportion": share})


def test_the_table_goes_to_toml_and_back(tmp_path):
    plan = plan_of(**{"ipu.weights": "off-chip", "ipu.stochastic_rounding": True})
    path = tmp_path / "plan.toml"
    path.write_text(plan.to_toml(), encoding="utf-8")
    assert Plan.load(path) == plan
