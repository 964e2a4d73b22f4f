"""Weights in and out: equal at the start, copied, named, and left in the user's own model."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Dict, List, Sequence, Tuple

import numpy as np
import pytest

from unified_ipu.adapter import Capability, losses, optim
from unified_ipu.data import arrays
from unified_ipu.testing import samples
from unified_ipu.testing.float_types import float_type_of, in_float_type, near
from unified_ipu.testing.names import KERNEL, ROWS, TARGETS, train_renamed, train_turned
from unified_ipu.testing.oracle import Oracle, squared_error
from unified_ipu.testing.ranks import Raised, Rank, Ranks, outcome_of
from unified_ipu.testing.scenarios import (
    Make,
    Training,
    batch_plan,
    compiled,
    make,
    names_of,
    train,
)
from unified_ipu.testing.suite import AdapterSuite, all_raise, relative_error, requires


def mlp(scale: float = 1.0, **dtype: str) -> Any:
    """The small MLP with its weights times ``scale``."""
    weights, biases = samples.mlp_values()
    return make(
        "mlp", weights=[scale * w for w in weights], biases=[scale * b for b in biases], **dtype
    )


def run_of(model: Any, **rest: Any) -> Training:
    """A run of the small MLP."""
    return Training(model, optim.SGD(lr=0.1), loss=make("mean_squared_error"), **rest)


def start_apart(rank: Rank) -> Dict[str, Any]:
    """Compile a model that has other weights on each rank; return them then."""
    with rank.session() as session:
        model = mlp(scale=1.0 + rank.world.rank).on(rank.subject)
        program = compiled(rank, session, model, run_of(mlp()))
        return {
            "program": model.canonical(program.weights()),
            "own": model.canonical(rank.subject.read(model)),
        }


def exchange(rank: Rank) -> Dict[str, Any]:
    """Load weights, change what was given and what was returned, and read them again."""
    values = {name: 2.0 * value for name, value in samples.canonical_mlp().items()}
    with rank.session() as session:
        model = mlp().on(rank.subject)
        program = compiled(rank, session, model, run_of(mlp()))
        given = rank.floats(model.to_native(values))
        program.load_weights(given)
        returned = program.weights()
        for array in [*given.values(), *returned.values()]:
            array[...] = np.nan
        return {
            "expected": rank.floats(values),
            "program": model.canonical(program.weights()),
            "own": model.canonical(rank.subject.read(model)),
        }


def load_part(rank: Rank) -> Dict[str, Any]:
    """Load one tensor only."""
    with rank.session() as session:
        model = mlp().on(rank.subject)
        program = compiled(rank, session, model, run_of(mlp()))
        program.load_weights(rank.floats({model.names["bias.1"]: np.zeros(2)}))
        loaded: Dict[str, Any] = model.canonical(program.weights())
        return loaded


def load_wrong(rank: Rank, *, name: str, shape: Any) -> Any:
    """Load a tensor of that canonical (or unknown) name and that shape."""
    with rank.session() as session:
        model = mlp().on(rank.subject)
        program = compiled(rank, session, model, run_of(mlp()))
        native = model.names.get(name, name)
        return outcome_of(lambda: program.load_weights(rank.floats({native: np.zeros(shape)})))


def fit(rank: Rank, *, dtype: str) -> Dict[str, Any]:
    """Fit, close the session, and read the user's own model."""
    x, y = samples.regression(16)
    with rank.session(batch_plan(8, 3)) as session:
        model = mlp(dtype=dtype).on(rank.subject)
        program = compiled(rank, session, model, run_of(mlp()))
        summary = program.fit(session.loader(arrays(x.astype(dtype), y.astype(dtype))), epochs=2)
        after = program.weights()
    return {
        "own": rank.subject.read(model),
        "program": after,
        "moved": relative_error(model.canonical(after), samples.canonical_mlp()),
        "epochs": len(summary.epochs),
    }


def fit_normalised(rank: Rank, *, values: Sequence[float]) -> Tuple[Any, Any]:
    """Fit one update of one micro-batch a rank; mean and variance before and after."""
    x = samples.column(*values)
    plan = batch_plan(len(values), len(values) // rank.world.world_size)
    with rank.session(plan) as session:
        model = rank.subject.normalised()
        program = rank.compile(
            session,
            model,
            loss=rank.subject.product_loss(),
            optimizer=optim.SGD(lr=0.1),
        )

        def statistics() -> Tuple[float, float]:
            found = model.canonical(program.weights())
            return float(found["mean"].reshape(())), float(found["variance"].reshape(()))

        before = statistics()
        program.fit(session.loader(rank.arrays(x, np.ones_like(x))), epochs=1)
        return before, statistics()


def fit_repeatably(rank: Rank) -> Any:
    """Fit under ``deterministic = true``; the bits of all weights, or the refusal."""
    x, y = samples.regression(16)

    def fit_it() -> Dict[str, bytes]:
        with rank.session(batch_plan(8, 3, deterministic=True)) as session:
            program = compiled(rank, session, mlp().on(rank.subject), run_of(mlp()))
            program.fit(session.loader(rank.arrays(x, y)), epochs=2)
            return {name: value.tobytes() for name, value in program.weights().items()}

    return outcome_of(fit_it)


def fit_batch_statistics(rank: Rank) -> Any:
    """Train three updates of two micro-batches of different values; losses and statistics."""
    x = samples.column(0.0, 2.0, 9.0, 11.0, 1.0, 2.0, 5.0, 3.0, 8.0, 1.0, 4.0, 6.0)
    with rank.session(batch_plan(4, 2)) as session:
        model = rank.subject.normalised()
        program = rank.compile(
            session,
            model,
            loss=rank.subject.mean_squared_error(),
            optimizer=optim.SGD(lr=0.1),
        )
        losses = [program.step(call).loss for call in session.loader(rank.arrays(x, x))]
        return losses, float(model.canonical(program.weights())["weight"].reshape(()))


def notes_of(rank: Rank, *, model: Make) -> List[str]:
    """What compiling a model says in the log."""
    said: List[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("unified_ipu")
    logger.addHandler(handler)
    try:
        with rank.session() as session:
            compiled(rank, session, model.on(rank.subject), run_of(model))
    finally:
        logger.removeHandler(handler)
    return said


def export(rank: Rank, *, folder: str) -> Tuple[Any, Any]:
    """Train, export, and read the file as a model of its own; what both predict on every rank."""
    x, y = samples.regression(6)
    rows = slice(2 * rank.world.rank, 2 * rank.world.rank + 2)
    path = Path(folder) / "model.onnx"
    with rank.session() as session:
        program = compiled(rank, session, mlp(dtype="float32").on(rank.subject), run_of(mlp()))
        program.step((x[rows].astype(np.float32), y[rows].astype(np.float32)))
        program.export_onnx(path)
        exported = session.compile(str(path), loss=losses.mean_squared_error(), adapter="onnx")
        source = arrays(x.astype(np.float32), y.astype(np.float32))
        loader = session.loader(source, train=False)
        return program.predict(loader, gather="all"), exported.predict(loader, gather="all")


class WeightsSuite(AdapterSuite):
    """What users read from a program and put into it, required of every adapter."""

    @pytest.mark.case("O-M5")
    def test_every_rank_starts_with_the_weights_of_the_first(self, ranks: Ranks) -> None:
        expected = in_float_type(samples.canonical_mlp(), float_type_of(ranks))
        for result in ranks.run(start_apart, 3):
            for got in (result["program"], result["own"]):
                assert set(got) == set(expected)
                for name, value in expected.items():
                    assert np.array_equal(got[name], value), name

    def test_weights_go_in_and_come_out_as_copies(self, ranks: Ranks) -> None:
        for result in ranks.run(exchange, 2):
            for name, value in result["expected"].items():
                assert np.array_equal(result["program"][name], value), name
                assert np.array_equal(result["own"][name], value), name

    def test_a_part_of_the_weights_can_be_loaded(self, ranks: Ranks) -> None:
        start = in_float_type(samples.canonical_mlp(), float_type_of(ranks))
        expected = {**start, "bias.1": np.zeros(2)}
        got = ranks.run(load_part)[0]
        assert all(np.array_equal(got[name], value) for name, value in expected.items())

    def test_an_unknown_name_is_refused_with_the_known_ones(self, ranks: Ranks) -> None:
        (message,) = all_raise(ranks, load_wrong, 1, "ConfigError", name="nonsense", shape=(2,))
        assert "'nonsense'" in message
        assert ranks.run(names_of, model=mlp())[0]["weight.0"] in message

    def test_a_wrong_shape_is_refused_with_both_shapes(self, ranks: Ranks) -> None:
        (message,) = all_raise(ranks, load_wrong, 1, "ConfigError", name="bias.0", shape=(5,))
        assert repr(ranks.run(names_of, model=mlp())[0]["bias.0"]) in message
        assert "(4,)" in message
        assert "(5,)" in message

    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    def test_after_fit_the_users_model_holds_the_trained_weights(
        self, ranks: Ranks, dtype: str
    ) -> None:
        results = ranks.run(fit, 2, dtype=dtype)
        for result in results:
            assert result["epochs"] == 2
            for name, value in result["program"].items():
                assert value.dtype == np.dtype(dtype)
                assert np.array_equal(result["own"][name], value), name
                assert value.tobytes() == results[0]["program"][name].tobytes(), name
        assert results[0]["moved"] > 1e-3

    @pytest.mark.parametrize("size", [1, 2])
    def test_deterministic_runs_repeat_bit_for_bit_or_are_refused(
        self, ranks: Ranks, size: int
    ) -> None:
        first, second = (ranks.run(fit_repeatably, size) for _ in range(2))
        for once, again in zip(first, second):
            if isinstance(once, Raised):
                assert "PlanError" in once.kinds
                assert "deterministic" in once.message
            else:
                assert again == once

    def test_only_what_is_named_is_trained(self, ranks: Ranks) -> None:
        x, y = samples.regression(8)
        bias = ranks.run(names_of, model=mlp())[0]["bias.1"]
        start = in_float_type(samples.canonical_mlp(), float_type_of(ranks))
        for trainable in ([bias], _Named(bias)):
            run = run_of(
                mlp(), data=(x, y), plan=batch_plan(4, 2), options={"trainable": trainable}
            )
            for trained in ranks.run(train, 2, run=run):
                moved = [n for n, v in start.items() if not np.array_equal(trained.weights[n], v)]
                assert moved == ["bias.1"]

    def test_l5_3_other_names_and_axes_change_nothing(self, ranks: Ranks) -> None:
        weights, biases = samples.mlp_values()
        x, y = samples.regression(12)
        start = {f"weight.{k}": value for k, value in enumerate(weights)}
        start.update({f"bias.{k}": value for k, value in enumerate(biases)})
        expected = Oracle(start, squared_error, optim.SGD(lr=0.1, momentum=0.5))
        for first in range(0, 12, 4):
            expected.update(x[first : first + 4], y[first : first + 4])
        for size in (1, 2):
            for result in ranks.run(train_renamed, size):
                assert list(result["program"]) == sorted(f"kit/{name}" for name in start)
                assert relative_error(result["own"], expected.parameters) < 1e-12
                for name, value in expected.parameters.items():
                    turned = "weight" in name and name not in result["transposed"]
                    found = result["program"][f"kit/{name}"]
                    np.testing.assert_allclose(found, value.T if turned else value, rtol=1e-10)

    def test_l5_2_ranks_may_keep_a_tensor_with_other_axes(self, ranks: Ranks) -> None:
        # S is the sum of targets * (x @ kernel), so its gradient is the sum of x' * targets.
        gradient = ROWS[:2].T @ TARGETS[:2] + (ROWS[2:].T @ TARGETS[2:]).T
        first = np.array(KERNEL) - 0.5 * gradient / 4.0
        second = first - 0.5 * 1.5 * gradient / 4.0
        for result in ranks.run(train_turned, 2):
            assert result["names"] == ["turned"]
            for found, wanted in zip([*result["seen"], result["own"]], (first, second, second)):
                np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)

    @requires(Capability.ONNX_EXPORT)
    def test_an_exported_model_computes_what_the_program_does(
        self, ranks: Ranks, tmp_path: Any
    ) -> None:
        for own, exported in ranks.run(export, 2, folder=str(tmp_path)):
            assert own.shape == (6, 2)
            np.testing.assert_allclose(exported, own, rtol=1e-5, atol=1e-6)

    @requires(Capability.BUFFERS)
    def test_l1_12_batch_statistics_are_of_a_micro_batch_in_every_world(self, ranks: Ranks) -> None:
        ((losses, weight),) = ranks.run(fit_batch_statistics, 1)
        # Each micro-batch is normalised by itself, so both are -1 and 1 at first, nearly:
        # 0 and 2, 9 and 11 as targets give ((-1 - 0)^2 + (1 - 2)^2 + 10^2 + 10^2) / 4.
        assert losses[0] == pytest.approx(50.5, rel=1e-2)
        for theirs, their_weight in ranks.run(fit_batch_statistics, 2):
            assert theirs == near(ranks, losses, rel=1e-12)
            assert their_weight == near(ranks, weight, rel=1e-12)

    @requires(Capability.BUFFERS)
    def test_l1_12_compile_says_which_layers_see_the_micro_batch(self, ranks: Ranks) -> None:
        assert any(
            "micro-batch" in note for note in ranks.run(notes_of, model=make("normalised"))[0]
        )
        assert ranks.run(notes_of, model=mlp())[0] == []

    @requires(Capability.BUFFERS)
    def test_l5_4_running_statistics_follow_a_known_rule_and_are_shared(self, ranks: Ranks) -> None:
        # Two rows each: mean 1 and variance 1 (biased) or 2; mean 6 and variance 4 or 8.
        first, second = (0.0, 2.0), (4.0, 8.0)
        ((start, after_first),) = ranks.run(fit_normalised, 1, values=first)
        ((_, after_second),) = ranks.run(fit_normalised, 1, values=second)
        momentum = (after_first[0] - start[0]) / (1.0 - start[0])
        assert 0.0 < momentum <= 1.0
        assert after_second[0] - start[0] == near(ranks, momentum * (6.0 - start[0]), rel=1e-12)
        implied = [
            start[1] + (after[1] - start[1]) / momentum for after in (after_first, after_second)
        ]
        rules = [near(ranks, [1.0, 4.0], rel=1e-9), near(ranks, [2.0, 8.0], rel=1e-9)]
        assert implied in rules, "neither the biased nor the unbiased variance"
        shared = np.mean([after_first, after_second], axis=0)
        for _, after in ranks.run(fit_normalised, 2, values=[*first, *second]):
            assert after == near(ranks, tuple(shared), rel=1e-12)


class _Named:
    """A predicate over names that can be pickled."""

    def __init__(self, *names: str) -> None:
        self._names: List[str] = list(names)

    def __call__(self, name: str) -> bool:
        return name in self._names
