"""Cores, hardware threads and memory nodes of machines that are drawn as the kernel shows them."""

from __future__ import annotations

import os

import pytest

from unified_ipu.world import Core, Processors, format_cpus, read_processors, usable_processors
from unified_ipu.world.processors import parse_cpus


def draw(root, *, siblings, nodes=(), name="core_cpus_list"):
    """Write ``/sys/devices/system`` of a machine.

    Args:
        root: Where.
        siblings: Hardware threads of each core, as the kernel's list.
        nodes: Hardware threads of each memory node.
        name: Of the file of siblings.
    """
    for text in siblings:
        for cpu in parse_cpus(text):
            folder = root / "cpu" / f"cpu{cpu}" / "topology"
            folder.mkdir(parents=True)
            (folder / name).write_text(text + "\n")
    for number, text in enumerate(nodes):
        folder = root / "node" / f"node{number}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(text + "\n")
    return root


def two_sockets(root):
    """2 nodes x 4 cores x 2 threads, numbered as on many servers: siblings 8 apart."""
    return draw(
        root, siblings=[f"{core},{core + 8}" for core in range(8)], nodes=["0-3,8-11", "4-7,12-15"]
    )


def test_without_hyperthreads_each_cpu_is_a_core(tmp_path):
    draw(tmp_path, siblings=["0", "1", "2", "3"], nodes=["0-3"])
    found = read_processors((0, 1, 2, 3), system=tmp_path)
    assert found.cores == (Core((0,)), Core((1,)), Core((2,)), Core((3,)))
    assert found.count == 4
    assert list(found.nodes) == [0]


@pytest.mark.parametrize("name", ["core_cpus_list", "thread_siblings_list"])
def test_two_hardware_threads_are_one_core(tmp_path, name):
    draw(tmp_path, siblings=["0-1", "2-3"], nodes=["0-3"], name=name)
    found = read_processors((0, 1, 2, 3), system=tmp_path)
    assert found.cores == (Core((0, 1)), Core((2, 3)))
    assert found.count == 2
    assert found.cpus == (0, 1, 2, 3)


def test_cores_lie_beside_their_nodes(tmp_path):
    found = read_processors(tuple(range(16)), system=two_sockets(tmp_path))
    assert found.count == 8
    assert found.cpus == tuple(range(16))
    assert [core.cpus for core in found.nodes[0]] == [(0, 8), (1, 9), (2, 10), (3, 11)]
    assert [core.cpus for core in found.nodes[1]] == [(4, 12), (5, 13), (6, 14), (7, 15)]


def test_only_what_affinity_leaves_counts(tmp_path):
    found = read_processors((3, 4, 12), system=two_sockets(tmp_path))
    assert found.cores == (Core((3,), 0), Core((4, 12), 1))
    assert found.count == 2


@pytest.mark.parametrize(("quota", "count"), [(1.5, 1), (0.5, 1), (3.0, 3), (99.0, 8), (None, 8)])
def test_a_quota_limits_how_many_are_kept_busy(tmp_path, quota, count):
    found = read_processors(tuple(range(16)), quota=quota, system=two_sockets(tmp_path))
    assert found.count == count
    assert len(found.cores) == 8


def test_a_container_without_descriptions_has_cores_of_one_node(tmp_path):
    found = read_processors((5, 1, 2), system=tmp_path / "absent")
    assert found == Processors((Core((1,)), Core((2,)), Core((5,))))


def test_what_cannot_be_read_as_a_list_is_a_core_of_its_own(tmp_path):
    draw(tmp_path, siblings=["0", "1"])
    for cpu, text in ((0, "unknown"), (1, "6-7")):
        (tmp_path / "cpu" / f"cpu{cpu}" / "topology" / "core_cpus_list").write_text(text)
    assert read_processors((0, 1), system=tmp_path).cores == (Core((0,)), Core((1,)))


@pytest.mark.parametrize(
    ("text", "cpus"), [("0-3,8", (0, 1, 2, 3, 8)), ("5", (5,)), ("", ()), ("0-", (0,)), ("a-b", ())]
)
def test_lists_of_the_kernel_are_read(text, cpus):
    assert parse_cpus(text) == cpus


def test_lists_are_written_as_the_kernel_does():
    assert format_cpus((8, 0, 1, 2, 3)) == "0-3,8"
    assert format_cpus(()) == ""


def test_this_machine_has_the_processors_that_affinity_names():
    found = usable_processors()
    assert found.cpus == tuple(sorted(os.sched_getaffinity(0)))
    assert 1 <= found.count <= len(found.cores) <= len(found.cpus)
