from __future__ import annotations

import json
from typing import Any, List

import numpy as np
import pytest

import unified_ipu as ui
from tests.unified_ipu.session.small_runs import X, Y, run as train
from unified_ipu_numpy import Differentiable, MeanSquaredError, Mlp


def compiled(session: ui.Session, lr: float = 0.1) -> ui.Program:
    return session.compile(
        Mlp((3, 1)), loss=MeanSquaredError("mean"), optimizer=ui.optim.SGD(lr=lr)
    )


def relative_error(outputs: Any, targets: Any) -> Any:
    return float(np.abs(outputs - targets).sum()), float(len(targets))


class Journal(ui.Callback):
    """Writes down which method was called with what."""

    def __init__(self) -> None:
        self.lines: List[str] = []

    def on_fit_start(self, context: ui.FitContext) -> None:
        self.lines.append(f"fit of {context.epochs} epochs, {context.samples_per_epoch} samples")

    def on_epoch_start(self, context: ui.FitContext, epoch: int) -> None:
        self.lines.append(f"epoch {epoch}")

    def on_call_end(self, context: ui.FitContext, record: ui.Record) -> None:
        self.lines.append(f"update {record.update}: {record.samples}")

    def on_epoch_end(self, context: ui.FitContext, summary: ui.EpochSummary) -> None:
        self.lines.append(f"end {summary.epoch}: {summary.samples}, {summary.certificate}")

    def on_fit_end(self, context: ui.FitContext, summary: Any) -> None:
        self.lines.append("error" if summary is None else f"done: {summary.updates}")


def test_callbacks_run_at_call_boundaries_on_all_ranks(capsys):
    def body(session: ui.Session) -> Any:
        journal = Journal()
        compiled(session).fit(session.loader((X[:10], Y[:10])), epochs=2, callbacks=[journal])
        return journal.lines

    first, second = train(2, body)
    assert first == second
    assert first == [
        "fit of 2 epochs, 10 samples",
        *["epoch 0", "update 0: 4", "update 1: 4", "update 2: 2"],
        "end 0: 10, 10 of 10 samples, each once",
        *["epoch 1", "update 3: 4", "update 4: 4", "update 5: 2"],
        "end 1: 10, 10 of 10 samples, each once",
        "done: 6",
    ]
    printed = capsys.readouterr().out
    assert printed.count("epoch 2/2: loss") == 1
    assert printed.count("20; in each epoch 10 of 10 samples, each once") == 1


def test_the_summary_is_the_same_on_all_ranks_and_its_shares_add_up():
    def body(session: ui.Session) -> Any:
        test = session.loader((X, Y), train=False)
        return compiled(session).fit(
            session.loader((X, Y)), epochs=3, validation=test, metrics={"error": relative_error}
        )

    summaries = train(3, body)
    for summary in summaries:
        assert (summary.samples, summary.updates, summary.skipped) == (66, 18, 0)
        assert (summary.dropped, summary.padded) == (0, 0)
        assert sum(summary.shares().values()) == pytest.approx(1.0)
        assert sum(summary.phases.values()) == summary.seconds > 0.0
        assert set(summary.validation) == {"loss", "error"}
        assert summary.validation == summaries[0].validation
        assert len({epoch.loss for epoch in summary.epochs}) == 3
        assert summary.epochs[2].loss < summary.epochs[0].loss


@pytest.mark.parametrize(
    ("remainder", "samples", "dropped", "padded"), [("drop", 40, 4, 0), ("pad", 44, 0, 4)]
)
def test_what_is_dropped_or_padded_is_counted_once_in_the_summary(
    remainder, samples, dropped, padded
):
    def body(session: ui.Session) -> Any:
        program = compiled(session)
        return program.fit(session.loader((X, Y)), epochs=2)

    counts = {"samples_dropped": dropped, "samples_padded": padded}
    for summary in train(2, body, batch__remainder=remainder):
        assert (summary.samples, summary.dropped, summary.padded) == (samples, dropped, padded)
        assert {name: summary.counts.get(name, 0) for name in counts} == counts
        assert f"{dropped} dropped, {padded} padded" in str(summary)


@pytest.mark.case("O-D2")
@pytest.mark.parametrize(
    ("samples", "updates_per_call", "every", "calls", "evaluations"),
    [(32, 16, 16, [16, 16], [16, 32]), (50, 20, 20, [20, 20, 10], [20, 40])],
)
def test_evaluations_and_the_last_shorter_call_are_counted_in_updates(
    samples, updates_per_call, every, calls, evaluations
):
    def body(session: ui.Session) -> Any:
        seen: List[int] = []

        class Watch(ui.Callback):
            def on_call_end(self, context: ui.FitContext, record: ui.Record) -> None:
                seen.append(record.updates)

        program = compiled(session)
        evaluated: List[int] = []
        original = program.evaluate

        def evaluate(loader: Any, metrics: Any = None) -> Any:
            evaluated.append(program.update)
            return original(loader, metrics)

        program.evaluate = evaluate  # type: ignore[method-assign]  # counts the calls
        x = np.zeros((samples, 3))
        program.fit(
            session.loader((x, x[:, :1])),
            validation=session.loader((X, Y), train=False),
            every=every,
            callbacks=[Watch()],
        )
        return seen, evaluated, program.updates_happened

    settings = {"batch__global_batch_size": 1, "batch__micro_batch_size": 1}
    found = train(1, body, batch__updates_per_call=updates_per_call, **settings)
    assert found == [(calls, evaluations, samples)]


def test_max_updates_stops_inside_a_call_and_the_loader_goes_on_behind_it():
    def body(session: ui.Session) -> Any:
        program = compiled(session)
        loader = session.loader((X, Y))
        first = program.fit(loader, epochs=5, max_updates=5)
        at = (loader.epoch, loader.position, program.update)
        ids = [
            int(i)
            for call in loader
            for update in call.updates
            for micro in update.micro_batches
            for i in micro.ids
        ]
        return first.samples, at, ids

    settings = {"batch__global_batch_size": 4, "batch__updates_per_call": 3}
    whole = train(1, _epoch_ids, **settings)[0]
    for samples, at, ids in train(1, body, **settings):
        assert samples == 20
        assert at == (0, 20, 5)
        assert ids == whole[20:]


def _epoch_ids(session: ui.Session) -> List[int]:
    return [
        int(i)
        for call in session.loader((X, Y))
        for update in call.updates
        for micro in update.micro_batches
        for i in micro.ids
    ]


def test_a_second_fit_goes_on_with_the_next_epochs():
    def body(session: ui.Session) -> Any:
        program = compiled(session)
        loader = session.loader((X, Y))
        epochs = [[epoch.epoch for epoch in program.fit(loader, epochs=2).epochs] for _ in range(2)]
        return epochs, program.update

    assert train(1, body) == [([[0, 1], [2, 3]], 24)]


def test_json_lines_hold_every_call_and_epoch(tmp_path):
    path = tmp_path / "run" / "metrics.jsonl"

    def body(session: ui.Session) -> Any:
        compiled(session).fit(session.loader((X, Y)), epochs=2, callbacks=[ui.JsonLines(path)])

    train(2, body)
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [line["kind"] for line in lines] == (["call"] * 6 + ["epoch"]) * 2
    assert [line["update"] for line in lines if line["kind"] == "call"] == list(range(12))
    assert lines[6]["certificate"] == "22 of 22 samples, each once"


def test_a_log_that_cannot_be_written_does_not_end_the_training(tmp_path, caplog):
    class Full:
        def write(self, text: str) -> None:
            raise OSError(28, "No space left on device")

        def close(self) -> None:
            raise OSError(28, "No space left on device")

    def body(session: ui.Session) -> Any:
        log = ui.JsonLines(tmp_path / "metrics.jsonl")

        class Fill(ui.Callback):
            def on_epoch_start(self, context: ui.FitContext, epoch: int) -> None:
                if log._file is not None and log._file._file is not None:
                    log._file._file.close()
                    log._file._file = Full()  # type: ignore[assignment]  # a disk that is full

        return (
            compiled(session).fit(session.loader((X, Y)), epochs=1, callbacks=[log, Fill()]).updates
        )

    assert train(1, body) == [6]
    assert [record.message.count("No space left") for record in caplog.records] == [1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"epochs": 0}, "epochs=0"),
        ({"epochs": True}, "epochs=True"),
        ({"every": "update"}, "every='update'"),
        ({"every": 0}, "every=0"),
        ({"max_updates": 0}, "max_updates=0"),
        ({"metrics": {"error": relative_error}}, "validation=, which is missing"),
        ({"checkpoint": 3}, "checkpoint=3"),
        ({"resume": "auto"}, "resume='auto'"),
    ],
)
def test_an_argument_that_cannot_work_is_refused_before_training(arguments, words):
    def body(session: ui.Session) -> Any:
        program = compiled(session)
        with pytest.raises(ui.ConfigError) as caught:
            program.fit(session.loader((X, Y)), **arguments)
        return str(caught.value), program.update

    ((text, updates),) = train(1, body)
    assert words in text
    assert updates == 0


def test_fit_refuses_what_is_no_training_loader():
    def body(session: ui.Session) -> Any:
        program = compiled(session)
        for wrong in ((X, Y), session.loader((X, Y), train=False)):
            with pytest.raises(ui.ConfigError, match="needs a training loader"):
                program.fit(wrong)
        return True

    assert train(1, body) == [True]


def test_an_error_in_a_fit_reaches_the_callbacks_end():
    def body(session: ui.Session) -> Any:
        journal = Journal()

        def objective(model: Any, batch: Any) -> ui.Loss:
            gradient = {"0.weight": np.full((1, 3), np.nan)}
            return ui.Loss(Differentiable(0.0, gradient), weight=1.0)

        program = session.compile(Mlp((3, 1)), objective=objective, optimizer=ui.optim.SGD(lr=0.1))
        with pytest.raises(ui.NumericsError):
            program.fit(session.loader((X, Y)), callbacks=[journal])
        return journal.lines[-1]

    assert train(2, body) == ["error", "error"]


def test_a_call_is_run_once_unless_it_is_held():
    def body(session: ui.Session) -> Any:
        first, second = compiled(session), compiled(session)
        for call in session.loader((X[:4], Y[:4])):
            held = call.held()
            one, two = first.step(held), second.step(held)
            assert one.loss == two.loss
        for call in session.loader((X[:4], Y[:4])):
            first.step(call)
            with pytest.raises(ui.DataError, match=r"call\.held\(\)"):
                second.step(call)
        return True

    assert train(2, body) == [True, True]


def test_warm_up_and_scaling_are_in_the_record():
    def body(session: ui.Session) -> Any:
        program = compiled(session, lr=0.1)
        return [program.step(call).lr for call in session.loader((X, Y))]

    settings = {
        "update__lr_scaling": "linear",
        "update__base_global_batch_size": 2,
        "update__warmup_updates": 4,
    }
    for rates in train(2, body, **settings):
        assert rates == pytest.approx([0.05, 0.1, 0.15, 0.2, 0.2, 0.2], rel=1e-15)
