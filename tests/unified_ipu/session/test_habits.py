"""Small things that scripts of several ranks do: print, reduce, gather, go first, log."""

from __future__ import annotations

import io
import logging
import math
import threading
from typing import Any

import numpy as np
import pytest

import unified_ipu as ui
from unified_ipu.session.first_on_host import first_on_host
from unified_ipu.testing.threads import RanksFailedError, run_ranks
from unified_ipu.world import World

X = np.random.default_rng(0).normal(size=(22, 3))
Y = X @ np.array([[1.0], [-2.0], [0.5]])


def test_only_rank_0_prints(on_ranks, capsys):
    on_ranks(3, lambda session: session.print("loss", 0.5, f"of rank {session.rank}"))
    assert capsys.readouterr().out == "loss 0.5 of rank 0\n"


def test_reduce_gives_the_weighted_mean_of_what_the_ranks_have(on_ranks):
    def body(session: ui.Session) -> Any:
        rank = session.rank
        values: Any = {"all": (rank + 1, 2), "empty": (0, 0)}
        if rank == 2:
            values["only here"] = (np.float32(3), np.int64(4))
        return session.reduce(values)

    results = on_ranks(3, body)
    for result in results:
        assert list(result) == ["all", "empty", "only here"]
        assert (result["all"], result["only here"]) == (1.0, 0.75)
        assert math.isnan(result["empty"])


def test_gather_returns_every_ranks_rows_in_rank_order_on_all(on_ranks):
    def body(session: ui.Session) -> Any:
        return session.gather(np.full((session.rank, 2), session.rank, np.int32))

    for parts in on_ranks(3, body):
        assert [part.tolist() for part in parts] == [[], [[1, 1]], [[2, 2], [2, 2]]]
        assert all(part.dtype == np.int32 for part in parts)


def test_the_first_on_a_host_has_finished_before_the_others_begin(on_ranks):
    done = threading.Event()

    def body(session: ui.Session) -> Any:
        with session.first_on_host():
            found = done.is_set()
            if session.rank == 0:
                done.wait(0.2)  # others get time to be wrong
                done.set()
        return found

    assert on_ranks(3, body) == [False, True, True]


def test_each_host_has_a_first(tmp_path):
    # Ranks 0 and 1 on one host, 2 and 3 on another.
    def rank(world: World, communicator: Any) -> Any:
        place = World(world.rank, world.rank % 2, 4, 2, world.rank // 2, "threads", "job")
        path = tmp_path / f"host-{place.node_rank}"
        with first_on_host(communicator, place):
            found = path.exists()
            path.touch()
        return found

    assert run_ranks(4, rank, timeout_seconds=20.0) == [False, True, False, True]


def test_going_first_may_take_longer_than_any_collective():
    def rank(world: World, communicator: Any) -> Any:
        with first_on_host(communicator, world):
            if world.rank == 0:
                threading.Event().wait(1.5)
        return True

    assert run_ranks(2, rank, timeout_seconds=0.5) == [True, True]


def test_a_first_that_fails_is_named_on_the_others_of_its_host():
    def rank(world: World, communicator: Any) -> Any:
        place = World(world.rank, world.rank % 2, 4, 2, world.rank // 2, "threads", "job")
        with first_on_host(communicator, place):
            if world.rank == 2:
                raise OSError("no such host")
        return True

    with pytest.raises(RanksFailedError) as caught:
        run_ranks(4, rank, timeout_seconds=20.0)
    errors = caught.value.errors
    assert sorted(errors) == [2, 3]
    assert isinstance(errors[2], OSError)
    assert isinstance(errors[3], ui.PeerLostError)
    assert str(errors[3]) == "rank 2, the first on this host, failed: OSError: no such host"


@pytest.fixture
def library_log():
    return logging.getLogger("unified_ipu.session")


def test_log_records_carry_rank_and_update(on_ranks, compiled, caplog, library_log):
    def body(session: ui.Session) -> Any:
        program = compiled(session)
        library_log.warning("before")
        program.fit(session.loader((X, Y)))
        library_log.warning("after")

    on_ranks(2, body)
    found: Any = [(r.message, r.rank, r.world_size, r.update) for r in list_of(caplog)]
    assert sorted(found) == [
        ("after", 0, 2, 6),
        ("after", 1, 2, 6),
        ("before", 0, 2, 0),
        ("before", 1, 2, 0),
    ]


def list_of(caplog: Any) -> Any:
    return [record for record in caplog.records if record.name == "unified_ipu.session"]


def test_a_format_with_the_rank_works_on_the_programs_own_handler(on_ranks, library_log):
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("[%(rank)s/%(world_size)s] %(update)s %(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        on_ranks(1, lambda session: library_log.error("hello"))
    finally:
        root.removeHandler(handler)
    assert stream.getvalue() == "[0/1] 0 hello\n"


def test_without_any_handler_warnings_go_to_stderr_with_their_rank(
    on_ranks, capsys, library_log, monkeypatch
):
    monkeypatch.setattr(logging.getLogger(), "handlers", [])

    def body(session: ui.Session) -> Any:
        library_log.info("quiet")
        library_log.warning("loud from %d", session.rank)

    on_ranks(2, body)
    assert sorted(capsys.readouterr().err.splitlines()) == [
        "warning: rank 0, update 0: loud from 0",
        "warning: rank 1, update 0: loud from 1",
    ]


def test_a_warning_of_a_background_thread_is_written_once(
    on_ranks, capsys, library_log, monkeypatch
):
    monkeypatch.setattr(logging.getLogger(), "handlers", [])

    def body(session: ui.Session) -> Any:
        session.communicator().barrier()  # both sessions are open now
        if session.rank == 1:
            thread = threading.Thread(target=library_log.warning, args=("a peer is late",))
            thread.start()
            thread.join()
        session.communicator().barrier()

    on_ranks(2, body)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("update 0: a peer is late")


def test_a_closed_session_leaves_the_loggers_as_they_were(on_ranks):
    root, ours = logging.getLogger(), logging.getLogger("unified_ipu")
    before = (list(root.handlers), root.level, list(ours.handlers), ours.level)

    def body(session: ui.Session) -> Any:
        assert list(root.handlers) == before[0]
        session.close()
        session.close()

    on_ranks(2, body)
    assert (list(root.handlers), root.level, list(ours.handlers), ours.level) == before
