"""How many replicas there are, under our launcher and under others."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from unified_ipu.errors import PlanError
from unified_ipu.plan import BatchPlan, BatchSettings, MeshAxes, Plan, resolve_mesh


def made(data="auto", stage=1, target="auto", **batch):
    return Plan(target=target, mesh=MeshAxes(data=data, stage=stage), batch=BatchSettings(**batch))


def replicas(plan, **world):
    resolved, warnings = resolve_mesh(plan, **world)
    return resolved.mesh.data, warnings


def test_our_launcher_takes_the_cores_up_to_one_micro_batch_each():
    assert replicas(made(), world_size=None, cores=2) == (2, ())
    assert replicas(made(), world_size=None, cores=64) == (4, ())
    assert replicas(made(global_batch_size=65), world_size=None, cores=64) == (5, ())
    assert replicas(made(global_batch_size=8), world_size=None, cores=64) == (1, ())


def test_our_launcher_takes_gpus_when_the_target_allows():
    for target, expected in (("auto", 3), ("cuda", 3), ("cpu", 2)):
        assert replicas(made(target=target), world_size=None, cores=2, gpus=3)[0] == expected
    assert replicas(made(target="auto"), world_size=None, cores=2, gpus=0)[0] == 2


def test_stages_share_the_cores():
    assert replicas(made(stage=2), world_size=None, cores=4)[0] == 2
    assert replicas(made(stage=3), world_size=None, cores=2)[0] == 1


def test_an_explicit_number_of_replicas_is_kept():
    assert replicas(made(data=3), world_size=None, cores=1) == (3, ())


def test_more_replicas_than_micro_batches_run_with_a_warning():
    number, warnings = replicas(made(data=8), world_size=None, cores=8)
    assert number == 8
    (warning,) = warnings
    assert warning == (
        "4 of 8 replicas are idle: a global batch of 64 is 4 micro-batches of 16; "
        "batch.micro_batch_size = 8 uses all, or set mesh.data = 4"
    )
    assert replicas(made(), world_size=8)[1] == warnings


def test_more_replicas_than_samples_cannot_all_be_used():
    _, warnings = replicas(made(data=9, global_batch_size=4), world_size=9)
    assert warnings[0].endswith("set mesh.data = 4 or less, or a larger batch.global_batch_size")


@given(st.integers(1, 80), st.integers(1, 20), st.integers(1, 20))
def test_the_micro_batch_size_in_the_warning_uses_all_replicas(total, size, number):
    plan = made(data=number, global_batch_size=total, micro_batch_size=size)
    _, warnings = resolve_mesh(plan, world_size=number)
    idle = [r for r in range(number) if not BatchPlan(total, size, number).micro_spans(0, r, total)]
    assert len(warnings) == bool(idle)
    if idle and number <= total:
        every = int(warnings[0].split("batch.micro_batch_size = ")[1].split()[0])
        better = BatchPlan(total, every, number)
        assert all(better.micro_spans(0, r, total) for r in range(number))


def test_under_another_launcher_auto_takes_the_world():
    assert replicas(made(), world_size=4) == (4, ())
    assert replicas(made(stage=2), world_size=4) == (2, ())
    assert replicas(made(), world_size=1) == (1, ())


def test_a_mesh_that_does_not_fit_the_world_is_refused_with_both_numbers():
    with pytest.raises(PlanError) as info:
        resolve_mesh(made(data=4, stage=2), world_size=6)
    text = str(info.value)
    assert "mesh.data: got 4 with mesh.stage 2, which makes 8 processes; the world has 6" in text
    assert "unified-ipu run --set mesh.data=4 SCRIPT" in text


def test_stages_that_do_not_divide_the_world_are_refused():
    with pytest.raises(PlanError, match=r"mesh\.stage: got 4, .* the 6 processes") as info:
        resolve_mesh(made(stage=4), world_size=6)
    assert "one of 1, 2, 3, 6" in str(info.value)


def test_the_global_batch_is_a_number_afterwards():
    resolved, _ = resolve_mesh(
        made(accumulation_per_replica=2, micro_batch_size=8), world_size=None, cores=3
    )
    assert resolved.mesh.data == 3
    assert resolved.batch.global_batch_size == 48
    assert resolve_mesh(resolved, world_size=3) == (resolved, ())


def test_resolving_changes_nothing_else():
    plan = made().replace(seed=5, update={"clip_norm": 1.0})
    resolved, _ = resolve_mesh(plan, world_size=2)
    assert resolved == plan.replace({"mesh.data": 2})


def test_auto_takes_the_most_replicas_that_padding_allows():
    plan = made(global_batch_size=60, micro_batch_size=5, remainder="pad")
    assert replicas(plan, world_size=None, cores=5)[0] == 4
    with pytest.raises(PlanError, match="pad"):
        resolve_mesh(plan, world_size=5)


def test_auto_takes_the_most_replicas_that_a_given_accumulation_allows():
    plan = made(global_batch_size=64, micro_batch_size=16, accumulation_per_replica=2)
    assert replicas(plan, world_size=None, cores=8)[0] == 3
    with pytest.raises(PlanError, match="accumulation_per_replica: got 2"):
        resolve_mesh(plan, world_size=4)


def test_a_batch_that_fits_no_number_of_replicas_is_refused():
    plan = made(global_batch_size=60, micro_batch_size=16, remainder="pad")
    with pytest.raises(PlanError, match="micro_batch_size = 15 or 20"):
        resolve_mesh(plan, world_size=None, cores=1)
