"""What ranks tell each other about their adapters before a model is built."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from unified_ipu.adapter import Job, TensorSpec, optim
from unified_ipu.errors import ConfigError
from unified_ipu.session.mixing import (
    Mix,
    agree_on_mix,
    check_can_rename,
    refuse_mixed,
    under_canonical_names,
)
from unified_ipu.testing.threads import run_ranks


class AdamW:  # of a framework
    """An optimizer that is not ours."""


def outcomes(adapters, job_of):
    """The mix, or the message of the error, on each rank."""

    def body(world, communicator):
        try:
            return agree_on_mix(
                job_of(world.rank), adapter=adapters[world.rank], communicator=communicator
            )
        except ConfigError as error:
            return str(error)

    return run_ranks(len(adapters), body)


def test_all_ranks_know_all_adapters():
    sgd = optim.SGD(lr=0.1)
    (mix, other) = outcomes(["a", "b"], lambda rank: Job(None, sgd))
    assert mix == other == Mix(("a", "b"), is_renamed=False)
    assert mix.is_mixed
    assert mix.named(1) == "rank 1 (b)"
    (mix, _) = outcomes(["a", "a"], lambda rank: Job(None, sgd, names={} if rank else None))
    assert (mix.is_mixed, mix.is_renamed) == (False, True)


def test_evaluation_only_goes_with_any_adapters():
    assert all(mix.is_mixed for mix in outcomes(["a", "b"], lambda rank: Job(None)))


def test_native_optimizers_and_schedules_are_refused_in_a_mixed_world_only():
    for text in outcomes(["a", "b"], lambda rank: Job(None, AdamW())):
        assert text.startswith("rank 0 (a) has the optimizer AdamW of its framework")
    schedule = SimpleNamespace(step=None)
    for text in outcomes(["a", "b"], lambda rank: Job(None, optim.SGD(0.1), schedule=schedule)):
        assert text.startswith("rank 0 (a) has the schedule SimpleNamespace of its framework")
    assert all(
        isinstance(mix, Mix)
        for mix in outcomes(["a", "a"], lambda rank: Job(None, AdamW(), schedule=schedule))
    )


@pytest.mark.parametrize("adapters", [["a", "a"], ["a", "b"]])
def test_other_settings_of_our_optimizers_are_refused(adapters):
    for text in outcomes(adapters, lambda rank: Job(None, optim.Adam(0.1, eps=1e-8 * (1 + rank)))):
        assert "rank 0 (a) has the optimizer Adam(lr=0.1, " in text
        assert "eps=2e-08" in text


class Replica:
    counts_samples = True

    def __init__(self, *, buffers=(), holds_collectives=False):
        self.holds_collectives = holds_collectives
        self._buffers = buffers

    def tensors(self):
        buffers = [
            TensorSpec(name, (2,), "float32", role="buffer", trainable=False, sync=sync)
            for name, sync in self._buffers
        ]
        return [TensorSpec("w", (2, 2), "float32"), *buffers]


def wrapped(adapters, replica_of, names_of=lambda rank: None):
    def body(world, communicator):
        try:
            return under_canonical_names(
                replica_of(world.rank), names_of(world.rank), Mix(tuple(adapters)), communicator
            )
        except ConfigError as error:
            return str(error)

    return run_ranks(len(adapters), body)


def test_axes_are_turned_only_where_ranks_differ_in_them():
    turned = {"w": ["w", "AB->BA"]}
    for names_of, expected in (
        (lambda rank: turned if rank else None, True),
        (lambda rank: turned, False),
        (lambda rank: {}, False),
    ):
        for adapters in (["a", "b"], ["a", "a"]):
            found = wrapped(adapters, lambda rank: Replica(), names_of)
            assert [replica.is_transposed for replica in found] == [expected] * 2


def test_buffers_that_other_frameworks_do_not_keep_stay_private_but_statistics_do_not():
    buffers = [[("count", "first"), ("scale", "first"), ("mean", "mean")], [("scale", "first")]]
    first, second = wrapped(["a", "b"], lambda rank: Replica(buffers=buffers[rank]))
    assert {s.name: s.sync for s in first.tensors() if s.role == "buffer"} == {
        "count": "none",
        "mean": "mean",  # the comparison of tensors will show it
        "scale": "first",
    }
    assert [s.sync for s in second.tensors()] == ["first", "first"]
    first, _ = wrapped(["a", "a"], lambda rank: Replica(buffers=buffers[rank]))
    assert [s.sync for s in first.tensors() if s.name == "count"] == ["first"]


def test_collectives_of_a_model_are_refused_beside_other_adapters_only():
    found = wrapped(["a", "b"], lambda rank: Replica(holds_collectives=rank == 1))
    assert all("the model of rank 1 (b) runs collectives" in text for text in found)
    found = wrapped(["a", "a"], lambda rank: Replica(holds_collectives=True))
    assert all(replica.holds_collectives for replica in found)


def test_devices_that_run_whole_calls_take_no_names():
    executor = SimpleNamespace()
    check_can_rename(executor, Mix(("a", "a")))
    for mix in (Mix(("a", "b")), Mix(("a",), is_renamed=True)):
        with pytest.raises(ConfigError, match="host targets only"):
            check_can_rename(executor, mix)


def test_what_is_not_built_for_a_mixed_world_is_refused_there():
    refuse_mixed(Mix(("a", "a")), "this", "do that")
    with pytest.raises(ConfigError, match=r"this is not built .* \(a, b\); do that"):
        refuse_mixed(Mix(("a", "b", "a")), "this", "do that")
