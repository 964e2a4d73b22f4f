from __future__ import annotations

import json

import numpy as np
import pytest

from unified_ipu.comms import connect
from unified_ipu.data import Loader
from unified_ipu.errors import ConfigError
from unified_ipu.plan import BatchPlan
from unified_ipu.testing.threads import run_ranks


def loader(communicator, *, size=10, batch=4, seed=1, train=True, **settings):
    plan = BatchPlan(
        global_batch_size=batch,
        micro_batch_size=2,
        num_replicas=communicator.size,
        **settings,
    )
    return Loader(
        (np.arange(size),),
        batch=plan,
        replica=communicator.rank,
        communicator=communicator,
        seed=seed,
        shuffle=True,
        train=train,
    )


def ids(call):
    return [n for update in call.updates for m in update.micro_batches for n in m.ids.tolist()]


def world(size, body):
    return run_ranks(size, lambda _world, communicator: body(communicator), timeout_seconds=20.0)


def joined(results):
    return sorted(one for part in results for one in part)


def unbroken(communicator):
    """Give the ids of each call of two epochs."""
    one = loader(communicator)
    return [ids(call) for _ in range(2) for call in one]


def broken_off(communicator, num_calls):
    """Read so many calls, and give the state after them as text."""
    one, num_seen = loader(communicator), 0
    while True:
        for call in one:
            ids(call)
            num_seen += 1
            if num_seen == num_calls:
                return json.dumps(one.state())


def continued(communicator, state):
    """Go on from a state to the end of the second epoch; ids of each call, certificates."""
    one, found, certificates = loader(communicator), [], []
    one.load_state(state)
    while one.epoch < 2:
        found += [ids(call) for call in one]
        certificates.append(str(one.certificate()))
    return found, certificates


@pytest.mark.parametrize(("before", "after"), [(1, 1), (2, 2), (1, 3), (3, 1), (2, 4)])
@pytest.mark.parametrize("num_calls", [1, 2, 3, 4, 5])
def test_l2_14_a_loaded_position_goes_on_with_the_same_samples_and_their_count(
    before, after, num_calls
):
    expected = [joined(parts) for parts in zip(*world(before, unbroken))]
    states = world(before, lambda communicator: broken_off(communicator, num_calls))
    assert set(states) == {states[0]}
    results = world(after, lambda communicator: continued(communicator, json.loads(states[0])))
    got = [joined(parts) for parts in zip(*(found for found, _ in results))]
    assert got == expected[num_calls:]
    for _, certificates in results:
        assert certificates == ["10 of 10 samples, each once"] * (2 - num_calls // 3)


def test_l2_14_rows_that_were_never_read_are_missing_after_a_restart_too():
    communicator = connect(rank=0, size=1, job="")
    one = loader(communicator)
    calls = iter(one)
    ids(next(calls))
    next(calls)
    state = one.state()
    assert (state["position"], state["delivered"]["delivered"]) == (8, 4)
    two = loader(communicator)
    two.load_state(state)
    assert [len(ids(call)) for call in two] == [2]
    assert "6 of 10 samples, 4 missing" in str(two.certificate())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"size": 12}, "size is 12, saved with 10"),
        ({"batch": 2}, "global_batch_size is 2, saved with 4"),
        ({"seed": 5}, "seed is 5, saved with 1"),
        ({"remainder": "drop"}, "remainder is drop, saved with exact"),
    ],
)
def test_a_position_of_other_data_is_refused_with_the_difference(changes, said):
    communicator = connect(rank=0, size=1, job="")
    state = loader(communicator).state()
    other = loader(communicator, **changes)
    assert other.differences(state) == [said]
    with pytest.raises(ConfigError, match=said):
        other.load_state(state)


def test_an_evaluation_loader_has_no_position():
    communicator = connect(rank=0, size=1, job="")
    one = loader(communicator, train=False)
    with pytest.raises(ConfigError, match="evaluation has no position to be saved"):
        one.state()
    with pytest.raises(ConfigError, match="evaluation has no position to be restored"):
        one.load_state({})
