"""Worlds of Slurm, Open MPI and PopRun, and of launchers that are not read."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from unified_ipu.errors import ConfigError
from unified_ipu.world import World, read_world, unread_launcher
from unified_ipu.world.slurm import first_host, step_port, tasks_per_node

# What srun(1) of Slurm 23.11 says it sets, for task 4 of `srun -N 3 -n 5` in an sbatch job.
SLURM = {
    "SLURM_JOB_ID": "81234",
    "SLURM_JOBID": "81234",
    "SLURM_JOB_NODELIST": "node[07-09]",
    "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.7",
    "SLURM_LOCALID": "0",
    "SLURM_NNODES": "3",
    "SLURM_NODEID": "2",
    "SLURM_NPROCS": "5",
    "SLURM_NTASKS": "5",
    "SLURM_PROCID": "4",
    "SLURM_STEPID": "0",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "node[07-09]",
    "SLURM_STEP_NUM_NODES": "3",
    "SLURM_STEP_NUM_TASKS": "5",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
    "SLURM_TASKS_PER_NODE": "2(x2),1",
}
# What the batch script of the same job has before it calls srun.
SBATCH = {
    "SLURM_JOB_ID": "81234",
    "SLURM_JOB_NODELIST": "node[07-09]",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
    "SLURM_NTASKS": "5",
    "SLURM_PROCID": "0",
    "SLURM_TASKS_PER_NODE": "2(x2),1",
}
# mpirun(1) of Open MPI 4.1: rank 3 of 4 on two hosts.
OPENMPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "3223322625",
}
# From a log of poprun (Poplar SDK 3.3): instance 1 of 2, four replicas.
POPRUN = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "77",
    "POPDIST_LOCAL_INSTANCE_INDEX": "1",
    "POPDIST_NUM_IPUS_PER_REPLICA": "1",
    "POPDIST_NUM_LOCAL_REPLICAS": "2",
    "POPDIST_NUM_TOTAL_REPLICAS": "4",
    "POPDIST_REPLICA_INDEX_OFFSET": "2",
    "POPDIST_UNIFORM_REPLICAS_PER_INSTANCE": "1",
}


def test_a_task_of_srun_is_read():
    world = read_world(SLURM)
    assert world == World(
        rank=4,
        local_rank=0,
        world_size=5,
        local_world_size=1,
        node_rank=2,
        launcher="slurm",
        job="slurm-81234-0",
        address=f"node07:{step_port('slurm-81234-0')}",
    )


def test_all_tasks_of_a_step_agree_on_job_and_address():
    places = [("0", "0", "0"), ("1", "0", "1"), ("2", "1", "0"), ("3", "1", "1"), ("4", "2", "0")]
    worlds = [
        read_world({**SLURM, "SLURM_PROCID": rank, "SLURM_NODEID": node, "SLURM_LOCALID": local})
        for rank, node, local in places
    ]
    assert len({(world.job, world.address, world.world_size) for world in worlds}) == 1
    assert [world.local_world_size for world in worlds] == [2, 2, 2, 2, 1]


def test_another_step_and_a_requeued_job_are_other_jobs():
    changes = [{}, {"SLURM_STEP_ID": "1"}, {"SLURM_RESTART_COUNT": "1"}]
    jobs = {read_world({**SLURM, **change}).job for change in changes}
    assert len(jobs) == 3


def test_a_batch_script_without_srun_is_one_process():
    assert read_world(SBATCH) == World()


def test_srun_on_one_host_needs_no_address():
    world = read_world(
        {**SLURM, "SLURM_STEP_TASKS_PER_NODE": "5", "SLURM_NODEID": "0", "SLURM_LOCALID": "4"}
    )
    assert (world.local_rank, world.local_world_size, world.address) == (4, 5, "")


def test_master_address_and_port_go_before_what_slurm_says():
    given_place = {"MASTER_ADDR": "10.1.1.1", "MASTER_PORT": "4000"}
    assert read_world({**SLURM, **given_place}).address == "10.1.1.1:4000"


def test_srun_around_torchrun_leaves_the_word_to_torchrun():
    torchrun = {
        "RANK": "1",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "34539",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    world = read_world({**SLURM, **torchrun})
    assert (world.launcher, world.rank, world.world_size) == ("torchrun", 1, 2)
    assert (world.address, world.is_address_served) == ("localhost:34539", True)


def test_open_mpi_on_two_hosts_needs_an_address_from_the_user():
    assert read_world(OPENMPI).address == ""
    named = read_world({**OPENMPI, "MASTER_ADDR": "head", "MASTER_PORT": "5000"})
    assert (named.address, named.is_address_served) == ("head:5000", False)


@pytest.mark.case("O-P5")
def test_a_leftover_port_is_nothing_to_ranks_of_one_host():
    one_host = {**OPENMPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "3"}
    leftover = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    assert read_world({**one_host, **leftover}) == read_world(one_host)


def test_an_instance_of_poprun_is_a_rank():
    world = read_world(POPRUN)
    assert (world.launcher, world.rank, world.world_size) == ("poprun", 1, 2)
    assert world.job == "poprun-77"


@pytest.mark.parametrize(
    ("text", "counts"),
    [("4", [4]), ("2(x3)", [2, 2, 2]), ("2(x3),1", [2, 2, 2, 1]), ("1,2,1", [1, 2, 1])],
)
def test_tasks_per_node_are_expanded(text, counts):
    assert tasks_per_node(text) == counts


@pytest.mark.parametrize("text", ["", "two", "2(3)", "2(x)", "2,"])
def test_other_forms_are_refused(text):
    with pytest.raises(ConfigError, match="SLURM_STEP_TASKS_PER_NODE"):
        tasks_per_node(text)


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("alone", "alone"),
        ("a,b", "a"),
        ("node[07-09]", "node07"),
        ("node[3,5-7],other", "node3"),
        ("rack[1-2].site", "rack1.site"),
        ("", ""),
    ],
)
def test_the_first_host_is_found(text, host):
    assert first_host(text) == host


@given(st.text())
def test_ports_of_steps_are_the_users_own(job):
    assert 20000 <= step_port(job) < 32000


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"PMI_RANK": "0", "PMI_SIZE": "4"}, "PMI_SIZE=4: an MPI launcher"),
        ({"JSM_NAMESPACE_SIZE": "2"}, "jsrun seems to have started 2 processes"),
        ({"FLUX_JOB_SIZE": "3"}, "flux seems"),
        (SBATCH, "put srun before the command"),
    ],
)
def test_what_other_launchers_set_is_said(environ, said):
    assert read_world(environ) == World()
    assert said in unread_launcher(environ)


@pytest.mark.parametrize(
    "environ", [{}, {"PMI_SIZE": "1"}, {"PMI_SIZE": "x"}, {"SLURM_NTASKS": "4"}]
)
def test_a_process_that_is_meant_to_be_alone_is_left_in_peace(environ):
    assert unread_launcher(environ) == ""
