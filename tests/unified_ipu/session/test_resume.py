from __future__ import annotations

import json
import shutil
from typing import Any, List

import numpy as np
import pytest

import unified_ipu as ui
from tests.unified_ipu.session.small_runs import X, Y, compiled, equal, refused, run, unbroken
from unified_ipu.testing.threads import RanksFailedError


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("stop", [1, 4, 6, 7, 11])
def test_l3_5_a_run_that_was_broken_off_goes_on_bit_for_bit(tmp_path, size, stop):
    expected, whole = run(size, unbroken)[0]

    def first(session: ui.Session) -> None:
        program, train = compiled(session), session.loader((X, Y))
        program.fit(train, epochs=3, checkpoint=tmp_path, every=2, max_updates=stop)
        assert program.update == stop

    def second(session: ui.Session) -> Any:
        return unbroken(session, checkpoint=tmp_path, resume="auto")

    run(size, first)
    for weights, summary in run(size, second):
        assert equal(weights, expected)
        assert summary.epochs[-1].epoch == 2
        for mine, other in zip(reversed(summary.epochs), reversed(whole.epochs)):
            assert (mine.samples, mine.updates) == (other.samples, other.updates)
            assert mine.loss == other.loss
            assert str(mine.certificate) == "22 of 22 samples, each once"


def test_l3_6_another_world_goes_on_with_the_same_samples_and_updates_to_rounding(tmp_path):
    expected, _ = run(1, unbroken)[0]
    sizes = np.random.default_rng(5).integers(1, 5, size=4).tolist()
    results: List[Any] = []
    for updates, size in zip([3, 8, 13, 18], sizes):

        def part(session: ui.Session, updates: int = updates) -> Any:
            return unbroken(session, checkpoint=tmp_path, resume="auto", max_updates=updates)

        results = run(size, part)
    difference = np.concatenate([(results[0][0][n] - expected[n]).ravel() for n in expected])
    total = np.concatenate([expected[n].ravel() for n in expected])
    assert np.linalg.norm(difference) < 1e-12 * np.linalg.norm(total)


def differing(tmp_path: Any, change: Any, **settings: Any) -> str:
    """Save, then resume with a change; the message every rank gets."""

    def first(session: ui.Session) -> None:
        compiled(session).fit(session.loader((X, Y)), checkpoint=tmp_path)

    run(2, first)
    with pytest.raises(RanksFailedError) as caught:
        run(2, change, **settings)
    errors = list(caught.value.errors.values())
    assert {type(error) for error in errors} == {ui.CheckpointError}
    assert len({str(error).partition(": ")[2] for error in errors}) == 1
    assert len(errors) == 2
    return str(errors[0])


def test_resume_with_another_seed_batch_or_size_says_what_differs(tmp_path):
    def other(session: ui.Session) -> Any:
        compiled(session).fit(session.loader((X[:20], Y[:20])), checkpoint=tmp_path, resume="auto")

    message = differing(tmp_path, other, seed=7, batch__global_batch_size=6)
    for part in (
        "seed is 7, saved with 0",
        "loader 'train': size is 20, saved with 22",
        "loader 'train': global_batch_size is 6, saved with 4",
    ):
        assert part in message


def test_another_micro_batch_size_goes_on_and_says_what_it_means(tmp_path, caplog):
    run(1, lambda session: unbroken(session, 1, checkpoint=tmp_path))
    again = run(
        1,
        lambda session: unbroken(session, 2, checkpoint=tmp_path, resume="auto"),
        batch__micro_batch_size=3,
    )
    assert str(again[0][1].epochs[0].certificate) == "22 of 22 samples, each once"
    (record,) = caplog.records
    assert "resuming with batch.micro_batch_size 3, saved with 2" in record.getMessage()
    assert "random layers draw anew" in record.getMessage()


def test_resume_with_another_model_names_the_tensors(tmp_path):
    def other(session: ui.Session) -> Any:
        program = compiled(session, (3, 5, 1))
        before = program.weights()
        try:
            program.fit(session.loader((X, Y)), checkpoint=tmp_path, resume=True)
        finally:
            assert equal(program.weights(), before)

    message = differing(tmp_path, other)
    assert "'0.weight' is parameter float64 [5, 3], saved as parameter float64 [4, 3]" in message


def test_resume_with_another_optimizer_is_refused_before_anything_changes(tmp_path):
    def other(session: ui.Session) -> Any:
        program = compiled(session, optimizer=ui.optim.SGD(lr=0.1))
        before = program.weights()
        try:
            program.fit(session.loader((X, Y)), checkpoint=tmp_path, resume=True)
        finally:
            assert equal(program.weights(), before)

    assert "of the optimizer Adam, this program has SGD" in differing(tmp_path, other)


def test_resume_auto_starts_anew_where_there_is_nothing_and_true_does_not(tmp_path):
    def auto(session: ui.Session) -> Any:
        return unbroken(session, epochs=1, checkpoint=tmp_path / "run", resume="auto")[1].updates

    assert run(1, auto) == [6]

    def wanted(session: ui.Session) -> Any:
        unbroken(session, checkpoint=tmp_path / "other", resume=True)

    assert "there is no checkpoint at" in refused(wanted, ui.CheckpointError)


def test_l4_7_which_checkpoint_is_loaded_is_the_choice_of_the_first_rank(tmp_path):
    def first(session: ui.Session) -> Any:
        program = compiled(session)
        program.fit(session.loader((X, Y)), epochs=3, checkpoint=tmp_path, max_updates=4)
        return program.weights()

    def second(session: ui.Session) -> Any:
        program = compiled(session)
        # "The latest" of a rank whose disk holds nothing.
        folder = tmp_path if session.is_first else tmp_path / "elsewhere"
        session.restore(folder, model=program)
        return program.weights()

    expected = run(2, first)[0]
    for weights in run(2, second):
        assert equal(weights, expected)


def test_a_fit_without_resume_does_not_touch_the_checkpoints_of_an_earlier_run(tmp_path):
    def again(session: ui.Session) -> Any:
        unbroken(session, epochs=1, checkpoint=tmp_path)

    run(1, again)
    assert 'go on from them with resume="auto"' in refused(again, ui.ConfigError)


def test_a_folder_that_cannot_be_made_is_an_error_before_training(tmp_path):
    (tmp_path / "file").write_text("")

    def body(session: ui.Session) -> Any:
        program = compiled(session)
        with pytest.raises(ui.CheckpointError, match="cannot be made; rank 0"):
            program.fit(session.loader((X, Y)), checkpoint=tmp_path / "file" / "run")
        return program.update

    assert run(2, body) == [0, 0]


def test_epochs_count_from_the_beginning_of_the_resumed_run(tmp_path):
    def body(session: ui.Session, epochs: int = 2) -> Any:
        test = session.loader((X, Y), train=False)
        _, summary = unbroken(session, epochs, checkpoint=tmp_path, resume="auto", validation=test)
        return len(summary.epochs), summary.validation

    ((first, validation),) = run(1, body)
    ((again, kept),) = run(1, body)
    ((more, _),) = run(1, lambda session: body(session, 5))
    assert (first, again, more) == (2, 0, 3)
    assert kept == validation
    assert (tmp_path / "latest").read_text() == "step-00000030\n"
    assert len(list(tmp_path.glob("step-*"))) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"resume": "auto"}, "needs checkpoint="),
        ({"resume": 3, "checkpoint": "run"}, 'expected "auto", True'),
        ({"checkpoint": 3}, "expected the folder of the run"),
    ],
)
def test_arguments_that_do_not_go_together_are_refused(arguments, message):
    assert message in refused(lambda session: unbroken(session, **arguments), ui.ConfigError)


def test_callbacks_that_have_a_state_get_it_back(tmp_path):
    class Counting(ui.Callback):
        def __init__(self) -> None:
            self.calls = 0

        def on_call_end(self, context: Any, record: Any) -> None:
            self.calls += 1

        def state(self) -> Any:
            return {"calls": self.calls}

        def load_state(self, state: Any) -> None:
            self.calls = state["calls"]

    def body(session: ui.Session, epochs: int) -> int:
        counting = Counting()
        unbroken(session, epochs, checkpoint=tmp_path, resume="auto", callbacks=[counting])
        return counting.calls

    assert run(1, lambda session: body(session, 1)) == [6]
    assert run(1, lambda session: body(session, 3)) == [18]


def test_the_manifest_is_plain_json_and_a_run_can_be_moved(tmp_path):
    run(1, lambda session: unbroken(session, 1, checkpoint=tmp_path / "a"))
    shutil.move(str(tmp_path / "a"), str(tmp_path / "b"))
    manifest = json.loads((tmp_path / "b" / "step-00000006" / "manifest.json").read_text())
    assert manifest["programs"]["model"]["update"] == 6
    assert manifest["loaders"]["train"]["state"]["epoch"] == 1
    again = run(1, lambda session: unbroken(session, 2, checkpoint=tmp_path / "b", resume=True))
    assert [epoch.epoch for epoch in again[0][1].epochs] == [1]


def test_a_fit_goes_on_from_what_was_saved_by_hand(tmp_path):
    expected, _ = run(2, unbroken)[0]

    def first(session: ui.Session) -> None:
        program, train = compiled(session), session.loader((X, Y))
        for call in train:
            program.step(call)
            if program.update == 4:
                break
        session.save(tmp_path, model=program, train=train)

    run(2, first)
    for weights, summary in run(2, lambda session: unbroken(session, resume=tmp_path)):
        assert equal(weights, expected)
        assert [epoch.epoch for epoch in summary.epochs] == [0, 1, 2]
    assert len(list(tmp_path.glob("step-*"))) == 1
