"""Several data processes: map-style datasets and pipelines, in the order of one."""

from __future__ import annotations

import gc
import random
from pathlib import Path

import numpy as np
import pytest

from tests.unified_ipu.data import map_datasets
from unified_ipu.comms import connect
from unified_ipu.data import dataset, tensorflow
from unified_ipu.data.mixing import sample_seeds
from unified_ipu.data.pipeline_source import PipelineSource
from unified_ipu.data.sample_randomness import SeededFetching
from unified_ipu.errors import ConfigError, DataError
from unified_ipu.plan import BatchPlan, DataSettings

pytestmark = pytest.mark.timeout(60)

TWO = DataSettings(workers=2)
SQUARES = map_datasets.Squares()


@pytest.fixture
def start(make_loader):
    def started(source, batch, **changes):
        return make_loader(connect(rank=0, size=1, job=""), source, batch, **changes)

    return started


def read(loader):
    """(ids, tree) of what is left of a pass, by (update, micro-batch)."""
    return {
        (update.number, micro.index): (micro.ids.tolist(), micro.tree)
        for call in loader
        for update in call.updates
        for micro in update.micro_batches
    }


def test_l2_workers_take_turns_and_the_order_is_that_of_one_process(run_ranks, make_loader):
    def rank(communicator, settings):
        batch = BatchPlan(12, 3, communicator.size)
        with make_loader(communicator, SQUARES, batch, settings=settings) as loader:
            epochs = [read(loader) for _ in range(2)]
            loader.seek(0, 24)
            epochs.append(read(loader))
            return epochs, str(loader.certificate())

    direct, text = run_ranks(1, lambda c: rank(c, DataSettings()))[0]
    assert text.startswith("16 of 40 samples, each once")
    for size, workers in [(1, 2), (2, 3)]:
        results = run_ranks(size, lambda c, n=workers: rank(c, DataSettings(workers=n)))
        pids = set()
        for epoch in range(3):
            merged = {}
            for epochs, _ in results:
                merged.update(epochs[epoch])
            assert sorted(merged) == sorted(direct[epoch])
            for key, (ids, tree) in merged.items():
                assert ids == direct[epoch][key][0]
                assert tree["square"][:, 2].tolist() == [k * k for k in ids]
                pids |= set(tree["pid"].tolist())
        assert len(pids) == workers
        assert {seen for _, seen in results} == {text}


def test_l3_what_is_drawn_for_a_sample_depends_on_seed_epoch_and_sample_only(
    run_ranks, make_loader
):
    def rank(communicator, workers, micro):
        source = dataset(SQUARES, workers=workers)
        batch = BatchPlan(12, micro, communicator.size)
        with make_loader(communicator, source, batch, seed=3) as loader:
            drawn = {}
            for epoch in (0, 1):
                for ids, tree in read(loader).values():
                    for index, row in zip(ids, tree["drawn"].tolist()):
                        drawn[epoch, index] = tuple(row)
            return drawn

    alone = run_ranks(1, lambda c: rank(c, 1, 4))[0]
    assert len(set(alone.values())) == 80
    random.seed(int.from_bytes(words_of(3, 1, 7).tobytes()[:8], "little"))
    np.random.seed(words_of(3, 1, 7))
    assert alone[1, 7] == (random.random(), np.random.random())
    first, second = run_ranks(2, lambda c: rank(c, 2, 3))
    assert {**first, **second} == alone
    assert len(first) + len(second) == 80


def words_of(seed, epoch, index):
    return sample_seeds(seed, epoch, np.array([index])).view(np.uint32)[0]


def test_samples_that_draw_nothing_are_not_seeded_and_those_that_do_are_made_once_more():
    samples = map_datasets.Counted()
    fetching = SeededFetching(samples, None, seed=3)
    random.seed(1)
    before = random.getstate()
    assert fetching.fetch(np.array([0, 1]), 0).tolist() == [0, 0]
    assert random.getstate() == before
    assert fetching.fetch(np.array([2, 12]), 0)[0] == 0
    assert samples.calls == [0, 1, 2, 12, 2, 12]
    first = fetching.fetch(np.array([12, 13]), 0)
    assert samples.calls[6:] == [12, 13]
    assert fetching.fetch(np.array([13, 12]), 0).tolist() == first[::-1].tolist()
    assert fetching.fetch(np.array([12, 13]), 1).tolist() != first.tolist()


def test_the_dataset_may_be_made_by_a_function_in_each_process(start):
    source = dataset("map_datasets:squares", map_datasets.collate, size=40, workers=2)
    with start(source, BatchPlan(8, 4)) as loader:
        seen = read(loader)
        assert loader.size == 40
        for ids, (squares, counts) in seen.values():
            assert squares.tolist() == [k * k for k in ids]
            assert counts.tolist() == [4] * 4


def test_collate_gets_whole_micro_batches(start):
    with start(SQUARES, BatchPlan(7, 3), collate=map_datasets.collate, settings=TWO) as loader:
        counts = [tree[1].tolist() for _, tree in read(loader).values()]
    assert counts == [[3] * 3, [3] * 3, [1]] * 5 + [[3] * 3, [2] * 2]


def test_l6_evaluation_and_padding_work_with_workers(start):
    with start(SQUARES, BatchPlan(8, 4), train=False, micro_batch_size=6, settings=TWO) as loader:
        for _ in range(2):
            ids = [k for micro in loader for k in micro.ids.tolist()]
            assert ids == list(range(40))
        assert loader.certificate().ok
    batch = BatchPlan(12, 4, 1, 1, "pad")
    with start(SQUARES, batch, shuffle=False, settings=TWO) as loader:
        last = [ids for ids, _ in read(loader).values()][-3:]
    assert last == [[36, 37, 38, 39], [-1] * 4, [-1] * 4]


def test_a_pipeline_may_run_in_several_processes(run_ranks, make_loader):
    def rank(communicator):
        source = PipelineSource("pipelines:NumpySource", "pipelines:train", 40, batched=True)
        batch = BatchPlan(12, 2, 2)
        with make_loader(communicator, source, batch, settings=DataSettings(workers=3)) as loader:
            return [read(loader) for _ in range(2)], str(loader.certificate())

    first, second = run_ranks(2, rank)
    for epoch in (0, 1):
        merged = {**first[0][epoch], **second[0][epoch]}
        ids = [k for key in sorted(merged) for k in merged[key][0]]
        assert sorted(ids) == list(range(40))
        for got, tree in merged.values():
            assert tree["x"].tolist() == [[k, 10 * k] for k in got]
    assert first[1] == "40 of 40 samples, each once"


def test_one_process_reads_a_dataset_unless_more_are_asked_for(start):
    for source, settings in [
        (SQUARES, DataSettings()),
        (SQUARES, DataSettings(workers=0)),
        (SQUARES, DataSettings(workers=2, isolate="never")),
        (dataset(SQUARES, workers=0), TWO),
    ]:
        loader = start(source, BatchPlan(8, 4), settings=settings)
        assert type(loader._feed).__name__ == "DirectFeed"


def test_a_failing_sample_is_named_with_its_line(start):
    with start(map_datasets.Squares(40, bad=17), BatchPlan(8, 4), settings=TWO) as loader:
        with pytest.raises(DataError) as caught:
            read(loader)
    text = str(caught.value)
    assert "the dataset failed in epoch 0, at positions" in text
    assert "sample 17 failed with ValueError: no square for 17" in text
    assert "map_datasets.py" in text


def test_what_cannot_be_pickled_is_refused_with_advice(start):
    with pytest.raises(DataError, match=r"cannot be handed to data processes: .*module:function"):
        start(map_datasets.NeedsLock(), BatchPlan(4, 4), settings=TWO)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"samples": "map_datasets"}, "module:function"),
        ({"samples": "map_datasets:squares"}, "size=None"),
        ({"samples": "map_datasets:squares", "size": 0}, "size=0"),
        ({"samples": SQUARES, "size": 40}, "which has its own"),
        ({"samples": SQUARES, "workers": -1}, "workers=-1"),
        ({"samples": SQUARES, "workers": True}, "workers=True"),
    ],
)
def test_arguments_that_cannot_be_right_are_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        dataset(**arguments)


def test_a_dataset_of_another_size_is_refused(start):
    with pytest.raises(DataError, match="has 40 samples; size=41 was given"):
        start(dataset("map_datasets:squares", size=41), BatchPlan(4, 4))
    with pytest.raises(ConfigError, match=r'data\.isolate = "never"'):
        start(
            dataset("map_datasets:squares", size=40),
            BatchPlan(4, 4),
            settings=DataSettings(isolate="never"),
        )


def test_all_processes_end_with_the_loader(start):
    loader = start(SQUARES, BatchPlan(8, 4), settings=DataSettings(workers=3))
    processes = [each._process for each in loader._feed._processes]
    assert len(processes) == 3
    next(iter(loader))
    loader.close()
    assert [process.poll() for process in processes] == [0] * 3
    loader = start(SQUARES, BatchPlan(8, 4), settings=TWO)
    processes = [each._process for each in loader._feed._processes]
    del loader
    gc.collect()
    assert [process.wait(timeout=10) for process in processes] == [0] * 2


def test_l4_a_process_that_is_killed_is_an_error_and_takes_the_others_along(start):
    with start(map_datasets.Squares(4000), BatchPlan(4, 2), settings=TWO) as loader:
        processes = [each._process for each in loader._feed._processes]
        list(next(iter(loader)).updates[0].micro_batches)
        processes[1].kill()
        with pytest.raises(DataError, match="ended unexpectedly: killed by SIGKILL"):
            read(loader)
    assert [process.wait(timeout=10) for process in processes] == [0, -9]


def test_batches_from_workers_are_writable_and_aligned(start):
    with start(SQUARES, BatchPlan(8, 4), settings=TWO) as loader:
        for _, tree in read(loader).values():
            for leaf in tree.values():
                assert leaf.flags.writeable
                assert leaf.ctypes.data % 64 == 0
                assert isinstance(leaf, np.ndarray)


def test_a_function_of_a_pipeline_is_still_checked():
    with pytest.raises(ConfigError, match="module:function"):
        tensorflow(str(Path("a b")), size=4)
