"""Precision: forward in half of it, loss scales; what an adapter cannot do is refused by name."""

from __future__ import annotations

import math
from typing import Any, Dict, List, Tuple

import numpy as np
import pytest

from unified_ipu.adapter import Capability, Lowering, Plan, load_adapter, optim
from unified_ipu.testing import samples
from unified_ipu.testing.half_precision import count_rows, run_rounded, train_reduced
from unified_ipu.testing.on_devices import assert_norms, is_device
from unified_ipu.testing.oracle import Oracle, squared_error
from unified_ipu.testing.ranks import Raised, Rank, Ranks, outcome_of
from unified_ipu.testing.scenarios import Training, batch_plan, halving, make, train
from unified_ipu.testing.subject import Subject
from unified_ipu.testing.suite import AdapterSuite, relative_error, requires, support_of

CHANGED: Tuple[Tuple[str, Any], ...] = (
    ("seed", 7),
    ("deterministic", True),
    ("mesh.data", 2),
    ("mesh.stage", 2),
    ("batch.global_batch_size", 8),
    ("batch.micro_batch_size", 2),
    ("batch.accumulation_per_replica", 4),
    ("batch.updates_per_call", 2),
    ("batch.remainder", "pad"),
    ("update.reduction", "sum"),
    ("update.warmup_updates", 3),
    ("update.base_global_batch_size", 4),
    ("update.clip_norm", 1.0),
    ("precision.compute", "bfloat16"),
    ("precision.compute", "float16"),
    ("precision.loss_scale", "dynamic"),
    ("comms.bucket_bytes", 1024),
    ("comms.compression", "float16"),
    ("pipeline.schedule", "gpipe"),
    ("data.workers", 2),
    ("compile.optimization_level", 0),
)
"""One other value for settings of the plan."""

REDUCED: Tuple[Dict[str, Any], ...] = (
    {"compute": "bfloat16"},
    {"compute": "float16"},
    {"reduce": "compute"},
    {"loss_scale": "dynamic"},
    {"loss_scale": 1024.0},
    {"compute": "bfloat16", "reduce": "compute"},
    {"compute": "float16", "reduce": "compute", "loss_scale": "dynamic"},
)
HALF_TOLERANCE = 0.05  # of all weights; bfloat16 has 8 bits
HALVES: Tuple[Tuple[str, float], ...] = (
    ("bfloat16", 1.0 + 2.0**-9),
    ("float16", 1.0 + 2.0**-12),
)
"""Types, and a float32 number that each rounds to 1."""

TARGETS = ("cpu", "cuda", "ipu", "ipu-emulated")


def plan_paths() -> List[str]:
    """Dotted names of all settings."""
    found = []
    for name, value in Plan().to_dict().items():
        found += [f"{name}.{key}" for key in value] if isinstance(value, dict) else [name]
    return found


def assert_refusals(lowering: Lowering) -> None:
    """Each refusal names a setting and says what to set."""
    for path, reason in lowering.refused:
        assert path in plan_paths(), f"{path!r} is no setting of the plan"
        assert "set " in reason, f"{path}: {reason!r} does not say what to set"


def compile_on(rank: Rank, *, target: str) -> Any:
    """Compile on a target; which one the program has, what is usable, or the refusal."""
    usable = load_adapter(rank.subject.adapter).targets()

    def body() -> str:
        with rank.session({"target": target}) as session:
            model = rank.subject.linear(samples.column(1.0))
            loss = rank.subject.mean_squared_error()
            program = rank.compile(session, model, loss=loss)
            return program.target

    return {"usable": usable, "outcome": outcome_of(body)}


class PrecisionSuite(AdapterSuite):
    """L5.5 and loss scales, required of every adapter; L5.6 where mixed precision is declared."""

    @pytest.mark.parametrize(("path", "value"), CHANGED)
    def test_l5_5_every_setting_is_lowered_or_refused_by_name(
        self, subject: Subject, path: str, value: Any
    ) -> None:
        adapter = load_adapter(subject.adapter)
        changes: Dict[str, Any] = {path: value}
        if path == "batch.accumulation_per_replica":
            changes["batch.global_batch_size"] = None
        lowering = adapter.lower(Plan().replace(changes), "cpu")
        assert (lowering.adapter, lowering.target) == (subject.adapter, "cpu")
        assert_refusals(lowering)
        refused = [name for name, _ in lowering.refused]
        if path == "precision.compute":
            is_usable = support_of(subject.adapter, Capability.MIXED_PRECISION).is_usable
            assert (path in refused) is not is_usable, "support and lower() contradict each other"

    def test_l5_5_the_default_plan_runs_on_the_host(self, subject: Subject) -> None:
        adapter = load_adapter(subject.adapter)
        assert adapter.lower(Plan(), "cpu").refused == ()
        unknown = adapter.lower(Plan(), "abacus")
        assert [path for path, _ in unknown.refused][:1] == ["target"]
        assert_refusals(unknown)

    @pytest.mark.parametrize("precision", REDUCED, ids=str)
    def test_l5_5_another_precision_is_refused_by_name_or_trains(
        self, ranks: Ranks, precision: Dict[str, Any]
    ) -> None:
        oracle = Oracle(samples.canonical_mlp(), squared_error, optim.SGD(lr=0.05))
        x, y = samples.regression(40)
        for start in range(0, 40, 4):
            oracle.update(x[start : start + 4], y[start : start + 4])
        for result in ranks.run(train_reduced, 2, precision=precision):
            if isinstance(result, Raised):
                assert {"PlanError", "CapabilityError"} & set(result.kinds), result
                assert any(f"precision.{name}" in result.message for name in precision)
            else:
                assert relative_error(result, oracle.parameters) < HALF_TOLERANCE
                assert {weight.dtype.name for weight in result.values()} == {"float32"}

    @pytest.mark.case("O-Q4")
    def test_l1_7_an_overflow_on_one_rank_skips_the_update_on_all(self, ranks: Ranks) -> None:
        def batch(x: float) -> Any:
            return (samples.column(x), samples.ones(1))

        steps = [
            [batch(1.0), batch(math.inf if rank == 2 else 1.0), batch(1.0)] for rank in range(3)
        ]
        run = Training(
            make("linear", weight=samples.column(0.0)),
            optim.SGD(lr=0.1, momentum=0.5),
            loss=make("product_loss"),
            steps=steps,
            rows=1,
            plan={"precision": {"loss_scale": "dynamic"}},
            options={"schedule": halving},
        )
        for trained in ranks.run(train, 3, run=run):
            weights = [float(weights["weight"][0, 0]) for weights in trained.trace]
            # Velocities 1 and 1.5, rates 0.1 and 0.05: the skipped update moves neither.
            assert weights == pytest.approx([-0.1, -0.1, -0.175], rel=1e-12)
            assert [record.skipped for record in trained.records] == [0, 1, 0]
            assert [record.loss_scale for record in trained.records] == [65536.0, 32768.0, 32768.0]
            assert (trained.happened, trained.counts["updates_overflowed"]) == (2, 1)

    @pytest.mark.parametrize("size", [1, 2])
    def test_l1_8_a_loss_scale_does_not_show(self, ranks: Ranks, size: int) -> None:
        x, y = samples.regression(16)
        weights, biases = samples.mlp_values()
        found = []
        for loss_scale in ("none", 1024.0):
            run = Training(
                make("mlp", weights=weights, biases=biases, dtype="float32"),
                optim.AdamW(lr=0.01),
                loss=make("mean_squared_error"),
                data=(x.astype(np.float32), y.astype(np.float32)),
                plan=batch_plan(
                    6, 2, precision={"loss_scale": loss_scale}, update={"clip_norm": 0.25}
                ),
            )
            found.append(ranks.run(train, size, run=run)[0])
        plain, scaled = found
        for name, value in plain.weights.items():
            assert value.tobytes() == scaled.weights[name].tobytes(), name
        norms = [[record.grad_norm for record in one.records] for one in found]
        if is_device(ranks):
            assert_norms(ranks, norms[0] + norms[1], norms[0] + norms[1])
            return
        assert norms[0] == norms[1]
        assert all(norm > 0.25 for norm in norms[0]), "clipping must act"

    @requires(Capability.MIXED_PRECISION)
    @pytest.mark.parametrize(("compute", "weight"), HALVES)
    def test_l5_6_forward_rounds_and_weights_do_not(
        self, ranks: Ranks, compute: str, weight: float
    ) -> None:
        for rank, result in enumerate(ranks.run(run_rounded, 2, compute=compute, weight=weight)):
            loss, predicted, record, after = result
            assert loss == 1.0, "evaluation runs in the same type"
            assert (record.loss, record.grad_norm) == (1.0, 2.0)
            assert after == np.float32(weight - 2.0**-15), "a step smaller than that type's"
            if rank == 0:
                assert predicted.dtype == np.float32
                assert predicted.tolist() == [[1.0]] * 4

    @requires(Capability.MIXED_PRECISION)
    @pytest.mark.parametrize("compute", ["bfloat16", "float16"])
    def test_l5_1_weights_are_counted_exactly_in_half_precision(
        self, ranks: Ranks, compute: str
    ) -> None:
        # 3334 is no number of bfloat16, and 3335 none of float16.
        assert ranks.run(count_rows, compute=compute, rows=5001) == [3334.0]

    @pytest.mark.parametrize("target", TARGETS)
    def test_l5_5_a_target_is_used_or_refused_before_training(
        self, ranks: Ranks, target: str
    ) -> None:
        for result in ranks.run(compile_on, 2, target=target):
            outcome = result["outcome"]
            if isinstance(outcome, Raised):
                assert "PlanError" in outcome.kinds
                assert any(path in outcome.message for path in plan_paths()), outcome.message
                assert target != "cpu"
            else:
                assert outcome == target
                assert target in result["usable"]
