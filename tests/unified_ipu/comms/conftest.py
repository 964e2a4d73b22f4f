"""The same tests over every transport that is there, ranks being threads."""

from __future__ import annotations

import importlib.util

import pytest

from tests.unified_ipu.comms.arranged_groups import arranged
from unified_ipu.testing import threads

TRANSPORTS = ["shm"] + (["c10d"] if importlib.util.find_spec("torch") else [])
ALGORITHMS = TRANSPORTS + ["ring", "hierarchical"] * (len(TRANSPORTS) - 1)


class KeptGroups:
    """Groups that serve many examples: gloo takes a quarter of a second to let one go."""

    def __init__(self, make):
        self._make = make
        self._kept = {}

    def __call__(self, size, *, timeout_seconds=60.0):
        group = self._kept.pop(size, [])
        if not group or not all(map(is_in_step, group)):
            end(group)
            group = self._make(size, timeout_seconds=timeout_seconds)
            for communicator in group:
                communicator.really_close, communicator.close = communicator.close, do_nothing
        self._kept[size] = group
        return group

    def close(self):
        for group in self._kept.values():
            end(group)


def is_in_step(communicator):
    return communicator.size == 1 or not (
        communicator._exchange._inside or communicator._wire._watch.board.gave_up
    )


def end(group):
    for communicator in group:
        communicator.really_close()


def do_nothing():
    pass


@pytest.fixture(scope="module", params=TRANSPORTS)
def every_transport(request):
    """Make ``run_ranks`` and ``local_group`` of a file those of one transport after another."""
    if request.param == "shm":
        yield "shm"
        return
    from unified_ipu_torch.c10d import local_group

    kept = KeptGroups(local_group)
    with pytest.MonkeyPatch.context() as patch:
        if request.module.__name__.endswith("test_agreement"):
            # It looks at the numbers of collectives, and makes groups itself.
            patch.setattr(threads, "local_group", local_group)
            patch.setattr(request.module, "local_group", local_group)
        else:
            patch.setattr(threads, "local_group", kept)
        yield "c10d"
    kept.close()


@pytest.fixture(scope="module", params=ALGORITHMS)
def every_algorithm(request):
    """Make ``run_ranks`` of a file that of one way to sum gradients after another."""
    if request.param == "shm":
        yield "shm"
        return
    from unified_ipu_torch.c10d import local_group

    is_direct = request.param == "c10d"
    kept = KeptGroups(local_group if is_direct else arranged(local_group, request.param))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threads, "local_group", kept)
        yield request.param
    kept.close()
