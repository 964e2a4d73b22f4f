"""The explanation of a plan, line by line."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from unified_ipu.errors import ConfigError, PlanError
from unified_ipu.plan import BatchPlan, Plan
from unified_ipu.plan.explain import dealt_rows

EXAMPLE = """\
batch
  global_batch_size         G = 64  samples behind one update
  micro_batch_size          B = 16  most samples computed at once
  replicas                  R = 3   mesh.data
  accumulation_per_replica  A = 2   ceil(G / (B x R))
  updates_per_call          D = 4   updates in one entry
  remainder                 exact
  reduction                 mean

a full update: real rows in each micro-batch
  replica 0       16 16
  replicas 1 to 2  16 0

an epoch of 1000 samples
  updates          16    the last has 40 of 64
  calls            4     the last has 4 of 4 updates
  samples used     1000  each once
  samples dropped  0
  rows padded      0     of weight 0, in the last update

its last update: real rows in each micro-batch
  replicas 0 to 1  16 0
  replica 2        8 0

learning rate
  factor  1  lr_scaling is off

sums of gradients
  one host                         direct                         over shm
  several hosts, one rank on each  direct | ring                  over c10d, by measurement before the first update
  several hosts, more ranks on one hierarchical | direct | ring   over c10d, by measurement before the first update
"""  # noqa: E501  # as it is printed


def compact(text):
    return [" ".join(line.split()) for line in text.splitlines()]


def test_every_derived_number_of_an_example():
    text = Plan().replace({"mesh.data": 3, "batch.updates_per_call": 4}).explain(samples=1000)
    assert compact(text) == compact(EXAMPLE)


@given(st.integers(1, 60), st.integers(1, 9), st.integers(1, 9), st.data())
def test_the_table_of_rows_is_what_the_batch_arithmetic_deals(total, size, number, data):
    rows = data.draw(st.integers(1, total))
    batch = BatchPlan(total, size, number)
    table = {}
    for replicas, runs in dealt_rows(batch, rows):
        for replica in replicas:
            assert replica not in table
            table[replica] = [each for each, count in runs for _ in range(count)]
    expected = {}
    for replica in range(number):
        found = [span.rows for span in batch.micro_spans(0, replica, rows)]
        expected[replica] = found + [0] * (batch.accumulation_per_replica - len(found))
    assert table == expected


def test_columns_are_aligned():
    text = Plan().explain(samples=100)
    block = text.split("\n\n")[0].splitlines()[1:]
    assert len({line.index(" = ") for line in block if " = " in line}) == 1


def test_replicas_that_are_decided_at_launch_are_counted_as_one():
    assert 'R = 1 mesh.data = "auto", decided at launch' in "\n".join(compact(Plan().explain()))
    text = Plan().explain(replicas=4)
    assert "R = 4" in text
    assert "A = 1" in text
    other = Plan().replace({"mesh.data": 3}).explain(replicas=4)
    assert "as asked, instead of mesh.data = 3" in other


def test_an_accumulation_gives_the_global_batch():
    lines = compact(Plan().replace({"batch.accumulation_per_replica": 3}).explain(replicas=2))
    assert "global_batch_size G = 96 B x A x R" in lines
    assert "accumulation_per_replica A = 3 given" in lines


def test_drops_and_pads_are_shown():
    plan = Plan().replace({"mesh.data": 2})
    dropped = compact(plan.replace({"batch.remainder": "drop"}).explain(samples=1000))
    assert "samples used 960 each once" in dropped
    assert "samples dropped 40" in dropped
    padded = compact(plan.replace({"batch.remainder": "pad"}).explain(samples=1000))
    assert "rows padded 24 of weight 0, in the last update" in padded
    assert ("its last update: real rows in each micro-batch, 24 rows of padding on top") in padded


def test_idle_replicas_and_refusals_are_shown():
    lines = compact(Plan().replace({"mesh.data": 8, "comms.compression": "topk"}).explain())
    assert lines[lines.index("warnings") + 1].startswith("4 of 8 replicas are idle")
    refusal = lines[lines.index("refused: not built yet") + 1]
    assert refusal == 'comms.compression: got "topk"; only "none" works today'


def test_the_learning_rate_factor_and_its_origin_are_shown():
    scaled = Plan().replace(
        update={"lr_scaling": "sqrt", "base_global_batch_size": 16, "warmup_updates": 5}
    )
    lines = compact(scaled.explain())
    assert "factor 2 sqrt(64 / 16)" in lines
    assert "warm-up 5 updates until the factor is reached" in lines
    assert "factor 4 64 / 16" in compact(scaled.replace({"update.lr_scaling": "linear"}).explain())


def test_another_target_can_be_asked_for():
    plan = Plan().replace({"ipu.replicas_per_process": 2})
    assert "replicas R = 1 " in " ".join(plan.explain(target="cpu").split())
    assert "replicas R = 2 " in " ".join(plan.explain(target="ipu").split())
    with pytest.raises(PlanError, match='target: got "gpu"'):
        Plan().explain(target="gpu")


def test_huge_numbers_are_explained_at_once():
    plan = Plan().replace({"mesh.data": 1000, "batch.global_batch_size": 10**6})
    text = plan.explain(samples=10**12 + 1)
    assert "replicas 0 to 499    63 x 16" in text
    assert "replicas 500 to 999  62 x 16, 1 x 0" in text
    assert "its last update" in text
    assert len(text) < 3000


def test_numbers_that_make_no_sense_are_refused():
    with pytest.raises(ConfigError, match="samples: got 0"):
        Plan().explain(samples=0)
    with pytest.raises(ConfigError, match="replicas: got 0"):
        Plan().explain(replicas=0)
    with pytest.raises(ConfigError, match="10 samples are fewer"):
        Plan().replace({"batch.remainder": "drop"}).explain(samples=10)


def test_precision_is_shown_where_it_is_not_the_default():
    assert "precision" not in Plan().explain()
    half = {"compute": "float16", "reduce": "compute", "loss_scale": "dynamic"}
    lines = compact(Plan().replace(precision=half).explain())
    assert "compute float16 forward and backward; weights stay in their own type" in lines
    assert "reduce float16 gradients between replicas; sums are made in float32" in lines
    assert any(line.startswith("loss_scale dynamic halved by an overflow") for line in lines)
    fixed = compact(Plan().replace({"precision.loss_scale": 1024.0}).explain())
    assert "loss_scale 1024 never moves; an update that overflows is skipped" in fixed
