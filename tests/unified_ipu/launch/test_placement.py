"""How the cores of drawn machines are dealt to ranks."""

from __future__ import annotations

import pytest

from unified_ipu.errors import ConfigError
from unified_ipu.launch.placement import place_ranks
from unified_ipu.world import Core, Processors

LAPTOP = Processors(tuple(Core((cpu,)) for cpu in range(2)))
# One node, 4 cores of 2 hardware threads.
DESKTOP = Processors(tuple(Core((core, core + 4)) for core in range(4)))
# Two nodes of 4 such cores.
SERVER = Processors(tuple(Core((core, core + 8), node=core // 4) for core in range(8)))
NODE_0, NODE_1 = (0, 1, 2, 3, 8, 9, 10, 11), (4, 5, 6, 7, 12, 13, 14, 15)
POOLS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
TENSORFLOW = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")


def place(machine, ranks, *, environ=(), **options):
    return place_ranks(machine, num_ranks=ranks, environ=dict(environ), **options)


@pytest.mark.parametrize(
    ("machine", "ranks", "threads"),
    [
        (LAPTOP, 2, 1),
        (LAPTOP, 4, 1),
        (DESKTOP, 1, 4),  # not 8: two hardware threads share what computes
        (DESKTOP, 3, 1),
        (SERVER, 2, 4),
        (SERVER, 8, 1),
        (Processors(SERVER.cores, quota=1.5), 1, 1),
        (Processors(SERVER.cores, quota=5.0), 2, 2),
        (Processors(SERVER.cores[:3]), 2, 1),  # affinity of 3 cores
    ],
)
def test_all_thread_pools_of_a_rank_get_its_share_of_the_cores(machine, ranks, threads):
    variables = place(machine, ranks).variables
    assert variables == dict.fromkeys((*POOLS, *TENSORFLOW), str(threads))


def test_one_rank_that_has_the_machine_is_left_alone():
    found = place(LAPTOP, 1)
    assert found.variables == {}
    assert found.bindings == ()
    assert found.note == ""


def test_a_count_of_the_user_holds_for_all_pools_and_is_said():
    found = place(LAPTOP, 2, environ={"OMP_NUM_THREADS": "7"})
    assert found.variables == dict.fromkeys(TENSORFLOW, "7")  # MKL and OpenBLAS follow OpenMP
    assert found.note == (
        "2 ranks on 2 cores, 1 thread each but where the environment says OMP_NUM_THREADS=7; "
        "not bound to cores"
    )


def test_what_the_user_has_set_for_one_library_holds_for_that():
    found = place(DESKTOP, 2, environ={"MKL_NUM_THREADS": "3", "TF_NUM_INTEROP_THREADS": "5"})
    assert found.variables == {
        "OMP_NUM_THREADS": "2",
        "OPENBLAS_NUM_THREADS": "2",
        "TF_NUM_INTRAOP_THREADS": "2",
    }
    assert "MKL_NUM_THREADS=3 TF_NUM_INTEROP_THREADS=5" in found.note


def test_auto_binds_ranks_to_the_nodes_of_a_machine_that_has_several():
    found = place(SERVER, 4)
    assert found.bindings == (NODE_0, NODE_0, NODE_1, NODE_1)
    assert found.variables["OMP_NUM_THREADS"] == "2"
    assert found.note == (
        "4 ranks on 8 cores, 2 threads each; bound to cpus: ranks 0-1 on 0-3,8-11, ranks 2-3 on "
        "4-7,12-15 (OMP_NUM_THREADS and --bind change that)"
    )


@pytest.mark.parametrize(
    ("machine", "ranks"),
    [
        (DESKTOP, 2),  # one node: nothing to choose
        (SERVER, 1),  # 8 threads would become 4
        (Processors(SERVER.cores[2:8]), 2),  # 2 cores and 4: 3 threads each would become 2
    ],
)
def test_auto_binds_none_where_that_would_cost_a_thread(machine, ranks):
    found = place(machine, ranks)
    assert found.bindings == ()
    assert found.note.endswith("; not bound to cores (OMP_NUM_THREADS and --bind change that)")


def test_nodes_of_different_size_get_as_many_ranks_as_their_cores_are_worth():
    found = place(Processors(SERVER.cores[:6]), 3)  # 4 cores and 2
    assert found.bindings == (NODE_0, NODE_0, (4, 5, 12, 13))
    assert found.variables["OMP_NUM_THREADS"] == "2"


def test_a_quota_does_not_keep_ranks_from_their_nodes():
    found = place(Processors(SERVER.cores, quota=4.0), 2)
    assert found.bindings == (NODE_0, NODE_1)
    assert found.variables["OMP_NUM_THREADS"] == "2"


def test_bound_on_request_every_rank_gets_as_many_threads_as_the_fullest_node_has():
    machine = Processors(SERVER.cores[:5])
    found = place(machine, 2, bind="numa")
    assert found.bindings == (NODE_0, NODE_0)  # the fifth core is worth less than a rank
    assert found.variables["OMP_NUM_THREADS"] == "2"
    found = place(machine, 3, bind="numa")
    assert found.bindings == (NODE_0, NODE_0, (4, 12))
    assert found.variables["OMP_NUM_THREADS"] == "1"
    assert place(SERVER, 1, bind="numa").variables["OMP_NUM_THREADS"] == "4"


def test_nodes_that_are_asked_for_where_there_is_one_are_said_to_be_missing():
    found = place(DESKTOP, 2, bind="numa")
    assert found.bindings == ()
    assert "not bound: one memory node" in found.note


def test_own_cores_are_whole_ones():
    found = place(DESKTOP, 2, bind="core")
    assert found.bindings == ((0, 1, 4, 5), (2, 3, 6, 7))
    assert found.variables["OMP_NUM_THREADS"] == "2"
    assert place(LAPTOP, 2, bind="core").bindings == ((0,), (1,))
    assert place(SERVER, 3, bind="core").bindings == ((0, 1, 8, 9), (2, 3, 10, 11), (4, 5, 12, 13))


def test_own_cores_for_more_ranks_than_cores_are_refused():
    with pytest.raises(ConfigError, match="3 ranks on 2 usable cores; start at most 2"):
        place(LAPTOP, 3, bind="core")


def test_no_binding_is_had_by_asking():
    assert place(SERVER, 2, bind="none").bindings == ()


def test_another_word_is_refused():
    with pytest.raises(ConfigError, match=r"bind: got 'socket', expected auto \| none"):
        place(SERVER, 2, bind="socket")


def test_a_crowd_takes_turns_and_that_is_said():
    assert "4 ranks on 2 cores, 1 thread each, so they take turns" in place(LAPTOP, 4).note


@pytest.mark.parametrize("ranks", range(1, 20))
@pytest.mark.parametrize("bind", ["auto", "none", "numa"])
def test_never_more_threads_than_cores_in_sum(ranks, bind):
    for machine in (LAPTOP, DESKTOP, SERVER, Processors(SERVER.cores[1:6], quota=3.7)):
        found = place(machine, ranks, bind=bind)
        threads = int(found.variables.get("OMP_NUM_THREADS", len(machine.cpus)))
        assert ranks * threads <= max(machine.count, ranks)
        for cpus in set(found.bindings):
            cores = sum(1 for core in machine.cores if set(core.cpus) <= set(cpus))
            sharing = found.bindings.count(cpus)
            assert sharing * threads <= max(cores, sharing)
