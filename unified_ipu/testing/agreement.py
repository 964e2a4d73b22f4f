"""The agreement law on an adapter: ranks that part ways, and bits that must be the same."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any, Callable, Dict, List, Optional

import numpy as np
import pytest

from unified_ipu.adapter import Capability, Loss, optim
from unified_ipu.testing import samples
from unified_ipu.testing.on_devices import is_device
from unified_ipu.testing.ranks import Raised, Rank, Ranks, outcome_of
from unified_ipu.testing.scenarios import Training, batch_plan, compiled, make, train
from unified_ipu.testing.suite import AdapterSuite, all_raise, requires


def build_differently(rank: Rank) -> Any:
    """Compile a model that has another shape on each rank."""

    def compile_it() -> None:
        with rank.session() as session:
            weight = np.zeros((3 + rank.world.rank, 1))
            run = Training(make("linear", weight=weight), optim.SGD(lr=0.1))
            run = replace(run, loss=make("mean_squared_error"))
            compiled(rank, session, run.model.on(rank.subject), run)

    return outcome_of(compile_it)


def optimize_differently(rank: Rank, *, optimizers: List[Any]) -> Any:
    """Compile the same model with another optimizer on each rank."""

    def compile_it() -> None:
        with rank.session() as session:
            optimizer = optimizers[rank.world.rank]
            model = make("linear", weight=samples.column(1.0))
            run = Training(model, optimizer, loss=make("mean_squared_error"))
            compiled(rank, session, run.model.on(rank.subject), run)

    return outcome_of(compile_it)


def optimize_natively_on_one(rank: Rank) -> Any:
    """Compile with ``ui.optim.SGD`` on rank 0, the framework's own on the others."""

    def compile_it() -> None:
        with rank.session() as session:
            run = Training(make("linear", weight=samples.column(1.0)), loss=make("product_loss"))
            model, settings = run.model.on(rank.subject), optim.SGD(lr=0.5)
            optimizer: Any = settings
            if rank.world.rank > 0:
                optimizer = rank.subject.native_optimizer(model, settings, {"weight": 0.5})
            compiled(rank, session, model, run, {"optimizer": optimizer})

    return outcome_of(compile_it)


def change_metrics(rank: Rank) -> Any:
    """Return another metric from the second update on, on the last rank only."""
    objective = rank.subject.token_objective()
    is_changed = [False]
    is_last = rank.world.rank == rank.world.world_size - 1

    def changing(model: Any, batch: Any) -> Loss:
        loss: Loss = objective(model, batch)
        if is_changed[0] and is_last:
            return replace(loss, metrics={"other": loss.metrics["x"]})
        return loss

    with rank.session() as session:
        model = rank.subject.linear(samples.column(1.0))
        program = rank.compile(
            session,
            model,
            objective=changing,
            optimizer=optim.SGD(lr=1.0),
        )
        program.step(rank.floats({"x": samples.ones(1, 3), "mask": samples.ones(1, 3)}))
        is_changed[0] = True
        # Of another shape: a framework that traces objectives looks at this one anew.
        batch = rank.floats({"x": samples.ones(2, 3), "mask": samples.ones(2, 3)})
        return outcome_of(lambda: program.step(batch))


def part_ways(rank: Rank, *, how: str) -> Any:
    """Take a step together; then rank 1 does something else than the others."""
    batch = rank.floats((samples.ones(1), samples.ones(1)))

    def body() -> None:
        with rank.session(batch_plan(6, 1)) as session:
            model = rank.subject.linear(samples.column(1.0))
            program = rank.compile(
                session,
                model,
                loss=rank.subject.product_loss(),
                optimizer=optim.SGD(lr=1.0),
            )
            held = session.loader(rank.arrays(samples.ones(4), samples.ones(4)), train=False)
            program.step(batch)
            ways: Dict[str, Callable[[], Any]] = {
                "raise": _raise,
                "exit": lambda: sys.exit(3),
                "evaluate": lambda: program.evaluate(held),
            }
            if rank.world.rank == 1:
                ways[how]()
            else:
                program.step(batch)

    try:
        return outcome_of(body)
    except SystemExit as error:
        return Raised(["SystemExit"], str(error))


def _raise() -> None:
    raise KeyError("sample 17 is missing")


def bits_of_training(rank: Rank, *, run: Training) -> List[Any]:
    """Train; after each update the bits of all weights, and what the record says."""
    trained = train(rank, run=run)
    return [
        ({name: value.tobytes() for name, value in weights.items()}, said)
        for weights, said in zip(
            trained.trace,
            # As text, which is exact: no number is equal to itself if it is none.
            [
                (one.loss, one.weight, repr(one.grad_norm), one.lr, one.samples)
                for one in trained.records
            ],
        )
    ]


def odd_arrays(kind: str, dtype: str) -> Any:
    """``[[1, 2], [3, 4], [5, 6]]`` in an unusual place or order in memory."""
    plain = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], dtype)
    if kind == "unaligned":
        memory = np.zeros(plain.nbytes + 1, np.uint8)
        odd = memory[1:].view(dtype).reshape(3, 2)
        odd[...] = plain
    elif kind == "strided":
        wide = np.full((6, 4), np.nan, dtype)
        odd = wide[::2, ::2]
        odd[...] = plain
    elif kind == "reversed":
        odd = np.array(plain[::-1, ::-1])[::-1, ::-1]
    elif kind == "column-major":
        odd = np.asfortranarray(plain)
    elif kind == "read-only":
        odd = np.array(plain)
        odd.flags.writeable = False
    elif kind == "broadcast":
        odd = np.broadcast_to(plain[:1], (3, 2))
    else:
        odd = plain.astype(plain.dtype.newbyteorder())
    return odd


def step_on_odd_arrays(rank: Rank, *, kind: str) -> Any:
    """Two updates on odd arrays, made here so that they stay odd; the weights, and the input."""
    x = odd_arrays(kind, rank.dtype)
    before = np.array(x)

    def body() -> List[float]:
        with rank.session(rows=3) as session:
            model = rank.subject.linear(samples.column(0.0, 0.0))
            program = rank.compile(
                session,
                model,
                loss=rank.subject.product_loss(),
                optimizer=optim.SGD(lr=1.0),
            )
            for _ in range(2):
                program.step((x, rank.floats(samples.ones(3))))
            weights = model.canonical(program.weights())["weight"]
            return [float(value) for value in weights[:, 0]]

    outcome = outcome_of(body)
    assert np.array_equal(x, before), "the user's array was changed"
    return outcome


def step_on_type(rank: Rank, *, dtype: str) -> Any:
    """A step on ``[[1, 2], [3, 4]]`` of that type; the weights, or the error and the weights."""
    x = np.array([[1, 2], [3, 4]]).astype(dtype)
    with rank.session(rows=2) as session:
        model = rank.subject.linear(samples.column(0.0, 0.0))
        program = rank.compile(
            session,
            model,
            loss=rank.subject.product_loss(),
            optimizer=optim.SGD(lr=1.0),
        )
        outcome = outcome_of(lambda: program.step((x, rank.floats(samples.ones(2)))))
        weights = model.canonical(program.weights())["weight"][:, 0].tolist()
        return {"is_refused": isinstance(outcome, Raised), "weights": weights}


ODD = ["unaligned", "strided", "reversed", "column-major", "read-only", "broadcast", "byte-order"]


TYPES = ["float16", "float32", "int8", "uint16", "int64", "bool", "object", "U3", "S3"]


class AgreementSuite(AdapterSuite):
    """L4, required of every adapter: the same bits, or the same error, on every rank."""

    @pytest.mark.parametrize("size", [2, 3])
    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    def test_l4_8_every_rank_has_the_same_bits_after_every_update(
        self, ranks: Ranks, dtype: str, size: int
    ) -> None:
        weights, biases = samples.mlp_values()
        x, y = samples.regression(22)
        total = 6 if is_device(ranks) else 5  # ranks share static batches evenly
        run = Training(
            make("mlp", weights=weights, biases=biases, dtype=dtype),
            optim.Adam(lr=0.05),
            loss=make("mean_squared_error"),
            data=(x.astype(dtype), y.astype(dtype)),
            plan=batch_plan(total, 2, update={"clip_norm": 0.1}),
        )
        results = ranks.run(bits_of_training, size, run=run)
        assert len(results[0]) == -(-22 // total)
        for theirs in results[1:]:
            assert theirs == results[0]

    def test_l4_2_ranks_that_build_other_models_are_told_which(self, ranks: Ranks) -> None:
        for message in all_raise(ranks, build_differently, 2, "ContractError"):
            assert "rank 1 built another model than rank 0" in message

    @pytest.mark.parametrize(
        "optimizers",
        [
            [optim.SGD(lr=0.5), optim.SGD(lr=0.25)],
            [optim.Adam(lr=0.5), optim.AdamW(lr=0.5)],
        ],
        ids=["rate", "kind"],
    )
    def test_l4_2_ranks_that_optimize_differently_are_told_how(
        self, ranks: Ranks, optimizers: List[Any]
    ) -> None:
        for message in all_raise(
            ranks, optimize_differently, 2, "ConfigError", optimizers=optimizers
        ):
            for rank, optimizer in enumerate(optimizers):
                assert f"rank {rank}" in message
                assert repr(optimizer) in message

    @requires(Capability.NATIVE_OPTIMIZERS)
    def test_l4_2_a_native_optimizer_on_one_rank_only_is_an_error_on_all(
        self, ranks: Ranks
    ) -> None:
        for message in all_raise(ranks, optimize_natively_on_one, 2, "ConfigError"):
            assert "SGD(lr=0.5" in message
            assert "SGD of its framework" in message

    @pytest.mark.parametrize("size", [1, 2])
    def test_l4_2_metrics_that_change_their_names_end_all_ranks(
        self, ranks: Ranks, size: int
    ) -> None:
        for message in all_raise(ranks, change_metrics, size, "ConfigError"):
            assert "update 1" in message
            assert "['x']" in message

    def test_l4_2_a_rank_that_does_something_else_is_an_error_on_all(self, ranks: Ranks) -> None:
        for message in all_raise(ranks, part_ways, 2, "CollectiveError", how="evaluate"):
            assert "rank 0" in message
            assert "rank 1" in message

    @pytest.mark.parametrize(
        ("how", "kind", "words"),
        [("raise", "KeyError", "sample 17 is missing"), ("exit", "SystemExit", "SystemExit: 3")],
    )
    def test_l4_4_a_rank_that_ends_alone_ends_the_others_and_is_named(
        self, ranks: Ranks, how: str, kind: str, words: str
    ) -> None:
        results: List[Optional[Raised]] = ranks.run(part_ways, 3, how=how)
        for number, result in enumerate(results):
            assert isinstance(result, Raised), f"rank {number} went on"
            if number == 1:
                assert result.kinds[0] == kind
            else:
                assert "PeerLostError" in result.kinds
                assert "rank 1" in result.message
                assert words in result.message

    @pytest.mark.parametrize("kind", ODD)
    def test_l4_6_an_array_that_lies_oddly_is_read_right_or_refused(
        self, ranks: Ranks, kind: str
    ) -> None:
        # The gradient is the mean of the rows: [3, 4], for the first row in all places [1, 2].
        expected = [-2.0, -4.0] if kind == "broadcast" else [-6.0, -8.0]
        for size in (1, 2):
            for result in ranks.run(step_on_odd_arrays, size, kind=kind):
                if kind == "byte-order" and isinstance(result, Raised):
                    assert "UnifiedIpuError" in result.kinds, result.message
                    assert "byte" in result.message
                else:
                    assert result == expected

    @pytest.mark.parametrize("dtype", TYPES)
    def test_l4_6_an_array_of_another_type_is_read_right_or_refused(
        self, ranks: Ranks, dtype: str
    ) -> None:
        expected = [-1.0, -1.0] if dtype == "bool" else [-2.0, -3.0]
        for result in ranks.run(step_on_type, dtype=dtype):
            assert result["weights"] == ([0.0, 0.0] if result["is_refused"] else expected)
