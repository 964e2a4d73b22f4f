"""Loaders over the data process, with a source in plain numpy in it."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from unified_ipu.comms import connect
from unified_ipu.data.mixing import sample_seeds
from unified_ipu.data.pipeline_source import PipelineSource
from unified_ipu.errors import DataError
from unified_ipu.events import Counters
from unified_ipu.plan import BatchPlan, DataSettings
from unified_ipu.world import allowed_cpus, running_on

pytestmark = pytest.mark.timeout(60)

HERE = Path(__file__).parent


def pipeline(name, size=40, kind="pipelines:NumpySource"):
    return PipelineSource(kind, f"pipelines:{name}", size, batched=True)


def alone():
    return connect(rank=0, size=1, job="")


@pytest.fixture
def start(make_loader):
    """A loader of the only rank over one of the pipelines."""

    def started(name, batch, size=40, **changes):
        return make_loader(alone(), pipeline(name, size), batch, **changes)

    return started


def read(loader):
    """Real ids, first column and seeds of what is left of a pass, by (update, micro-batch)."""
    seen = {}
    for call in loader:
        for update in call.updates:
            for micro in update.micro_batches:
                real = micro.ids >= 0
                seen[update.number, micro.index] = (
                    micro.ids[real].tolist(),
                    micro.tree["x"][real, 0].tolist(),
                    micro.tree["seed"][0][real].tolist(),
                )
    return seen


def count_micro_batches(loader):
    return sum(len(list(u.micro_batches)) for call in loader for u in call.updates)


def worker_of(loader):
    return loader._feed._processes[0]._process.pid


def is_running(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def ends_within(pid, seconds):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not is_running(pid):
            return True
        time.sleep(0.02)
    return False


def test_l2_l3_one_pipeline_feeds_all_ranks_with_the_samples_and_seeds_of_the_law(
    run_ranks, make_loader
):
    def rank(communicator, replicas):
        batch = BatchPlan(16, 3, replicas, 2)
        with make_loader(communicator, pipeline("train"), batch, seed=3) as loader:
            epochs = [read(loader), read(loader)]
            pids = communicator.all_gather_value(worker_of(loader) if not communicator.rank else 0)
            return epochs, str(loader.certificate()), pids[0]

    alone = run_ranks(1, lambda c: rank(c, 1))[0]
    shared = run_ranks(3, lambda c: rank(c, 3))
    for epoch in (0, 1):
        merged = {}
        for replica, (epochs, _, _) in enumerate(shared):
            assert all(index % 3 == replica for _, index in epochs[epoch])
            merged.update(epochs[epoch])
        assert merged == alone[0][epoch]
        ids = [k for key in sorted(merged) for k in merged[key][0]]
        assert sorted(ids) == list(range(40))
        assert ids == [k for key in sorted(merged) for k in merged[key][1]]
        seeds = [s for key in sorted(merged) for s in merged[key][2]]
        assert seeds == sample_seeds(3, epoch, np.array(ids)).tolist()
    assert {text for _, text, _ in [alone, *shared]} == {"40 of 40 samples, each once"}
    assert not is_running(alone[2])
    assert not is_running(shared[0][2])


@pytest.mark.case("O-M5")
def test_l3_augmentation_seeds_are_functions_of_seed_epoch_and_sample_only():
    ids = np.array([5, 0, 7])
    seeds = sample_seeds(1, 2, ids)
    assert seeds.shape == (3, 2)
    assert seeds.dtype == np.int64
    assert sample_seeds(1, 2, ids[::-1]).tolist() == seeds[::-1].tolist()
    everything = {
        tuple(row)
        for seed in range(4)
        for epoch in range(4)
        for row in sample_seeds(seed, epoch, np.arange(50)).tolist()
    }
    assert len(everything) == 800
    assert seeds.tolist() == [
        [-7973767657623490171, -2670481832761374141],
        [8235612426812677668, -8686145501642438650],
        [8247781602962019702, -2377617962877375099],
    ]


def test_padding_seeking_and_rows_nobody_reads_keep_the_ring_in_step(start):
    with start("train", BatchPlan(8, 4, remainder="pad"), size=30) as loader:
        whole = read(loader)
        assert [len(whole[3, index][0]) for index in (0, 1)] == [4, 2]
        for call in loader:
            assert next(iter(call.updates[0].micro_batches)).index == 0
        text = "16 of 30 samples, 14 missing, 0 duplicated"
        assert str(loader.certificate()).startswith(text)
        loader.seek(0, 16)
        assert read(loader) == {key: micro for key, micro in whole.items() if key[0] >= 2}


def test_a_pass_that_is_broken_off_goes_on(start):
    with start("train", BatchPlan(8, 4)) as loader:
        seen = {}
        for call in loader:
            seen[call.updates[0].number] = [m.ids.tolist() for m in call.updates[0].micro_batches]
            if loader.position == 16:
                break
        for call in loader:
            seen[call.updates[0].number] = [m.ids.tolist() for m in call.updates[0].micro_batches]
        assert sorted(k for micros in seen.values() for ids in micros for k in ids) == [*range(40)]
        assert loader.certificate().ok


def test_l6_ranks_may_evaluate_different_numbers_of_batches_and_break_off(run_ranks, make_loader):
    def rank(communicator):
        batch = BatchPlan(8, 2, 2)
        source = pipeline("train", 11)
        with make_loader(communicator, source, batch, train=False) as loader:
            if communicator.rank == 0:
                next(iter(loader))  # breaks off while the other rank reads on
            else:
                assert [m.ids.tolist() for m in loader] == [[2, 3], [6, 7], [10]]
            seen = [m.ids.tolist() for m in loader]
            certificate = loader.certificate()
        return seen, certificate.ok

    first, second = run_ranks(2, rank)
    assert first == ([[0, 1], [4, 5], [8, 9]], True)
    assert second == ([[2, 3], [6, 7], [10]], True)


def test_the_data_process_imports_no_framework_by_itself(start):
    with start("frameworks", BatchPlan(8, 4)) as loader:
        call = next(iter(loader))
        flags = [micro.tree.tolist() for micro in call.updates[0].micro_batches]
    assert not np.array(flags).any()


@pytest.mark.case("O-I4")
def test_a_slow_consumer_bounds_memory_and_kept_batches_stay(make_loader, tmp_path):
    (tmp_path / "counted.py").write_text(COUNTED, encoding="utf-8")
    source = PipelineSource("pipelines:NumpySource", "counted:train", 4000, batched=True)
    counters = Counters()
    options = {"search_path": [str(tmp_path), str(HERE)], "counters": counters, "shuffle": False}
    with make_loader(alone(), source, BatchPlan(4, 4), **options) as loader:
        calls = iter(loader)
        kept = [next(iter(next(calls).updates[0].micro_batches)).tree]
        time.sleep(0.3)
        made = int((tmp_path / "made").read_text(encoding="ascii"))
        assert made <= 4 * (32 + 8)  # the slots, and one result of the pipeline
        kept += [next(iter(call.updates[0].micro_batches)).tree for call in calls]
    assert np.concatenate(kept).tolist() == list(range(4000))
    assert counters["copied_because_earlier_ones_are_kept"] == 1000 - 31
    assert counters["bytes_copied"] >= (1000 - 31) * kept[0].nbytes


COUNTED = """
from pathlib import Path

made = 0


def train():
    def sample(ids, seeds):
        global made
        made += len(ids)
        Path(__file__).with_name("made").write_text(str(made))
        return ids * 1.0

    return sample
"""


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (pipeline("missing"), ["no function 'missing'", "functions there:", "train"]),
        (pipeline("fails"), ["RuntimeError: no data on this disk", "pipelines.py", "in fails"]),
        (PipelineSource("pipelines:NumpySource", "absent:train", 9), ["No module named 'absent'"]),
        (PipelineSource("nobody", "pipelines:train", 9), ["no source 'nobody'", "tensorflow"]),
        (PipelineSource("pipelines:NumpySource", "pipelines:train", 9), ["only batched=True"]),
    ],
)
def test_a_pipeline_that_does_not_start_is_an_error_with_its_traceback(make_loader, source, words):
    with pytest.raises(DataError) as caught:
        make_loader(alone(), source, BatchPlan(8, 4))
    text = str(caught.value)
    assert all(word in text for word in words)
    assert repr(source.function) in text


def test_a_pipeline_that_does_not_start_is_an_error_on_every_rank(run_ranks, make_loader):
    def rank(communicator):
        with pytest.raises(DataError, match="no data on this disk") as caught:
            make_loader(communicator, pipeline("fails"), BatchPlan(8, 4, 2))
        return str(caught.value)

    first, second = run_ranks(2, rank)
    assert first == second


def test_another_interpreter_that_is_not_there_is_an_error(make_loader):
    settings = DataSettings(python="/nowhere/python")
    with pytest.raises(DataError, match=r"could not be started.*/nowhere/python"):
        make_loader(alone(), pipeline("train"), BatchPlan(8, 4), settings=settings)


def test_an_interpreter_without_us_is_an_error_with_its_last_words(make_loader, tmp_path):
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\necho 'No module named unified_ipu' >&2\nexit 1\n", "ascii")
    script.chmod(0o755)
    with pytest.raises(DataError, match=r"status 1; its last lines:\nNo module named unified_ipu"):
        make_loader(
            alone(), pipeline("train"), BatchPlan(8, 4), settings=DataSettings(python=str(script))
        )


def test_an_error_of_the_users_function_names_line_epoch_and_samples_on_every_rank(
    run_ranks, make_loader
):
    def rank(communicator):
        source = pipeline("bad_at_seventeen")
        loader = make_loader(communicator, source, BatchPlan(8, 2, 2), shuffle=False)
        with loader:
            with pytest.raises(DataError) as caught:
                count_micro_batches(loader)
            with pytest.raises(DataError, match="seventeen"):  # it stays broken
                count_micro_batches(loader)
        return str(caught.value)

    for text in run_ranks(2, rank):
        assert "ValueError: seventeen is bad" in text
        assert "failed in epoch 0, at sample 17 (" in text
        assert "pipelines.py" in text
        assert "line" in text


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("short_rows", r"has shape \(31,\) for 32 samples"),
        ("strings", r"leaf \['name'\] has the element type"),
    ],
)
def test_a_pipeline_that_breaks_its_promise_is_an_error(start, name, message):
    with start(name, BatchPlan(4, 4)) as loader, pytest.raises(DataError, match=message):
        read(loader)


def test_a_data_process_that_ends_itself_is_an_error_with_its_last_words(start, capsys):
    with start("stops", BatchPlan(8, 4)) as loader, pytest.raises(DataError) as caught:
        read(loader)
    assert "status 3; its last lines:\nlast words" in str(caught.value)
    written = capsys.readouterr().err
    assert "last words" in written
    assert "chatter" not in written


def test_ranks_that_are_bound_to_cores_leave_their_data_process_all_of_them(run_ranks, make_loader):
    cores = allowed_cpus()[:2]

    def rank(communicator):
        with running_on([cores[communicator.rank % len(cores)]]):  # this thread
            loader = make_loader(communicator, pipeline("slow"), BatchPlan(8, 4, 2))
            bound = len(allowed_cpus())
        with loader:
            where = os.sched_getaffinity(worker_of(loader)) if communicator.rank == 0 else None
            return bound, where

    assert run_ranks(2, rank) == [(1, set(cores)), (1, None)]


def test_a_killed_data_process_is_an_error_on_every_rank_at_once(run_ranks, make_loader):
    def rank(communicator):
        loader = make_loader(communicator, pipeline("slow"), BatchPlan(8, 4, 2))
        with loader:
            call = next(iter(loader))
            if communicator.rank == 0:
                os.kill(worker_of(loader), signal.SIGKILL)
            started = time.monotonic()
            with pytest.raises(DataError, match="ended unexpectedly") as caught:
                next(iter(call.updates[0].micro_batches))
            return time.monotonic() - started, str(caught.value)

    (first, text), (second, _) = run_ranks(2, rank)
    assert max(first, second) < 10  # the promise is two seconds; cores are shared
    assert "killed by SIGKILL" in text


@pytest.mark.parametrize("name", ["train", "slow"])
def test_the_data_process_ends_when_its_rank_is_killed(name):
    code = f"""
import sys, time
from unified_ipu.comms import connect
from unified_ipu.data import Loader
from unified_ipu.data.pipeline_source import PipelineSource
from unified_ipu.plan import BatchPlan
loader = Loader(
    PipelineSource("pipelines:NumpySource", "pipelines:{name}", 4000, batched=True),
    batch=BatchPlan(8, 4), replica=0, communicator=connect(rank=0, size=1, job=""), seed=0,
    shuffle=True, train=True, search_path=[{str(HERE)!r}],
)
calls = iter(loader)
next(calls)
print(loader._feed._processes[0]._process.pid, flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as rank:
        assert rank.stdout is not None
        pid = int(rank.stdout.readline())
        assert is_running(pid)
        os.kill(pid, signal.SIGINT)  # ^C goes to the whole process group; it must not mind
        rank.kill()
    assert ends_within(pid, 10)


def test_a_loader_that_is_never_closed_leaves_no_process(make_loader):
    loader = make_loader(alone(), pipeline("train"), BatchPlan(8, 4))
    next(iter(loader))
    pid = worker_of(loader)
    del loader
    gc.collect()
    assert ends_within(pid, 10)
