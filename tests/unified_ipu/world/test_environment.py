"""The world as launchers tell it through the environment."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from hypothesis import given, strategies as st

from unified_ipu.errors import ConfigError
from unified_ipu.world import (
    Handover,
    World,
    current_environment,
    read_world,
    world_variables,
)

# Recorded: torchrun of torch 2.13, rank 1 of `torchrun --nproc-per-node 2`.
TORCHRUN = {
    "GROUP_RANK": "0",
    "GROUP_WORLD_SIZE": "1",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "34539",
    "RANK": "1",
    "ROLE_RANK": "1",
    "TORCHELASTIC_MAX_RESTARTS": "0",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "TORCHELASTIC_RUN_ID": "0a7e4021-f60e-44bf-b87e-92cc17abb972",
    "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    "WORLD_SIZE": "2",
}
TWO_HOSTS = {
    **TORCHRUN,
    "RANK": "5",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "8",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_RANK": "1",
    "TORCHELASTIC_RUN_ID": "night",
}
# From the documentation of Open MPI 4.1: what mpirun sets for rank 3 of 4 on one host.
OPENMPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "PMIX_NAMESPACE": "3223322625",
}
OURS = {
    "UNIFIED_IPU_RANK": "1",
    "UNIFIED_IPU_LOCAL_RANK": "1",
    "UNIFIED_IPU_WORLD_SIZE": "3",
    "UNIFIED_IPU_LOCAL_WORLD_SIZE": "3",
    "UNIFIED_IPU_JOB": "4f2a",
}


def test_nothing_set_is_a_world_of_one():
    assert read_world({}) == World()


def test_ours_is_read():
    assert read_world(OURS) == World(1, 1, 3, 3, launcher="unified-ipu", job="unified-ipu-4f2a")


def test_torchrun_on_one_host_is_read():
    world = read_world(TORCHRUN)
    assert (world.rank, world.local_rank, world.world_size, world.local_world_size) == (1, 1, 2, 2)
    assert (world.node_rank, world.launcher) == (0, "torchrun")
    assert world.job.startswith(f"torchrun-localhost-34539-{TORCHRUN['TORCHELASTIC_RUN_ID']}-0-")


def test_torchrun_on_two_hosts_names_the_same_job_on_both():
    world = read_world(TWO_HOSTS)
    assert (world.rank, world.local_rank, world.node_rank) == (5, 1, 1)
    assert (world.world_size, world.local_world_size) == (8, 4)
    assert world.job == "torchrun-localhost-34539-night-0"


def test_a_restart_is_another_job():
    again = {**TWO_HOSTS, "TORCHELASTIC_RESTART_COUNT": "1"}
    assert read_world(again).job != read_world(TWO_HOSTS).job


def test_open_mpi_is_read():
    assert read_world(OPENMPI) == World(3, 3, 4, 4, launcher="openmpi", job="openmpi-3223322625")


def test_rank_and_world_size_by_hand_mean_one_host():
    world = read_world({"RANK": "1", "WORLD_SIZE": "2", "MASTER_PORT": "1234"})
    assert (world.local_rank, world.local_world_size, world.job) == (1, 2, "torchrun-1234")


@pytest.mark.case("O-P5")
@pytest.mark.parametrize(
    "leftover",
    [
        {"MASTER_PORT": "29500"},
        {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"},
        {"MASTER_PORT": "29500", "WORLD_SIZE": "1"},
        {"LOCAL_RANK": "0"},
        {"TORCHELASTIC_RUN_ID": "none"},
        {"UNIFIED_IPU_JOB": "4f2a"},
    ],
)
def test_leftovers_of_an_earlier_run_make_no_world(leftover):
    assert read_world(leftover) == World()


@pytest.mark.case("O-P5")
def test_a_leftover_port_does_not_change_our_job():
    assert read_world({**OURS, "MASTER_PORT": "29500"}) == read_world(OURS)


def test_our_launcher_goes_before_the_one_it_runs_under():
    assert read_world({**TORCHRUN, **OURS}) == read_world(OURS)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"RANK": "2", "LOCAL_RANK": "2"}, "rank 2 is outside a world of 2"),
        ({"RANK": "-1", "LOCAL_RANK": "-1"}, "rank -1 is outside"),
        ({"LOCAL_RANK": "0"}, "LOCAL_RANK=0 contradicts RANK=1"),
        ({"LOCAL_WORLD_SIZE": "3"}, "3 processes on this host are more than the 2"),
        ({"LOCAL_WORLD_SIZE": "1"}, "local rank 1 is outside a host of 1"),
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE='two' is not a whole number"),
        ({"RANK": ""}, "RANK='' is not a whole number"),
        ({"RANK": None}, "WORLD_SIZE=2 is set but RANK is not"),
        ({"WORLD_SIZE": None}, "RANK=1 is set but WORLD_SIZE is not"),
        (
            dict.fromkeys(
                (
                    "MASTER_ADDR",
                    "MASTER_PORT",
                    "TORCHELASTIC_RUN_ID",
                    "TORCHELASTIC_RESTART_COUNT",
                )
            ),
            "nothing tells this run from another",
        ),
    ],
)
def test_contradictory_variables_are_refused_by_name(change, message):
    environ = {**TORCHRUN, **change}
    with pytest.raises(ConfigError, match=message):
        read_world({name: value for name, value in environ.items() if value is not None})


def test_our_own_variables_without_a_job_are_refused():
    with pytest.raises(ConfigError, match="UNIFIED_IPU_JOB"):
        read_world({name: OURS[name] for name in OURS if name != "UNIFIED_IPU_JOB"})


def test_a_world_of_several_needs_a_job():
    with pytest.raises(ConfigError, match="a world of 2 needs a job name"):
        World(0, 0, 2, 2)


@given(
    st.integers(1, 8).flatmap(lambda size: st.tuples(st.integers(0, size - 1), st.just(size))),
    st.none() | st.text(),
    st.lists(st.text()),
)
def test_what_our_launcher_writes_is_what_a_rank_reads(place, plan, settings):
    rank, size = place
    job = "4f2a" if size > 1 else ""
    handover = Handover(plan, tuple(settings))
    world = World(rank, rank, size, size, launcher="unified-ipu", job=job, handover=handover)
    found = read_world(world_variables(world))
    assert found.handover == handover
    assert (found.rank, found.world_size, found.local_world_size) == (rank, size, size)


@pytest.mark.parametrize(
    "text", ["{", "[]", "{}", '{"plan": 1, "settings": []}', '{"plan": null, "settings": [1]}']
)
def test_a_damaged_handover_is_refused(text):
    with pytest.raises(ConfigError, match="UNIFIED_IPU_HANDOVER"):
        read_world({"UNIFIED_IPU_HANDOVER": text})


def test_the_current_environment_is_the_process_environment():
    assert current_environment() is os.environ


@pytest.mark.timeout(60)
def test_two_torchrun_runs_with_equal_variables_are_two_jobs():
    # The launcher is the first process up that was started without the variable; here a shell in
    # between has it, as a wrapper script would.
    code = "import os; from unified_ipu.world import read_world; print(read_world(os.environ).job)"
    launcher = (
        "import os, subprocess, sys\n"
        f"environ = {{**os.environ, **{TORCHRUN!r}}}\n"
        f"command = ['sh', '-c', 'exec \"$@\"; :', 'sh', sys.executable, '-c', {code!r}]\n"
        "for rank in '01':\n"
        "    ranked = {**environ, 'RANK': rank, 'LOCAL_RANK': rank}\n"
        "    subprocess.run(command, env=ranked, check=True)\n"
    )
    runs = [
        subprocess.run([sys.executable, "-c", launcher], capture_output=True, text=True, check=True)
        for _ in range(2)
    ]
    jobs = [run.stdout.split() for run in runs]
    assert jobs[0][0] == jobs[0][1]
    assert jobs[1][0] == jobs[1][1]
    assert jobs[0][0] != jobs[1][0]
