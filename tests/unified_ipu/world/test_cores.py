"""Usable cores: affinity and control groups."""

from __future__ import annotations

import os

import pytest

from unified_ipu.world import usable_cores
from unified_ipu.world.cores import cgroup_quota

MAX, HALF, TWO = "max 100000\n", "50000 100000\n", "200000 100000\n"


def group(root, name, text, file="cpu.max"):
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / file).write_text(text)


def test_at_least_one_and_at_most_what_affinity_allows():
    assert 1 <= usable_cores() <= len(os.sched_getaffinity(0))


def test_without_a_limit_there_is_no_quota(tmp_path):
    group(tmp_path, "job", MAX)
    assert cgroup_quota(tmp_path, "0::/job\n") is None
    assert cgroup_quota(tmp_path, "") is None
    assert cgroup_quota(tmp_path / "absent", "0::/job\n") is None


@pytest.mark.parametrize(
    ("outer", "inner", "expected"), [(TWO, HALF, 0.5), (HALF, TWO, 0.5), (TWO, MAX, 2.0)]
)
def test_the_smallest_limit_on_the_way_up_counts(tmp_path, outer, inner, expected):
    group(tmp_path, "slice", outer)
    group(tmp_path, "slice/job", inner)
    assert cgroup_quota(tmp_path, "0::/slice/job\n") == expected


def test_a_container_sees_its_limit_at_the_root(tmp_path):
    group(tmp_path, "", TWO)
    assert cgroup_quota(tmp_path, "0::/\n") == 2.0


@pytest.mark.parametrize(("quota", "expected"), [("150000\n", 1.5), ("-1\n", None)])
def test_version_1_groups_are_read(tmp_path, quota, expected):
    group(tmp_path, "cpu/job", quota, "cpu.cfs_quota_us")
    group(tmp_path, "cpu/job", "100000\n", "cpu.cfs_period_us")
    membership = "4:memory:/job\n3:cpu,cpuacct:/job\n"
    assert cgroup_quota(tmp_path, membership) == expected


def test_half_a_core_is_one(monkeypatch):
    monkeypatch.setattr("unified_ipu.world.cores.cgroup_quota", lambda *_: 0.5)
    assert usable_cores() == 1


def test_version_1_groups_are_found_where_the_short_name_is_no_link(tmp_path):
    group(tmp_path, "cpu,cpuacct/job", "300000\n", "cpu.cfs_quota_us")
    group(tmp_path, "cpu,cpuacct/job", "100000\n", "cpu.cfs_period_us")
    assert cgroup_quota(tmp_path, "3:cpu,cpuacct:/job\n") == 3.0


def test_a_path_of_the_host_that_the_container_does_not_have_leads_to_its_root(tmp_path):
    group(tmp_path, "cpu", "150000\n", "cpu.cfs_quota_us")
    group(tmp_path, "cpu", "100000\n", "cpu.cfs_period_us")
    assert cgroup_quota(tmp_path, "3:cpu,cpuacct:/docker/4f5e\n") == 1.5
