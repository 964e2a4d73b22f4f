"""One process may feed several replicas: the same micro-batches, in the order of their index."""

from __future__ import annotations

from typing import Any, Dict, List

import numpy as np
import pytest

from unified_ipu.data import arrays
from unified_ipu.data.pipeline_source import PipelineSource, StreamSource
from unified_ipu.errors import ConfigError
from unified_ipu.plan import BatchPlan, DataSettings

SIZE = 42
BATCH = BatchPlan(24, 3, num_replicas=4, updates_per_call=2, remainder="pad")
"""A = 2 on four replicas."""


def read(loader):
    """All calls of an epoch: number of the update to its micro-batches, (index, ids, weights)."""
    found: Dict[int, List[Any]] = {}
    for call in loader:
        for update in call.updates:
            found[update.number] = []
            for micro in update.micro_batches:
                rows = micro.tree if not isinstance(micro.tree, dict) else micro.tree["x"][:, 0]
                rows = rows[0] if isinstance(rows, tuple) else rows
                real = micro.ids >= 0
                assert np.asarray(rows)[real].tolist() == micro.ids[real].tolist()
                found[update.number].append((micro.index, micro.ids.tolist(), micro.rows))
    return found


def expected(first, local):
    """In the order of the source: what the process of replicas ``first`` and following gets."""
    found: Dict[int, List[Any]] = {}
    for update in range(2):
        found[update] = []
        for index in range(8):
            if not first <= index % 4 < first + local:
                continue
            positions = range(update * 24 + index * 3, update * 24 + index * 3 + 3)
            ids = [k if k < SIZE else -1 for k in positions]
            found[update].append((index, ids, 3))
    return found


SOURCES = {
    "in this process": (lambda: arrays(np.arange(SIZE)), DataSettings()),
    "a data process": (
        lambda: PipelineSource("pipelines:NumpySource", "pipelines:train", SIZE, batched=True),
        DataSettings(isolate="always"),
    ),
    "three data processes": (
        lambda: PipelineSource("pipelines:NumpySource", "pipelines:train", SIZE, batched=True),
        DataSettings(isolate="always", workers=3),
    ),
    "a pipeline beside the model": (
        lambda: PipelineSource("pipelines:NumpySource", "pipelines:train", SIZE, batched=True),
        DataSettings(isolate="never"),
    ),
    "a stream": (lambda: StreamSource("streams:forty_two"), DataSettings()),
}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("local", [1, 2, 4])
@pytest.mark.parametrize("name", SOURCES)
def test_l2_5_a_process_gets_the_micro_batches_of_all_its_replicas(
    run_ranks, make_loader, name, local
):
    make, settings = SOURCES[name]

    def rank(communicator):
        with make_loader(
            communicator,
            make(),
            BATCH,
            shuffle=False,
            replica=communicator.rank * local,
            replicas_per_process=local,
            settings=settings,
        ) as loader:
            return [read(loader), read(loader)], str(loader.certificate())

    for index, (epochs, certificate) in enumerate(run_ranks(4 // local, rank)):
        assert epochs == [expected(index * local, local)] * 2
        assert certificate == "42 of 42 samples, each once, 6 rows of padding"


def test_l2_8_in_evaluation_micro_batches_go_round_all_replicas(run_ranks, make_loader):
    batch = BatchPlan(8, 2, num_replicas=4)

    def rank(communicator):
        loader = make_loader(
            communicator,
            arrays(np.arange(13)),
            batch,
            train=False,
            replica=communicator.rank * 2,
            replicas_per_process=2,
        )
        assert len(loader) == len(list(loader))
        return [micro.ids.tolist() for micro in loader], loader.certificate().ok

    # Micro-batches 0, 1, 4, 5 of seven, and 2, 3, 6.
    assert run_ranks(2, rank) == [
        ([[0, 1], [2, 3], [8, 9], [10, 11]], True),
        ([[4, 5], [6, 7], [12]], True),
    ]


def test_a_run_that_is_resumed_inside_an_epoch_goes_on_for_all_replicas(run_ranks, make_loader):
    def rank(communicator):
        def made():
            return make_loader(
                communicator,
                arrays(np.arange(100)),
                BatchPlan(24, 3, num_replicas=4, remainder="drop"),
                replica=communicator.rank * 2,
                replicas_per_process=2,
            )

        whole, broken = made(), made()
        everything = read(whole)
        first = next(iter(broken))
        ids = [micro.ids.tolist() for micro in first.updates[0].micro_batches]
        assert [row[1] for row in everything[0]] == ids
        again = made()
        again.load_state(broken.state())
        assert read(again) == {number: everything[number] for number in (1, 2, 3)}
        return str(again.certificate())

    assert run_ranks(2, rank) == ["96 of 100 samples, each once, 4 dropped"] * 2


def test_replicas_that_nobody_or_two_processes_feed_are_refused(run_ranks, make_loader):
    def rank(communicator):
        with pytest.raises(ConfigError, match=r"expected \[0, 2\], 2 from each on"):
            make_loader(
                communicator, arrays(np.arange(50)), BATCH, replica=0, replicas_per_process=2
            )
        with pytest.raises(ConfigError, match="do not agree on replicas_per_process"):
            make_loader(
                communicator,
                arrays(np.arange(50)),
                BATCH,
                replica=communicator.rank * 2,
                replicas_per_process=1 + communicator.rank,
            )
        return True

    assert run_ranks(2, rank) == [True, True]
