"""Training over c10d under the launchers that choose it: torchrun on two hosts, and our own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.adapters.unified_ipu_torch.c10d_processes import finish, free_port, start

TRAIN = Path(__file__).parent / "c10d_train.py"

pytestmark = [pytest.mark.timeout(200), pytest.mark.slow]


def test_two_agents_of_torchrun_train_as_one_process_does():
    agent = ["-m", "torch.distributed.run", "--nnodes", 2, "--nproc-per-node", 2]
    agent += ["--master-addr", "127.0.0.1", "--master-port", free_port()]
    train = [TRAIN, "--set", "comms.algorithm=hierarchical"]
    agents = [start([*agent, "--node-rank", node, *train], {}) for node in range(2)]
    (first, status), (_, other) = finish(agents, seconds=150)
    assert (status, other) == (0, 0), first
    found = [line for line in first.splitlines() if line.startswith("RESULT")]
    assert len(found) == 1, first
    (alone, status) = finish([start([TRAIN], {})])[0]
    assert status == 0, alone
    expected = next(line for line in alone.splitlines() if line.startswith("RESULT")).split()
    words = found[0].split()
    assert words[1:3] == ["hierarchical", "4"]
    assert words[3:-1] == expected[3:-1] == ["250", "of", "250", "samples,", "each", "once"]
    assert float(words[-1]) == pytest.approx(float(expected[-1]), rel=1e-4)


def test_c10d_is_chosen_explicitly_on_one_host():
    command = ["-m", "unified_ipu.cli.main", "run", "--set", "mesh.data=2"]
    output, status = finish([start([*command, "--set", "comms.transport=c10d", TRAIN], {})])[0]
    assert status == 0, output
    assert "RESULT direct 2 250 of 250 samples, each once" in output
