"""Pipelines and streams in the rank's own process, without any framework."""

from __future__ import annotations

import numpy as np
import pytest

from unified_ipu.comms import connect
from unified_ipu.data import PipelineSource, stream
from unified_ipu.data.live_source import LiveSource
from unified_ipu.data.local_pass import as_writable
from unified_ipu.data.mixing import sample_seeds
from unified_ipu.errors import ConfigError, DataError
from unified_ipu.events import Counters
from unified_ipu.plan import BatchPlan, DataSettings

pytestmark = pytest.mark.timeout(60)

NEVER = {"settings": DataSettings(isolate="never")}


def pipeline(function, size=40):
    return PipelineSource("pipelines:NumpySource", f"pipelines:{function}", size, batched=True)


def alone():
    return connect(rank=0, size=1, job="")


def read(loader):
    return [micro for call in loader for each in call.updates for micro in each.micro_batches]


def test_l2_ranks_deal_a_pipeline_of_their_own_exactly_once(run_ranks, make_loader):
    def rank(communicator):
        with make_loader(communicator, pipeline("train"), BatchPlan(16, 3, 3), **NEVER) as loader:
            got = [(epoch, micro) for epoch in (0, 1) for micro in read(loader)]
            assert str(loader.certificate()) == "40 of 40 samples, each once"
            return got

    results = run_ranks(3, rank)
    for wanted in (0, 1):
        ids = [m.ids for result in results for epoch, m in result if epoch == wanted]
        assert sorted(np.concatenate(ids).tolist()) == list(range(40))
    # An update of 16 over three ranks: 3 3 3, 3 3 1; what is left of the epoch: 3 3 2.
    rows = [[micro.rows for epoch, micro in result if not epoch] for result in results]
    assert rows == [[3, 3, 3, 3, 3], [3, 3, 3, 3, 3], [3, 1, 3, 1, 2]]
    for epoch, micro in results[1]:
        assert micro.tree["x"].tolist() == [[k, 10 * k] for k in micro.ids]
        assert np.array_equal(micro.tree["seed"][0], sample_seeds(0, epoch, micro.ids))


def test_rows_that_the_pipeline_may_keep_are_copied_and_counted(make_loader):
    counters = Counters()
    with make_loader(
        alone(), pipeline("train"), BatchPlan(20, 20), counters=counters, **NEVER
    ) as loader:
        read(loader)
    assert counters.as_dict() == {"copied_because_aliased": 2, "bytes_copied": 2 * 20 * 32}


def test_a_stream_is_read_on_every_rank_and_dealt_once(run_ranks, make_loader):
    def rank(communicator):
        with make_loader(
            communicator, stream("streams:by_epoch"), BatchPlan(6, 2, 3), **NEVER
        ) as loader:
            epochs = []
            for size in (21, 22):
                epochs.append([micro.ids.tolist() for micro in read(loader)])
                assert str(loader.certificate()) == f"{size} of {size} samples, each once"
            return epochs

    first, second, third = run_ranks(3, rank)
    assert first == [[[0, 1], [6, 7], [12, 13], [18, 19]]] * 2
    assert second == [[[2, 3], [8, 9], [14, 15], [20]], [[2, 3], [8, 9], [14, 15], [20, 21]]]
    assert third == [[[4, 5], [10, 11], [16, 17]]] * 2


def test_streams_that_differ_between_ranks_are_an_error_on_all(run_ranks, make_loader):
    def rank(communicator):
        name = "twelve" if communicator.rank else "sixteen"
        with make_loader(
            communicator, stream(f"streams:{name}"), BatchPlan(8, 4, 2), **NEVER
        ) as loader:
            with pytest.raises(DataError) as caught:
                read(loader)
        return str(caught.value)

    assert all("the stream has [16, 12] samples on ranks" in text for text in run_ranks(2, rank))


def test_micro_batches_left_out_are_skipped(make_loader):
    for source in (pipeline("train", 24), stream("streams:sixteen")):
        with make_loader(alone(), source, BatchPlan(8, 4), shuffle=False, **NEVER) as loader:
            calls = iter(loader)
            next(calls)
            (update,) = next(calls).updates
            assert [m.ids.tolist() for m in update.micro_batches][1] == [12, 13, 14, 15]


def test_a_run_goes_on_where_it_was(make_loader):
    for source in (pipeline("train", 24), stream("streams:by_epoch")):
        with make_loader(alone(), source, BatchPlan(8, 4), shuffle=False, **NEVER) as loader:
            loader.seek(2, 16)
            assert read(loader)[0].ids.tolist() == [16, 17, 18, 19]


def test_padding_of_a_stream_repeats_rows_and_counts_nothing(make_loader):
    batch = BatchPlan(8, 4, remainder="pad")
    with make_loader(alone(), stream("streams:by_epoch"), batch, **NEVER) as loader:
        got = read(loader)
        assert str(loader.certificate()) == "21 of 21 samples, each once, 3 rows of padding"
    assert got[-1].ids.tolist() == [20, -1, -1, -1]
    assert got[-1].tree["x"].tolist() == [[20, 200]] * 4


def test_what_a_pipeline_raises_names_the_sample(make_loader):
    with make_loader(
        alone(), pipeline("bad_at_seventeen"), BatchPlan(8, 4), shuffle=False, **NEVER
    ) as loader:
        with pytest.raises(DataError, match=r"at sample 17 \(.*ValueError: seventeen is bad"):
            read(loader)
    with make_loader(alone(), stream("streams:fails"), BatchPlan(8, 4), **NEVER) as loader:
        with pytest.raises(DataError, match=r"in epoch 0, after 16 .*ValueError: seventeen"):
            read(loader)


def test_a_pipeline_that_cannot_be_built_is_an_error_on_every_rank(run_ranks, make_loader):
    def rank(communicator):
        source = pipeline("train" if communicator.rank else "fails")
        with pytest.raises(DataError) as caught:
            make_loader(communicator, source, BatchPlan(8, 4, 2), **NEVER)
        return str(caught.value)

    for text in run_ranks(2, rank):
        assert text == (
            "loader: the pipeline 'pipelines:fails' failed: RuntimeError: no data on this disk"
        )


def test_an_unknown_kind_is_refused(make_loader):
    source = PipelineSource("nonesuch", "pipelines:train", 4, batched=True)
    with pytest.raises(DataError, match="no source 'nonesuch' is registered"):
        make_loader(alone(), source, BatchPlan(4, 4), **NEVER)


def test_a_closed_loader_says_so(make_loader):
    loader = make_loader(alone(), pipeline("train"), BatchPlan(8, 4), **NEVER)
    loader.close()
    loader.close()
    with pytest.raises(DataError, match="closed"):
        read(loader)


def test_read_only_memory_becomes_writable_where_it_lies():
    array = np.arange(6.0).reshape(2, 3)
    address = array.ctypes.data
    array.flags.writeable = False
    view = as_writable(array[1:])
    assert view.ctypes.data == address + 24
    view += 1
    del array
    assert view.tolist() == [[4, 5, 6]]
    empty = np.empty((2, 0))
    empty.flags.writeable = False
    assert as_writable(empty).flags.writeable


def test_an_object_of_a_framework_is_read_where_it_is(make_loader):
    source = LiveSource("own:Dataset", dataset=[np.float32(k) for k in range(4)])
    with make_loader(alone(), source, BatchPlan(4, 4)) as loader:
        assert [m.tree.tolist() for m in read(loader)] == [[0, 1, 2, 3]]
    with pytest.raises(ConfigError, match=r"own:Dataset is an object of this process.*stream"):
        make_loader(alone(), source, BatchPlan(4, 4), settings=DataSettings(isolate="always"))


@pytest.mark.parametrize("changes", [{"workers": 2}, {"python": "python3"}])
def test_settings_of_a_process_that_is_not_there_are_refused(make_loader, changes):
    settings = DataSettings(isolate="never", **changes)
    with pytest.raises(ConfigError, match="without a data process there is nothing to set"):
        make_loader(alone(), pipeline("train"), BatchPlan(8, 4), settings=settings)


def test_a_dataset_of_an_unknown_framework_is_refused(make_loader):
    class Dataset:
        element_spec = None

    Dataset.__module__ = "elsewhere.data"
    with pytest.raises(ConfigError, match="cannot read a Dataset"):
        make_loader(alone(), Dataset(), BatchPlan(4, 4))
