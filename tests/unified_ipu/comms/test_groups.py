"""Values, groups and messages of one world, over every transport."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from unified_ipu.errors import CollectiveError
from unified_ipu.testing.threads import run_ranks

pytestmark = pytest.mark.usefixtures("every_transport")

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=10,
)


@settings(max_examples=30)
@given(values=st.lists(JSON, min_size=1, max_size=4), data=st.data())
def test_values_arrive_as_they_were(values, data):
    root = data.draw(st.integers(0, len(values) - 1))

    def exchange(_, communicator):
        mine = values[communicator.rank]
        return communicator.all_gather_value(mine), communicator.broadcast_value(mine, root)

    for gathered, sent in run_ranks(len(values), exchange):
        assert gathered == values
        assert sent == values[root]


def test_values_longer_than_the_staging_area_arrive():
    texts = ["x" * 3_000_000, "", "y" * 2_000_000]

    def exchange(_, communicator):
        gathered = communicator.all_gather_value(texts[communicator.rank])
        return gathered == texts, communicator.all_reduce(np.arange(2)).tolist()

    assert run_ranks(3, exchange) == [(True, [0, 3])] * 3


@settings(max_examples=30)
@given(colors=st.lists(st.sampled_from(["a", "b", 3, None]), min_size=2, max_size=5))
def test_split_makes_one_group_a_color(colors):
    def run(_, communicator):
        group = communicator.split(colors[communicator.rank])
        if group is None:
            return None
        total = group.all_reduce(np.array([communicator.rank]))
        members = group.all_gather_value(communicator.rank)
        communicator.note("after")
        return members, group.rank, group.size, int(total[0])

    results = run_ranks(len(colors), run)
    for rank, result in enumerate(results):
        members = [other for other, color in enumerate(colors) if color == colors[rank]]
        if colors[rank] is None:
            assert result is None
        else:
            assert result == (members, members.index(rank), len(members), sum(members))


def test_split_orders_by_key_then_rank_and_splits_again():
    def run(_, communicator):
        group = communicator.split("all", key=-(communicator.rank // 2))
        half = group.split(group.rank % 2)
        return group.all_gather_value(communicator.rank), half.all_gather_value(communicator.rank)

    results = run_ranks(4, run)
    assert [members for members, _ in results] == [[2, 3, 0, 1]] * 4
    assert [half for _, half in results] == [[2, 0], [3, 1], [2, 0], [3, 1]]


def test_errors_in_a_group_name_ranks_of_the_world():
    def run(_, communicator):
        group = communicator.split(communicator.rank // 2)
        if communicator.rank < 2:
            return ""
        with pytest.raises(CollectiveError) as caught:
            group.barrier(f"of {communicator.rank}")
        return str(caught.value)

    texts = run_ranks(4, run)
    assert "rank 2: barrier 'of 2'; rank 3: barrier 'of 3'" in texts[2]


@settings(max_examples=25)
@given(
    shapes=st.lists(st.lists(st.integers(0, 4), max_size=3).map(tuple), min_size=1, max_size=6),
    dtype=st.sampled_from(["bool", "int8", "float16", "float32", "complex128"]),
)
def test_what_is_sent_is_received_in_order(shapes, dtype):
    arrays = [
        np.arange(int(np.prod(shape)) + 1)[1:].reshape(shape).astype(dtype) for shape in shapes
    ]

    def run(_, communicator):
        other = 1 - communicator.rank
        for index, array in enumerate(arrays):
            communicator.send(array, to=other, name=str(index))
        return [communicator.recv(source=other, name=str(i)) for i in range(len(arrays))]

    # Both send first: two slots hold the beginning of one message only.
    if len(shapes) > 1:
        arrays = arrays[:1]
    for received in run_ranks(2, run):
        for got, array in zip(received, arrays):
            assert got.dtype == array.dtype
            assert got.shape == array.shape
            np.testing.assert_array_equal(got, array)


def test_a_long_array_goes_through_a_pipe_and_into_out():
    array = np.random.default_rng(0).normal(size=(300, 1001))

    def run(_, communicator):
        if communicator.rank == 0:
            communicator.send(array, to=2)
            communicator.send(array.T, to=2, name="transposed")
            return None
        if communicator.rank == 1:
            return None
        out = np.empty((1001, 600)).T[::2]
        first = communicator.recv(source=0, out=out)
        assert first is out
        return first, communicator.recv(source=0, name="transposed")

    first, second = run_ranks(3, run)[2]
    np.testing.assert_array_equal(first, array)
    np.testing.assert_array_equal(second, array.T)


@pytest.mark.parametrize(
    ("out", "name", "said"),
    [
        (np.empty(4), "", "float64 (3,) 'grads' was sent, out is a float64 (4,)"),
        (np.empty(3, np.float32), "", "float64 (3,) 'grads' was sent, out is a float32 (3,)"),
        (None, "weights", "float64 (3,) 'grads' was sent, 'weights' is expected"),
    ],
)
def test_l4_a_message_that_does_not_fit_ends_the_job_on_both_ranks(out, name, said):
    def exchange(communicator):
        if communicator.rank == 1:
            communicator.recv(source=0, out=out, name=name)
        communicator.send(np.zeros(3), to=1, name="grads")
        communicator.barrier()

    def run(_, communicator):
        with pytest.raises(CollectiveError) as caught:
            exchange(communicator)
        return str(caught.value)

    texts = run_ranks(2, run)
    assert texts[0] == texts[1]
    assert f"recv on rank 1 from rank 0: {said}" in texts[0]


def test_l4_what_cannot_be_sent_is_an_error_on_both_ranks():
    def exchange(communicator):
        if communicator.rank == 1:
            communicator.recv(source=0)
        communicator.send(np.array([object()]), to=1)

    def run(_, communicator):
        with pytest.raises(CollectiveError) as caught:
            exchange(communicator)
        return str(caught.value)

    assert all("dtype object cannot be sent" in text for text in run_ranks(2, run))
