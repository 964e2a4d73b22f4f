"""The state law on an adapter: what is saved, what comes back, and how a run goes on from it."""

from __future__ import annotations

from typing import Any, Dict, List, Optional

import numpy as np
import pytest

from unified_ipu.adapter import Capability, optim
from unified_ipu.session import Program
from unified_ipu.testing import samples
from unified_ipu.testing.on_devices import certified
from unified_ipu.testing.ranks import Rank, Ranks, outcome_of
from unified_ipu.testing.scenarios import Training, batch_plan, compiled, make
from unified_ipu.testing.suite import AdapterSuite, all_raise, holds, relative_error, requires

SGD = optim.SGD(lr=0.1, momentum=0.9, nesterov=True)
ADAM = optim.Adam(lr=0.01, weight_decay=0.01)
ADAMW = optim.AdamW(lr=0.01)


def mlp_run(optimizer: Any, *, dtype: Optional[str] = None, **plan: Any) -> Training:
    """Three epochs of four updates, the last one short, in a keyed order."""
    weights, biases = samples.mlp_values()
    x, y = samples.regression(14)
    return Training(
        make("mlp", weights=weights, biases=biases, **({} if dtype is None else {"dtype": dtype})),
        optimizer,
        loss=make("mean_squared_error"),
        data=(x, y) if dtype is None else (x.astype(dtype), y.astype(dtype)),
        epochs=3,
        plan=batch_plan(4, 2, data={"shuffle": True}, **plan),
    )


def fit_part(
    rank: Rank,
    *,
    run: Training,
    folder: Optional[str] = None,
    until: Optional[int] = None,
    native: bool = False,
) -> Dict[str, Any]:
    """Go on with a run until it has made so many updates; what it came to."""
    with rank.session(run.plan) as session:
        model = run.model.on(rank.subject)
        options = dict(run.options)
        if native:
            rates = dict.fromkeys(model.names, 0.1)
            options["optimizer"] = rank.subject.native_optimizer(
                model, optim.SGD(lr=0.1, momentum=0.9), rates
            )
            options["schedule"] = rank.subject.native_schedule(options["optimizer"], 0.5)
        program = compiled(rank, session, model, run, options)
        summary = program.fit(
            session.loader(rank.arrays(*(run.data or ()))),
            epochs=run.epochs,
            checkpoint=folder,
            resume="auto" if folder else None,
            max_updates=until,
        )
        return {
            "weights": model.canonical(program.weights()),
            "counters": (program.update, program.updates_happened),
            "losses": [epoch.loss for epoch in summary.epochs],
            "certificates": [str(epoch.certificate) for epoch in summary.epochs],
        }


def state_of(program: Program) -> Dict[str, Any]:
    """Everything of a program that a checkpoint holds."""
    executor = program.executor
    names = [spec.name for spec in executor.tensors()]
    return {
        "tensors": {name: array.tobytes() for name, array in executor.read(names).items()},
        "scalars": executor.scalars(),
        "counters": (program.update, program.updates_happened),
    }


def save_and_return(rank: Rank, *, run: Training, folder: str, updates: int) -> List[Any]:
    """States before saving, after more updates, and after restoring."""
    rows = slice(2 * rank.world.rank, 2 * rank.world.rank + 2)
    batch = rank.floats(tuple(array[rows] for array in run.data or ()))
    with rank.session(run.plan) as session:
        program = compiled(rank, session, run.model.on(rank.subject), run)
        for _ in range(updates):
            program.step(batch)
        before = state_of(program)
        program.save(folder)
        assert state_of(program) == before
        for _ in range(2):
            program.step(batch)
        between = state_of(program)
        program.restore(folder)
        return [before, between, state_of(program)]


def restore_into(rank: Rank, *, run: Training, other: Training, folder: str) -> Any:
    """Save one run, restore it into another; the error, and whether anything changed."""
    batch = rank.floats(tuple(array[:2] for array in run.data or ()))
    with rank.session(run.plan) as session:
        program = compiled(rank, session, run.model.on(rank.subject), run)
        program.step(batch)
        program.save(folder)
        program = compiled(rank, session, other.model.on(rank.subject), other)
        before = state_of(program)
        outcome = outcome_of(lambda: program.restore(folder))
        assert state_of(program) == before
        return outcome


def restore_tied(rank: Rank, *, folder: str) -> Dict[str, Any]:
    """Save a tied parameter, restore it into a fresh model and train that."""
    run = Training(
        make("tied", weight=1.0), optim.SGD(lr=0.1, momentum=0.9), make("mean_squared_error")
    )
    batch = rank.floats((samples.column(2.0), samples.column(1.0)))
    weights = []
    for is_restored in (False, True):
        with rank.session() as session:
            model = run.model.on(rank.subject)
            program = compiled(rank, session, model, run)
            if is_restored:
                program.restore(folder)
            else:
                program.step(batch)
                program.save(folder)
            program.step(batch)
            weights.append(model.canonical(program.weights()))
    return {"whole": weights[0], "again": weights[1]}


class StateLawSuite(AdapterSuite):
    """L3, required of every adapter."""

    @pytest.mark.parametrize(
        ("optimizer", "size"),
        [(SGD, 2), (ADAM, 1), (ADAM, 2), (ADAMW, 2)],
        ids=["sgd-2", "adam-1", "adam-2", "adamw-2"],
    )
    def test_l3_5_a_run_in_parts_equals_an_unbroken_one_bit_for_bit(
        self, ranks: Ranks, tmp_path: Any, optimizer: Any, size: int
    ) -> None:
        run = mlp_run(optimizer, dtype="float32")
        whole = ranks.run(fit_part, size, run=run)
        parts: List[Any] = []
        for until in (1, 6, None):
            parts = ranks.run(fit_part, size, run=run, folder=str(tmp_path), until=until)
        for part, expected in zip(parts, whole):
            assert part["counters"] == expected["counters"] == (12, 12)
            assert part["losses"] == expected["losses"][1:]
            assert part["certificates"] == [certified(ranks, 14, 4)] * 2
            for name, value in expected["weights"].items():
                assert part["weights"][name].tobytes() == value.tobytes(), name

    @pytest.mark.parametrize("optimizer", [SGD, ADAMW], ids=["sgd", "adamw"])
    def test_l3_6_a_run_that_changes_its_world_is_the_same_to_rounding(
        self, ranks: Ranks, tmp_path: Any, optimizer: Any
    ) -> None:
        run = mlp_run(optimizer)
        (whole,) = ranks.run(fit_part, 1, run=run)
        parts: List[Any] = []
        for size, until in ((2, 3), (1, 6), (2, None)):
            parts = ranks.run(fit_part, size, run=run, folder=str(tmp_path), until=until)
        for part in parts:
            assert part["counters"] == (12, 12)
            assert part["certificates"] == [certified(ranks, 14, 4)] * 2
            assert relative_error(part["weights"], whole["weights"]) < self.tolerance_of(ranks)

    @holds("L3.7")
    @pytest.mark.parametrize(
        ("optimizer", "updates"),
        [(SGD, 2), (ADAM, 0), (ADAM, 2), (ADAMW, 2)],
        ids=["sgd-2", "adam-0", "adam-2", "adamw-2"],
    )
    def test_l3_1_weights_slots_and_counters_come_back(
        self, ranks: Ranks, tmp_path: Any, optimizer: Any, updates: int
    ) -> None:
        arguments = {"run": mlp_run(optimizer), "folder": str(tmp_path), "updates": updates}
        for before, between, after in ranks.run(save_and_return, 2, **arguments):
            assert before["counters"] == (updates, updates)
            assert between != before
            assert after == before, "also slots that did not exist then are gone"

    @holds("L3.7")
    def test_another_optimizer_is_refused_before_anything_changes(
        self, ranks: Ranks, tmp_path: Any
    ) -> None:
        for message in all_raise(
            ranks,
            restore_into,
            2,
            "CheckpointError",
            run=mlp_run(optim.Adam()),
            other=mlp_run(optim.SGD(lr=0.1)),
            folder=str(tmp_path),
        ):
            assert "Adam" in message
            assert "SGD" in message

    @holds("L3.7")
    def test_another_model_is_refused_with_the_tensors_that_differ(
        self, ranks: Ranks, tmp_path: Any
    ) -> None:
        run = mlp_run(optim.Adam())
        weights, biases = samples.mlp_values((3, 5, 2))
        other = mlp_run(optim.Adam())
        other = Training(
            make("mlp", weights=weights, biases=biases), optim.Adam(), other.loss, plan=other.plan
        )
        for message in all_raise(
            ranks, restore_into, 2, "CheckpointError", run=run, other=other, folder=str(tmp_path)
        ):
            assert "[5]" in message
            assert "[4]" in message

    @requires(Capability.NATIVE_OPTIMIZERS, Capability.NATIVE_SCHEDULES)
    def test_l3_5_a_native_optimizer_and_schedule_go_on_bit_for_bit(
        self, ranks: Ranks, tmp_path: Any
    ) -> None:
        run = mlp_run(None)
        whole = ranks.run(fit_part, 2, run=run, native=True)
        parts: List[Any] = []
        for until in (5, None):
            parts = ranks.run(fit_part, 2, run=run, folder=str(tmp_path), until=until, native=True)
        for part, expected in zip(parts, whole):
            for name, value in expected["weights"].items():
                assert part["weights"][name].tobytes() == value.tobytes(), name

    @requires(Capability.RANDOM_LAYERS)
    def test_l3_6_masks_go_on_in_another_world(self, ranks: Ranks, tmp_path: Any) -> None:
        rows = 12
        run = Training(
            make("dropout_probe", size=16, rate=0.5),
            optim.SGD(lr=1.0),
            loss=make("product_loss"),
            data=(np.array([[2.0**row] * 16 for row in range(rows)]), samples.ones(rows)),
            plan=batch_plan(4, 1, update={"reduction": "sum"}),
        )
        (whole,) = ranks.run(fit_part, 1, run=run)
        ranks.run(fit_part, 1, run=run, folder=str(tmp_path), until=1)
        for part in ranks.run(fit_part, 2, run=run, folder=str(tmp_path)):
            # Each weight is a sum of powers of two, one bit a mask: exact in any order.
            assert np.array_equal(part["weights"]["weight"], whole["weights"]["weight"])

    @requires(Capability.BUFFERS)
    @pytest.mark.parametrize("size", [1, 2])
    def test_l3_1_running_statistics_come_back_to_each_rank(
        self, ranks: Ranks, tmp_path: Any, size: int
    ) -> None:
        run = Training(
            make("normalised"),
            optim.SGD(lr=0.1),
            loss=make("mean_squared_error"),
            data=(samples.column(1.0, 2.0, 4.0, 9.0), samples.column(0.0, 1.0, 0.0, 1.0)),
            epochs=2,
            plan=batch_plan(4, 2),
        )
        whole = ranks.run(fit_part, size, run=run)[0]
        ranks.run(fit_part, size, run=run, folder=str(tmp_path), until=1)
        assert len(list(tmp_path.glob("step-*/ranks.safetensors"))) == size - 1
        for part in ranks.run(fit_part, size, run=run, folder=str(tmp_path)):
            assert float(part["weights"]["mean"][0]) != 0.0
            for name, value in whole["weights"].items():
                assert part["weights"][name].tobytes() == value.tobytes(), name

    @requires(Capability.BUFFERS)
    def test_l3_7_saving_changes_nothing_and_each_rank_gets_its_own_buffers_back(
        self, ranks: Ranks, tmp_path: Any
    ) -> None:
        run = Training(
            make("normalised"),
            optim.SGD(lr=0.1),
            loss=make("mean_squared_error"),
            data=(samples.column(1.0, 2.0, 4.0, 9.0), samples.column(0.0, 1.0, 0.0, 1.0)),
            plan=batch_plan(4, 2),
        )
        arguments = {"run": run, "folder": str(tmp_path), "updates": 2}
        results = ranks.run(save_and_return, 2, **arguments)
        for before, between, after in results:
            assert between["tensors"] != before["tensors"]
            assert after == before
        assert results[0][0]["tensors"] != results[1][0]["tensors"]

    @requires(Capability.SHARED_PARAMETERS)
    def test_l3_1_a_tied_parameter_stays_tied(self, ranks: Ranks, tmp_path: Any) -> None:
        (result,) = ranks.run(restore_tied, 1, folder=str(tmp_path))
        assert result["again"] == result["whole"]
        assert result["again"]["weight"] == result["again"]["twin"]
