from __future__ import annotations

import threading
from typing import Any

import pytest

import unified_ipu as ui
from tests.unified_ipu.session.small_runs import X, Y, compiled, equal, refused, run
from unified_ipu.testing.threads import RanksFailedError, run_ranks


def test_several_programs_and_loaders_come_back_together(tmp_path):
    def body(session: ui.Session) -> Any:
        one, two = compiled(session), compiled(session, (3, 2, 1), optimizer=ui.optim.SGD(lr=0.1))
        left, right = session.loader((X, Y)), session.loader((X[:9], Y[:9]))
        for call in left:
            one.step(call)
            if left.position == 12:
                break
        for call in right:
            two.step(call)
        path = session.save(tmp_path, one=one, two=two, left=left, right=right)
        assert path.name == "step-00000003"
        before = [one.weights(), two.weights()]
        for program, loader in ((one, left), (two, right)):
            program.step(next(iter(loader)))
        assert not equal(one.weights(), before[0])
        assert session.restore(tmp_path, one=one, two=two, left=left, right=right) == path
        assert equal(one.weights(), before[0])
        assert equal(two.weights(), before[1])
        assert (left.epoch, left.position, right.epoch, right.position) == (0, 12, 1, 0)
        return sorted(file.name for file in path.iterdir())

    assert run(2, body)[0] == [
        "manifest.json",
        "one.slots.safetensors",
        "one.weights.safetensors",
        "two.slots.safetensors",
        "two.weights.safetensors",
    ]


def test_the_weights_open_without_us(tmp_path):
    from safetensors.numpy import load_file

    def body(session: ui.Session) -> Any:
        program = compiled(session)
        program.step((X[:2], Y[:2]))
        return program.save(tmp_path), program.weights()

    ((path, weights),) = run(1, body)
    assert equal(load_file(str(path / "weights.safetensors")), weights)
    slots = load_file(str(path / "slots.safetensors"))
    assert set(slots) == {
        f"{name}/{slot}" for name in weights for slot in ("step", "exp_avg", "exp_avg_sq")
    }
    assert float(slots["0.weight/step"]) == 1.0


def test_a_program_that_only_evaluates_takes_the_weights_and_nothing_else(tmp_path):
    def body(session: ui.Session) -> Any:
        program = compiled(session)
        program.step((X[:2], Y[:2]))
        program.save(tmp_path)
        other = compiled(session, optimizer=None)
        other.restore(tmp_path)
        test = session.loader((X, Y), train=False)
        assert other.evaluate(test) == program.evaluate(test)
        assert all(spec.role != "slot" for spec in other.executor.tensors())
        return equal(other.weights(), program.weights())

    assert run(2, body) == [True, True]


def test_slots_made_after_the_checkpoint_are_gone_after_restoring_it(tmp_path):
    def body(session: ui.Session) -> Any:
        program = compiled(session)
        program.save(tmp_path)
        program.step((X[:2], Y[:2]))
        first = program.weights()
        program.restore(tmp_path)
        assert (program.update, program.updates_happened) == (0, 0)
        program.step((X[:2], Y[:2]))
        return equal(program.weights(), first)

    assert run(1, body) == [True]


def test_what_is_neither_program_nor_train_loader_cannot_be_saved(tmp_path):
    def evaluation(session: ui.Session) -> Any:
        session.save(tmp_path, test=session.loader((X, Y), train=False))

    assert "test=a loader for evaluation" in refused(evaluation, ui.ConfigError)
    assert "got nothing" in refused(lambda session: session.save(tmp_path), ui.ConfigError)
    assert "expected programs" in refused(
        lambda session: session.restore(tmp_path, model=3), ui.ConfigError
    )


@pytest.mark.parametrize("verb", ["save", "restore"])
def test_l4_a_call_on_one_rank_only_ends_in_an_error_that_says_so(tmp_path, verb):
    def body(session: ui.Session) -> None:
        program = compiled(session)
        program.save(tmp_path)
        if session.is_first:
            getattr(program, verb)(tmp_path)
        else:
            program.step((X[:2], Y[:2]))

    with pytest.raises(RanksFailedError) as caught:
        run(2, body)
    for error in caught.value.errors.values():
        assert isinstance(error, ui.CollectiveError)
        assert f"session.{verb}, which every rank must call" in str(error)


def test_l4_a_rank_that_never_saves_is_named_when_the_time_is_over(tmp_path):
    waiting = threading.Event()

    def rank(world: Any, communicator: Any) -> None:
        plan = ui.Plan().replace({"mesh.data": 2, "batch.global_batch_size": 4})
        with ui.Session(plan, world=world, communicator=communicator, argv=[]) as session:
            program = compiled(session)
            if session.is_first:
                try:
                    program.save(tmp_path)
                finally:
                    waiting.set()
            waiting.wait(20.0)

    with pytest.raises(RanksFailedError) as caught:
        run_ranks(2, rank, timeout_seconds=1.0)
    error = caught.value.errors[0]
    assert isinstance(error, ui.CollectiveTimeoutError)
    assert "session.save, which every rank must call" in str(error)
    assert "rank 1" in str(error)
    assert not (tmp_path / "latest").exists()


def test_ranks_that_save_different_things_are_told(tmp_path):
    def body(session: ui.Session) -> None:
        program = compiled(session)
        if session.is_first:
            session.save(tmp_path, one=program)
        else:
            session.save(tmp_path, two=program)

    with pytest.raises(RanksFailedError) as caught:
        run(2, body)
    assert all("do not save the same" in str(error) for error in caught.value.errors.values())


def test_a_full_disk_keeps_the_old_checkpoint_and_is_an_error_on_all_ranks(tmp_path, monkeypatch):
    def body(session: ui.Session) -> Any:
        program = compiled(session)
        program.save(tmp_path)
        before = program.weights()
        program.step((X[:2], Y[:2]) if session.is_first else [])
        session.communicator().barrier()

        def full(*_: Any) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("unified_ipu.checkpoint.tensor_file.os.fsync", full)
        with pytest.raises(ui.CheckpointError, match="No space left on device") as caught:
            program.save(tmp_path)
        session.communicator().barrier()
        monkeypatch.undo()
        session.communicator().barrier()
        assert "step 1 was not written" in str(caught.value)
        program.restore(tmp_path)
        return equal(program.weights(), before)

    assert run(2, body) == [True, True]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest", "step-00000000"]


def test_a_damaged_tensor_is_an_error_on_all_ranks_and_changes_nothing(tmp_path):
    def first(session: ui.Session) -> None:
        program = compiled(session)
        program.save(tmp_path)
        program.step((X[:2], Y[:2]) if session.is_first else [])
        program.save(tmp_path)

    run(2, first)
    file = tmp_path / "step-00000001" / "slots.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)

    def second(session: ui.Session) -> Any:
        program = compiled(session)
        before = program.weights()
        with pytest.raises(ui.CheckpointError, match=r"slots\.safetensors is not that") as caught:
            program.restore(tmp_path)
        assert equal(program.weights(), before)
        program.restore(tmp_path / "step-00000000")
        return str(caught.value).partition(": ")[2]

    messages = run(2, second)
    assert messages[0] == messages[1]
