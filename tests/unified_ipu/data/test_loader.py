"""Loaders: the data law over all ranks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from unified_ipu.comms import connect
from unified_ipu.data import arrays, dataset
from unified_ipu.errors import ConfigError, DataError
from unified_ipu.events import Counters, PhaseClock
from unified_ipu.plan import BatchPlan, DataSettings


@pytest.fixture
def alone():
    return connect(rank=0, size=1, job="")


def table(size):
    return arrays(np.arange(size), np.arange(size) * 10)


def read(loader):
    """All calls of a pass: per update the real ids, the padded ids and rows of micro-batches."""
    updates = {}
    for call in loader:
        for update in call.updates:
            micros = list(update.micro_batches)
            for micro in micros:
                x, y = micro.tree
                assert micro.rows == len(x) == len(micro.ids) > 0
                assert np.array_equal(y, x * 10)
                real = micro.ids >= 0
                assert np.array_equal(x[real], micro.ids[real])
                if micro.sample_weight is None:
                    assert real.all()
                else:
                    assert micro.sample_weight.dtype == np.float32
                    assert np.array_equal(micro.sample_weight, real.astype(np.float32))
            updates[update.number] = [(m.index, m.tree[0].tolist(), m.ids.tolist()) for m in micros]
    return updates


def unread(call):
    """Samples, rows and ids of the updates of a call that nobody has read yet."""
    return [
        (update.samples, [(m.tree[0].tolist(), m.ids.tolist()) for m in update.micro_batches])
        for update in call.updates
    ]


def brute_force(size, batch, ids):
    """The samples of every micro-batch, straight from the words of the law."""
    full = size // batch.global_batch_size
    count = full if batch.remainder == "drop" else -(-size // batch.global_batch_size)
    expected = {}
    for update in range(count):
        members = ids[update * batch.global_batch_size : (update + 1) * batch.global_batch_size]
        for start in range(0, len(members), batch.micro_batch_size):
            index = start // batch.micro_batch_size
            expected[update, index] = members[start : start + batch.micro_batch_size]
    return expected


@st.composite
def cases(draw):
    """A data set and a batch plan that fit together."""
    micro, replicas = draw(st.integers(1, 12)), draw(st.integers(1, 4))
    remainder = draw(st.sampled_from(["exact", "drop", "pad"]))
    global_batch, size = draw(st.integers(1, 30)), draw(st.integers(1, 90))
    if remainder == "pad":
        global_batch = micro * replicas * draw(st.integers(1, 3))
    if remainder == "drop":
        size = max(size, global_batch)
    return size, BatchPlan(global_batch, micro, replicas, draw(st.integers(1, 5)), remainder)


def order_of_epoch(make_loader, size, *, shuffle):
    """The whole epoch as one micro-batch of one replica."""
    alone = connect(rank=0, size=1, job="")
    return read(make_loader(alone, table(size), BatchPlan(size, size), shuffle=shuffle))[0][0][1]


def check_micro_batches(replica, updates, batch, ids):
    """Return the real samples by (update, index); check what else a replica was given."""
    seen = {}
    for update, micros in updates.items():
        members = ids[update * batch.global_batch_size :][: batch.global_batch_size]
        for index, rows, got in micros:
            assert index % batch.num_replicas == replica
            assert set(rows) <= set(members)
            assert batch.remainder != "pad" or len(rows) == batch.micro_batch_size
            real = [k for k in got if k >= 0]
            if real:
                seen[update, index] = real
    return seen


@settings(max_examples=40)
@given(case=cases(), shuffle=st.booleans())
def test_l2_every_sample_is_used_exactly_once_whatever_the_world(
    run_ranks, make_loader, case, shuffle
):
    size, batch = case

    def rank(communicator):
        loader = make_loader(communicator, table(size), batch, shuffle=shuffle)
        return read(loader), loader.certificate(), (loader.epoch, loader.position)

    results = run_ranks(batch.num_replicas, rank)
    ids = order_of_epoch(make_loader, size, shuffle=shuffle)
    assert shuffle or ids == list(range(size))
    seen = {}
    for replica, (updates, _, place) in enumerate(results):
        assert place == (1, 0)
        seen.update(check_micro_batches(replica, updates, batch, ids))
    assert seen == brute_force(size, batch, ids)
    certificates = [certificate for _, certificate, _ in results]
    assert certificates == [certificates[0]] * batch.num_replicas
    dropped = size % batch.global_batch_size if batch.remainder == "drop" else 0
    padded = -size % batch.global_batch_size if batch.remainder == "pad" else 0
    assert certificates[0].ok
    assert certificates[0].delivered == size - dropped
    assert (certificates[0].dropped, certificates[0].padded) == (dropped, padded)


def test_l2_update_takes_its_positions_and_micro_batches_go_round(run_ranks, make_loader):
    batch = BatchPlan(64, 16, 3)

    def rank(communicator):
        updates = read(make_loader(communicator, table(64), batch, shuffle=False))
        return [rows for _, rows, _ in updates[0]]

    ranks = run_ranks(3, rank)
    assert [[len(rows) for rows in micros] for micros in ranks] == [[16, 16], [16], [16]]
    assert ranks[0] == [list(range(16)), list(range(48, 64))]
    assert ranks[2] == [list(range(32, 48))]


def test_calls_hold_updates_per_call_and_never_span_epochs(alone, make_loader):
    loader = make_loader(alone, table(10), BatchPlan(2, 2, 1, 3))
    calls = [[update.number for update in call.updates] for call in loader]
    assert calls == [[0, 1, 2], [3, 4]]
    assert len(loader) == 2
    assert loader.num_updates == 5
    assert [update.samples for call in loader for update in call.updates] == [2] * 5


def test_the_position_moves_when_a_call_is_handed_out_and_the_epoch_at_its_end(alone, make_loader):
    loader = make_loader(alone, table(10), BatchPlan(4, 4))
    places = [(loader.epoch, loader.position, call.epoch) for call in loader]
    assert places == [(0, 4, 0), (0, 8, 0), (0, 10, 0)]
    assert (loader.epoch, loader.position) == (1, 0)


def test_a_broken_off_epoch_goes_on_where_it_stopped(alone, make_loader):
    batch = BatchPlan(4, 2)
    whole = read(make_loader(alone, table(18), batch))
    loader = make_loader(alone, table(18), batch)
    parts = {}
    for call in loader:
        parts.update({u.number: [m.ids.tolist() for m in u.micro_batches] for u in call.updates})
        if loader.position == 8:
            break
    assert str(loader.certificate()) == "8 of 18 samples, each once, not finished"
    assert not loader.certificate().ok
    for call in loader:
        parts.update({u.number: [m.ids.tolist() for m in u.micro_batches] for u in call.updates})
    assert parts == {u: [ids for _, _, ids in micros] for u, micros in whole.items()}
    assert str(loader.certificate()) == "18 of 18 samples, each once"
    assert loader.certificate().ok


def test_l3_seek_continues_with_the_same_samples(alone, make_loader):
    batch = BatchPlan(4, 2)
    loader = make_loader(alone, table(18), batch)
    read(loader)
    second = read(loader)
    resumed = make_loader(alone, table(18), batch)
    resumed.seek(1, 8)
    assert read(resumed) == {u: micros for u, micros in second.items() if u >= 2}
    assert (resumed.epoch, resumed.position) == (2, 0)
    text = "10 of 18 samples, each once, counted from position 8 on"
    assert str(resumed.certificate()) == text


def test_seek_to_the_end_goes_on_with_the_next_epoch(alone, make_loader):
    loader = make_loader(alone, table(18), BatchPlan(4, 2))
    loader.seek(0, 18)
    assert {call.epoch for call in loader} == {1}


def test_seek_back_inside_of_a_call_hands_out_again_what_was_not_read(alone, make_loader):
    loader = make_loader(alone, table(12), BatchPlan(2, 2, 1, 4), shuffle=False)
    seen = []
    for call in loader:
        if call.updates[0].number == 0:
            loader.seek(0, 4)
            call_updates = call.updates[:2]
        else:
            call_updates = call.updates
        seen += [m.ids.tolist() for u in call_updates for m in u.micro_batches]
    assert seen == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10, 11]]
    assert loader.certificate().ok


@pytest.mark.parametrize(("epoch", "position"), [(0, 3), (0, 20), (-1, 0), (0, -4)])
def test_seek_to_the_middle_of_an_update_is_refused(alone, make_loader, epoch, position):
    with pytest.raises(ConfigError, match="multiple of the global batch 4 up to 18"):
        make_loader(alone, table(18), BatchPlan(4, 2)).seek(epoch, position)


def test_micro_batches_that_nobody_reads_are_missing_in_the_certificate(alone, make_loader):
    counters = Counters()
    loader = make_loader(
        alone, table(12), BatchPlan(4, 2), shuffle=False, counters=counters, seed=1
    )
    for call in loader:
        micros = iter(call.updates[0].micro_batches)
        if call.updates[0].number != 1:
            next(micros)
    certificate = loader.certificate()
    assert (
        str(certificate) == "4 of 12 samples, 8 missing, 0 duplicated, ids 2, 3, 4, 5, 6, 7, 10, 11"
    )
    assert certificate.deviations == (2, 3, 4, 5, 6, 7, 10, 11)
    assert not certificate.ok
    assert counters["samples_skipped"] == 8


def test_micro_batches_cannot_be_read_after_their_call(alone, make_loader):
    loader = make_loader(alone, table(12), BatchPlan(4, 2))
    calls = iter(loader)
    old = next(calls).updates[0].micro_batches
    next(calls)
    with pytest.raises(DataError, match="update 0 were asked for after"):
        next(iter(old))


def test_two_loops_over_one_loader_are_an_error(alone, make_loader):
    loader = make_loader(alone, table(12), BatchPlan(4, 2))
    first = iter(loader)
    next(first)
    next(iter(loader))
    with pytest.raises(DataError, match="another loop"):
        next(first)


@pytest.mark.case("O-S7")
def test_l2_epochs_differ_and_a_new_run_repeats_them(run_ranks, make_loader):
    def rank(communicator):
        loader = make_loader(communicator, table(10), BatchPlan(4, 2, 2), seed=0)
        return [read(loader), read(loader)]

    first, again = run_ranks(2, rank), run_ranks(2, rank)
    assert first == again
    epochs = [
        [k for updates in ranks for micros in updates.values() for _, _, ids in micros for k in ids]
        for ranks in zip(*first)
    ]
    assert [sorted(ids) for ids in epochs] == [list(range(10))] * 2
    assert epochs[0] != epochs[1]


@pytest.mark.case("O-S5")
def test_l2_nothing_is_dropped_unless_asked_for_and_then_it_is_reported(run_ranks, make_loader):
    def rank(communicator, batch):
        counters = Counters()
        loader = make_loader(communicator, table(100), batch, counters=counters)
        updates = read(loader)
        rows = sum(len(ids) for micros in updates.values() for _, _, ids in micros)
        return rows, len(updates), len(loader), str(loader.certificate()), counters.as_dict()

    keep = run_ranks(1, lambda c: rank(c, BatchPlan(16, 16)))
    assert keep == [(100, 7, 7, "100 of 100 samples, each once", {})]
    drop = run_ranks(1, lambda c: rank(c, BatchPlan(16, 16, remainder="drop")))
    text = "96 of 100 samples, each once, 4 dropped"
    assert drop == [(96, 6, 6, text, {"samples_dropped": 4})]
    both = run_ranks(2, lambda c: rank(c, BatchPlan(12, 2, 2, remainder="drop")))
    assert sum(rows for rows, *_ in both) == 96
    assert both[0][1:] == both[1][1:] == (8, 8, text, {"samples_dropped": 4})


def test_padding_repeats_real_rows_with_weight_zero_and_is_reported(run_ranks, make_loader):
    def rank(communicator):
        counters = Counters()
        loader = make_loader(
            communicator,
            table(6),
            BatchPlan(8, 2, 2, remainder="pad"),
            shuffle=False,
            counters=counters,
        )
        updates = [update for call in loader for update in unread(call)]
        return updates, counters.as_dict()

    first, second = run_ranks(2, rank)
    assert first == ([(6, [([0, 1], [0, 1]), ([4, 5], [4, 5])])], {"samples_padded": 2})
    assert second == ([(6, [([2, 3], [2, 3]), ([0, 1], [-1, -1])])], {"samples_padded": 2})


def test_the_certificate_does_not_depend_on_the_world(run_ranks, make_loader):
    def rank(communicator, replicas):
        loader = make_loader(communicator, table(50), BatchPlan(8, 3, replicas))
        read(loader)
        return loader.certificate()

    results = [run_ranks(r, lambda c, r=r: rank(c, r))[0] for r in (1, 2, 3)]
    assert len({str(certificate) for certificate in results}) == 1
    assert len({certificate.digest for certificate in results}) == 1


def test_loaders_that_differ_between_ranks_are_refused_on_every_rank(run_ranks, make_loader):
    def rank(communicator):
        size = 10 + communicator.rank
        with pytest.raises(ConfigError, match=r"do not agree on size: got \[10, 11\]"):
            make_loader(communicator, table(size), BatchPlan(4, 2, 2))

    run_ranks(2, rank)


def test_two_ranks_that_feed_one_replica_are_refused(run_ranks, make_loader):
    def rank(communicator):
        with pytest.raises(ConfigError, match=r"replicas \[0, 0\]"):
            make_loader(communicator, table(10), BatchPlan(4, 2, 2), replica=0)

    run_ranks(2, rank)


@pytest.mark.case("O-S2")
def test_a_tiny_data_set_trains_nowhere_silently(run_ranks, make_loader):
    def rank(communicator):
        with pytest.raises(ConfigError, match=r"4 samples.*9"):
            make_loader(communicator, table(4), BatchPlan(9, 1, 3, remainder="drop"))

    run_ranks(3, rank)


def test_micro_batch_size_of_training_is_the_plans(alone, make_loader):
    make_loader(alone, table(10), BatchPlan(4, 2), micro_batch_size=2)
    with pytest.raises(ConfigError, match="got 3 for a train loader, but the plan has 2"):
        make_loader(alone, table(10), BatchPlan(4, 2), micro_batch_size=3)
    with pytest.raises(ConfigError, match="got 0"):
        make_loader(alone, table(10), BatchPlan(4, 2), micro_batch_size=0, train=False)


@pytest.mark.case("O-I4")
def test_batches_that_are_kept_are_never_overwritten(alone, make_loader):
    source = arrays(np.arange(6))
    loader = make_loader(alone, source, BatchPlan(2, 2), shuffle=False)
    kept = [m.tree for call in loader for u in call.updates for m in u.micro_batches]
    assert [batch.tolist() for batch in kept] == [[0, 1], [2, 3], [4, 5]]


def test_time_spent_on_batches_counts_as_data(alone, make_loader):
    clock = PhaseClock()
    read(make_loader(alone, table(10), BatchPlan(4, 2), clock=clock))
    assert clock.seconds()["data"] > 0


def test_an_epoch_of_a_billion_samples_starts_at_once_and_keeps_no_table(alone, make_loader):
    class Huge:
        size = 10**9

        def fetch(self, ids):
            return ids.copy()

    loader = make_loader(alone, Huge(), BatchPlan(64, 16))
    call = next(iter(loader))
    ids = [m.ids.tolist() for m in call.updates[0].micro_batches]
    assert len({k for row in ids for k in row}) == 64
    assert str(loader.certificate()) == "64 of 1000000000 samples, each once, not finished"
    loader.seek(3, 64 * 10_000_000)
    assert next(iter(loader)).updates[0].number == 10_000_000
    evaluation = make_loader(alone, Huge(), BatchPlan(64, 16), train=False)
    assert next(iter(evaluation)).ids.tolist() == list(range(16))
    assert len(evaluation) == 62_500_000


def test_a_closed_loader_says_so(alone, make_loader):
    loader = make_loader(alone, dataset([1, 2, 3]), BatchPlan(2, 2))
    loader.close()
    loader.close()
    with pytest.raises(DataError, match="closed"):
        read(loader)


def test_isolation_settings_do_not_touch_in_process_sources(alone, make_loader):
    settings_of_never = DataSettings(isolate="never")
    with make_loader(alone, arrays(np.arange(4)), BatchPlan(2, 2), settings=settings_of_never) as x:
        assert len(list(x)) == 2
