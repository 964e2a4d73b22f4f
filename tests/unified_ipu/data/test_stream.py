"""Loaders over streams: iterables that run in the data process."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest

from unified_ipu.comms import connect
from unified_ipu.data import stream
from unified_ipu.errors import ConfigError, DataError
from unified_ipu.events import Counters
from unified_ipu.plan import BatchPlan, DataSettings

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def start(make_loader):
    """A loader of the only rank over one of the streams."""

    def started(name, batch, **changes) -> Any:
        communicator = connect(rank=0, size=1, job="")
        return make_loader(communicator, stream(f"streams:{name}"), batch, **changes)

    return started


def read(loader):
    return [ids for call in loader for update in ids_of(call) for ids in update]


def ids_of(call):
    """Ids of each micro-batch of each update, padding included."""
    return [[micro.ids.tolist() for micro in update.micro_batches] for update in call.updates]


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.case("O-S6")
def test_l2_1_each_item_of_a_generator_is_delivered_once_over_three_ranks(
    run_ranks, make_loader, workers
):
    def rank(communicator):
        batch, settings = BatchPlan(3, 1, 3), DataSettings(workers=workers)
        source = stream("streams:twelve")
        with make_loader(communicator, source, batch, settings=settings) as loader:
            values = [
                micro.tree.tolist()
                for call in loader
                for update in call.updates
                for micro in update.micro_batches
            ]
            return [value for row in values for value in row], loader.certificate()

    results = run_ranks(3, rank)
    assert [values for values, _ in results] == [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8, 11]]
    for _, certificate in results:
        assert certificate.ok
        assert certificate.delivered == 12
        assert str(certificate) == "12 of 12 samples, each once"


def test_the_size_shows_when_an_epoch_has_ended(start):
    with start("by_epoch", BatchPlan(8, 4)) as loader:
        assert (loader.size, loader.num_updates) == (None, None)
        with pytest.raises(TypeError, match="no length before its epoch has ended"):
            len(loader)
        assert [ids_of(call) for call in loader] == [
            [[[0, 1, 2, 3], [4, 5, 6, 7]]],
            [[[8, 9, 10, 11], [12, 13, 14, 15]]],
            [[[16, 17, 18, 19], [20]]],
        ]
        assert (loader.size, loader.num_updates, len(loader)) == (21, 3, 3)
        assert str(loader.certificate()) == "21 of 21 samples, each once"
        assert len(list(loader)) == 3
        assert loader.size == 22
        assert (loader.epoch, loader.position) == (2, 0)


def test_the_function_is_called_once_an_epoch_with_epoch_and_seed(start):
    with start("by_epoch", BatchPlan(8, 4), seed=7) as loader:
        for epoch in (0, 1):
            rows = [m.tree for c in loader for u in c.updates for m in u.micro_batches]
            assert {k for tree in rows for k in tree["epoch"].tolist()} == {epoch}
            assert {k for tree in rows for k in tree["seed"].tolist()} == {7}
            assert [k for tree in rows for k in tree["x"][:, 1].tolist()] == [
                10 * k for k in range(21 + epoch)
            ]


@pytest.mark.parametrize("remainder", ["exact", "pad", "drop"])
def test_l2_the_ragged_end_is_agreed_by_all_ranks(run_ranks, make_loader, remainder):
    def rank(communicator):
        counters = Counters()
        with make_loader(
            communicator,
            stream("streams:by_epoch"),
            BatchPlan(12, 2, 3, 1, remainder),
            counters=counters,
        ) as loader:
            calls = [(ids_of(call), call.updates[0].samples) for call in loader]
            return calls, str(loader.certificate()), counters.as_dict()

    results = run_ranks(3, rank)
    first = [
        ([[[0, 1], [6, 7]]], 12),
        ([[[2, 3], [8, 9]]], 12),
        ([[[4, 5], [10, 11]]], 12),
    ]
    last = {
        "exact": [([[[12, 13], [18, 19]]], 9), ([[[14, 15], [20]]], 9), ([[[16, 17]]], 9)],
        "pad": [
            ([[[12, 13], [18, 19]]], 9),
            ([[[14, 15], [20, -1]]], 9),
            ([[[16, 17], [-1, -1]]], 9),
        ],
        "drop": None,
    }[remainder]
    for replica, (calls, _, _) in enumerate(results):
        assert calls == [first[replica], *([] if last is None else [last[replica]])]
    text = {
        "exact": "21 of 21 samples, each once",
        "pad": "21 of 21 samples, each once, 3 rows of padding",
        "drop": "12 of 21 samples, each once, 9 dropped",
    }[remainder]
    assert {certificate for _, certificate, _ in results} == {text}
    counted = {"exact": {}, "pad": {"samples_padded": 3}, "drop": {"samples_dropped": 9}}
    name, count = next(iter(counted[remainder].items()), ("samples_dropped", 0))
    assert all(counts.get(name, 0) == count for _, _, counts in results)


def test_padding_repeats_rows_of_the_update(start):
    with start("by_epoch", BatchPlan(8, 4, 1, 1, "pad")) as loader:
        trees = [
            micro.tree["x"][:, 0].tolist()
            for call in loader
            for micro in call.updates[0].micro_batches
        ]
    assert trees[-2:] == [[16, 17, 18, 19], [20, 20, 20, 20]]


def test_calls_hold_several_updates_and_never_span_epochs(start):
    with start("by_epoch", BatchPlan(4, 4, 1, 4)) as loader:
        for _ in range(2):
            calls = []
            for call in loader:
                calls.append([update.number for update in call.updates])
                assert [len(ids) for ids in ids_of(call)] == [1] * len(call.updates)
            assert calls == [[0, 1, 2, 3], [4, 5]]


def test_an_end_at_the_end_of_an_update_is_an_end(start):
    with start("sixteen", BatchPlan(8, 8)) as loader:
        for _ in range(2):
            assert [ids_of(call)[0] for call in loader] == [[list(range(8))], [list(range(8, 16))]]
        assert loader.certificate().ok


def test_l6_evaluation_of_a_stream_counts_each_sample_once_on_every_world(run_ranks, make_loader):
    def rank(communicator):
        batch = BatchPlan(4, 4, communicator.size)
        with make_loader(
            communicator, stream("streams:by_epoch"), batch, train=False, micro_batch_size=5
        ) as loader:
            passes = [[micro.ids.tolist() for micro in loader] for _ in range(2)]
            return passes, str(loader.certificate())

    tens = [list(range(start, min(start + 5, 21))) for start in range(0, 21, 5)]
    for size in (1, 2, 3):
        for replica, (passes, text) in enumerate(run_ranks(size, rank)):
            assert passes == [tens[replica::size]] * 2
            assert text == "21 of 21 samples, each once"


@pytest.mark.parametrize("per_call", [1, 2])
def test_l3_a_stream_is_resumed_by_skipping(start, per_call):
    with start("by_epoch", BatchPlan(8, 4, 1, per_call)) as loader:
        whole = [ids for call in loader for ids in ids_of(call)]
        loader.seek(0, 8)
        assert [ids for call in loader for ids in ids_of(call)] == whole[1:]
        assert str(loader.certificate()).startswith("13 of 21 samples, each once, counted from")
        assert (loader.epoch, loader.position) == (1, 0)


def test_l3_a_stream_that_was_at_its_end_has_nothing_left(start):
    for name, position in [("by_epoch", 21), ("sixteen", 16)]:
        with start(name, BatchPlan(8, 4)) as loader:
            loader.seek(0, position)
            assert list(loader) == []
            assert loader.epoch == 1
            assert len([ids_of(call) for call in loader]) == -(-loader.size // 8)


def test_l3_a_loop_that_is_broken_off_goes_on_with_the_next_call(start):
    with start("by_epoch", BatchPlan(4, 4)) as loader:
        seen = []
        for call in loader:
            seen += ids_of(call)
            if len(seen) == 2:
                break
        assert loader.position == 8
        seen += [ids for call in loader for ids in ids_of(call)]
        assert [k for update in seen for ids in update for k in ids] == list(range(21))
        assert str(loader.certificate()) == "21 of 21 samples, each once"


def test_a_call_may_be_cut_and_handed_out_again(start):
    with start("by_epoch", BatchPlan(4, 4, 1, 3)) as loader:
        call = next(iter(loader))
        assert [update.number for update in call.updates] == [0, 1, 2]
        assert loader.position_after(0) == 4
        list(call.updates[0].micro_batches)
        loader.seek(0, loader.position_after(0))
        seen = [ids for each in loader for update in ids_of(each) for ids in update]
        assert [k for ids in seen for k in ids] == list(range(4, 21))
        assert str(loader.certificate()) == "21 of 21 samples, each once"


def test_where_a_stream_stands_is_saved_and_loaded(start):
    with start("by_epoch", BatchPlan(8, 4)) as loader:
        calls = iter(loader)
        list(next(calls).updates[0].micro_batches)
        state = loader.state()
    with start("by_epoch", BatchPlan(8, 4)) as loader:
        loader.load_state(state)
        seen = [ids for call in loader for update in ids_of(call) for ids in update]
        assert [k for ids in seen for k in ids] == list(range(8, 21))
        assert str(loader.certificate()) == "21 of 21 samples, each once"


def test_an_endless_stream_is_read_as_far_as_it_is_asked_for(start):
    with start("endless", BatchPlan(8, 4)) as loader:
        calls = [ids_of(call) for call in islice(loader, 100)]
        assert calls[99][0][1] == [796, 797, 798, 799]
        certificate = loader.certificate()
        assert certificate.is_exact
        assert not certificate.is_finished


def test_an_error_of_the_iterable_reaches_the_rank_with_its_line(start):
    with start("fails", BatchPlan(4, 4)) as loader:
        with pytest.raises(DataError) as caught:
            read(loader)
    text = str(caught.value)
    assert "'streams:fails' failed in epoch 0, after " in text
    assert "ValueError: seventeen is bad" in text
    assert "streams.py" in text


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_iterable", "returned a int; expected what can be iterated over"),
        ("wrong_argument", r"takes 'path'; it is called as f\(\), f\(epoch\) or f\(epoch, seed\)"),
        ("ragged", r"stream: leaf  of sample 0 has shape \(1,\) but of sample 1 \(2,\)"),
        ("dataloader", "returned a Batches, whose elements are batches; return its dataset"),
        ("strings", "bools and numbers only"),
        ("no_such_function", "has no function 'no_such_function'"),
    ],
)
def test_what_cannot_be_dealt_is_refused_by_name(start, name, message):
    with pytest.raises(DataError, match=message):
        read(start(name, BatchPlan(6, 6)))


def test_an_iterator_that_is_used_up_is_refused(start):
    with start("used_up", BatchPlan(5, 5)) as loader:
        assert len([ids_of(call) for call in loader]) == 1
        with pytest.raises(DataError, match="iterator of the epoch before, which is used up"):
            list(loader)


def test_an_empty_stream_is_refused(start):
    for train in (True, False):
        with start("nothing", BatchPlan(4, 4), train=train) as loader:
            with pytest.raises(ConfigError, match="has 0 samples; expected at least 1"):
                list(loader)


def test_l2_drop_must_leave_an_update(start):
    with start("by_epoch", BatchPlan(32, 32, 1, 1, "drop")) as loader:
        with pytest.raises(ConfigError, match="21 samples are fewer than the global batch of 32"):
            list(loader)


def test_l3_a_stream_that_is_shorter_than_what_was_used_is_refused(start):
    with start("shrinks", BatchPlan(8, 8)) as loader:
        loader.seek(0, 16)
        with pytest.raises(DataError, match="ended after 10 samples, but 16 of it were used"):
            list(loader)
        loader.close()
    with start("shrinks", BatchPlan(8, 8)) as loader:
        loader.seek(0, 9)
        with pytest.raises(DataError, match="at its end after 9 samples, now it has 10"):
            list(loader)
