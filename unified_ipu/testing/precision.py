"""What an adapter cannot do, precision first: refused by name, before training starts."""

from __future__ import annotations

from typing import Any, Dict, List, Tuple

import numpy as np
import pytest

from unified_ipu.adapter import Capability, Lowering, Plan, load_adapter, optim
from unified_ipu.testing import samples
from unified_ipu.testing.oracle import Oracle, squared_error
from unified_ipu.testing.ranks import Raised, Rank, Ranks, outcome_of
from unified_ipu.testing.scenarios import Training, batch_plan, make, train
from unified_ipu.testing.subject import Subject
from unified_ipu.testing.suite import AdapterSuite, relative_error, support_of

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

REDUCED: Tuple[Tuple[str, Any], ...] = (
    ("precision.compute", "bfloat16"),
    ("precision.compute", "float16"),
    ("precision.reduce", "compute"),
    ("precision.loss_scale", "dynamic"),
    ("precision.loss_scale", 1024.0),
)
HALF_TOLERANCE = 0.05  # of all weights; bfloat16 has 8 bits

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


def train_reduced(rank: Rank, *, path: str, value: Any) -> Any:
    """Train ten updates in that precision; the weights, or the refusal."""
    section, _, name = path.partition(".")
    weights, biases = samples.mlp_values()
    x, y = samples.regression(40)
    run = Training(
        make("mlp", weights=weights, biases=biases, dtype="float32"),
        optim.SGD(lr=0.05),
        loss=make("mean_squared_error"),
        data=(x.astype(np.float32), y.astype(np.float32)),
        plan=batch_plan(4, 2, **{section: {name: value}}),
    )
    return outcome_of(lambda: train(rank, run=run).weights)


def compile_on(rank: Rank, *, target: str) -> Any:
    """Compile on a target; which one the program has, what is usable, or the refusal."""
    usable = load_adapter(rank.subject.adapter).targets()

    def body() -> str:
        with rank.session({"target": target}) as session:
            model = rank.subject.linear(samples.column(1.0))
            loss = rank.subject.mean_squared_error()
            program = session.compile(model.native, loss=loss, adapter=rank.subject.adapter)
            return program.target

    return {"usable": usable, "outcome": outcome_of(body)}


class PrecisionSuite(AdapterSuite):
    """L5.5, required of every adapter: what cannot be done is refused with what to set."""

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

    @pytest.mark.parametrize(("path", "value"), REDUCED)
    def test_l5_5_another_precision_is_refused_by_name_or_trains(
        self, ranks: Ranks, path: str, value: Any
    ) -> None:
        oracle = Oracle(samples.canonical_mlp(), squared_error, optim.SGD(lr=0.05))
        x, y = samples.regression(40)
        for start in range(0, 40, 4):
            oracle.update(x[start : start + 4], y[start : start + 4])
        for result in ranks.run(train_reduced, 2, path=path, value=value):
            if isinstance(result, Raised):
                assert "PlanError" in result.kinds, result
                assert path in result.message
            else:
                assert relative_error(result, oracle.parameters) < HALF_TOLERANCE
                assert {weight.dtype.name for weight in result.values()} == {"float32"}

    @pytest.mark.parametrize("target", TARGETS)
    def test_l5_5_a_target_is_used_or_refused_before_training(
        self, ranks: Ranks, target: str
    ) -> None:
        for result in ranks.run(compile_on, 2, target=target):
            outcome = result["outcome"]
            if isinstance(outcome, Raised):
                assert "PlanError" in outcome.kinds
                assert "target" in outcome.message
                assert target != "cpu"
            else:
                assert outcome == target
                assert target in result["usable"]
