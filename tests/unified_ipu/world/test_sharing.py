"""Parts of a host's cores, however its processes were bound."""

from __future__ import annotations

import pytest

from unified_ipu.world import claim_cores, running_on, share_cores
from unified_ipu.world.processors import allowed_cpus


def claim(cores, *, threads=1, host="a", quota=None):
    return {"host": host, "cores": cores, "threads": threads, "quota": quota}


EIGHT = [[cpu] for cpu in range(8)]


def test_processes_that_may_run_anywhere_share_all_cores():
    found = share_cores([claim(EIGHT)] * 3, 1)
    assert (found.processes, found.cores, found.all_cores) == (3, 2, 8)


def test_processes_with_cores_of_their_own_have_them_whole():
    claims = [claim(EIGHT[:2]), claim(EIGHT[2:4]), claim(EIGHT[4:8])]
    assert [share_cores(claims, rank).cores for rank in range(3)] == [2, 2, 4]
    assert share_cores(claims, 0).all_cores == 8


def test_processes_bound_to_nodes_share_those():
    claims = [claim(EIGHT[:4])] * 2 + [claim(EIGHT[4:])] * 2
    assert [share_cores(claims, rank).cores for rank in range(4)] == [2, 2, 2, 2]


def test_other_hosts_take_nothing():
    claims = [claim(EIGHT), claim(EIGHT, host="b"), claim(EIGHT, host="b")]
    assert [share_cores(claims, rank).cores for rank in range(3)] == [8, 4, 4]


def test_two_hardware_threads_are_one_core():
    assert share_cores([claim([[0, 4], [1, 5]])] * 2, 0).cores == 1
    assert share_cores([claim([[0, 4], [1, 5]])] * 2, 0).all_cores == 2


@pytest.mark.parametrize(("quota", "cores", "total"), [(4.0, 2, 4), (1.5, 1, 1), (99.0, 4, 8)])
def test_a_quota_is_shared_too(quota, cores, total):
    found = share_cores([claim(EIGHT, quota=quota)] * 2, 0)
    assert (found.cores, found.all_cores) == (cores, total)


def test_more_threads_than_cores_are_a_warning_with_the_number_to_set():
    found = share_cores([claim(EIGHT, threads=8)] * 4, 0)
    assert found.warning.startswith("the 4 processes of this host may start 32 threads on 8 cores")
    assert "set OMP_NUM_THREADS=2" in found.warning


@pytest.mark.parametrize(
    "claims",
    [
        [claim(EIGHT, threads=2)] * 4,
        [claim(EIGHT[rank : rank + 2], threads=2) for rank in range(0, 8, 2)],  # bound
        [claim(EIGHT[:2])] * 6,  # more processes than cores take turns; one thread is the least
        [claim(EIGHT, threads=8), claim(EIGHT, threads=8, host="b")],
        [claim(EIGHT, threads=64)],  # alone, and asked for
    ],
)
def test_threads_that_fit_are_no_warning(claims):
    assert share_cores(claims, 0).warning == ""


@pytest.mark.parametrize(("given", "threads"), [("3", 3), ("2,4", 2), ("", None), ("0", None)])
def test_a_process_says_how_many_threads_it_will_start(given, threads):
    found = claim_cores({"OMP_NUM_THREADS": given})
    assert found["threads"] == (threads or share_cores([found], 0).cores)
    assert [cpu for core in found["cores"] for cpu in core] == list(allowed_cpus())


def test_a_thread_may_start_something_on_other_cores_and_is_back_where_it_was():
    before = allowed_cpus()
    with running_on(before[:1]):
        assert allowed_cpus() == before[:1]
    assert allowed_cpus() == before
    with running_on([99999]):  # not to be had
        assert allowed_cpus() == before
    assert allowed_cpus() == before
