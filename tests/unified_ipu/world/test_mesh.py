"""The mesh: row-major coordinates, groups and places."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from unified_ipu.errors import ConfigError
from unified_ipu.world import Mesh, Place

meshes = st.lists(st.integers(1, 4), min_size=0, max_size=4).map(
    lambda sizes: Mesh({f"axis{index}": size for index, size in enumerate(sizes)})
)


@pytest.mark.case("O-K3")
def test_rank_6_of_2_by_4_stands_at_1_2():
    mesh = Mesh({"replica": 2, "stage": 4})
    assert mesh.coordinates(6) == {"replica": 1, "stage": 2}
    assert mesh.rank({"stage": 2, "replica": 1}) == 6


@pytest.mark.case("O-K3")
def test_groups_of_2_by_4():
    mesh = Mesh({"replica": 2, "stage": 4})
    assert mesh.groups("replica") == ((0, 4), (1, 5), (2, 6), (3, 7))
    assert mesh.groups("stage") == ((0, 1, 2, 3), (4, 5, 6, 7))


@pytest.mark.case("O-K3")
def test_a_mesh_of_6_in_a_world_of_8_is_refused_with_both_numbers():
    with pytest.raises(ConfigError, match=r"has 6 ranks .* has 8"):
        Mesh({"replica": 3, "stage": 2}).check(8)
    Mesh({"replica": 2, "stage": 4}).check(8)


@pytest.mark.case("O-K3")
def test_a_rank_is_no_member_of_another_column():
    assert 1 not in Mesh({"replica": 2, "stage": 4}).group_of(2, "replica")


@given(meshes)
def test_coordinates_agree_with_numpy_and_back(mesh):
    sizes = tuple(mesh.axes.values())
    for rank in range(mesh.size):
        expected = np.unravel_index(rank, sizes) if sizes else ()
        found = mesh.coordinates(rank)
        assert list(found.values()) == [int(index) for index in expected]
        assert list(found) == list(mesh.axes)
        assert mesh.rank(found) == rank


@given(meshes.filter(lambda mesh: bool(mesh.axes)), st.data())
def test_groups_along_an_axis_are_a_partition_and_agree_with_numpy(mesh, data):
    names = list(mesh.axes)
    axis = data.draw(st.sampled_from(names))
    ranks = np.arange(mesh.size).reshape(tuple(mesh.axes.values()))
    rows = np.moveaxis(ranks, names.index(axis), -1).reshape(-1, mesh.axes[axis])
    groups = mesh.groups(axis)
    assert groups == tuple(tuple(row) for row in rows.tolist())
    assert sorted(rank for group in groups for rank in group) == list(range(mesh.size))
    for rank in range(mesh.size):
        assert mesh.group_of(rank, axis) == next(group for group in groups if rank in group)


def test_a_place_counts_replicas_along_the_data_axis():
    place = Mesh({"data": 2, "stage": 4}).place(6, 2, device_index=3, local_size=4)
    assert place == Place(
        rank=6,
        local_rank=2,
        coordinates={"data": 1, "stage": 2},
        replicas=range(1, 2),
        num_replicas=2,
        device_index=3,
        local_size=4,
    )


def test_a_mesh_without_axes_is_one_rank():
    mesh = Mesh({})
    assert (mesh.size, mesh.coordinates(0), mesh.rank({})) == (1, {}, 0)
    assert mesh.place(0, 0) == Place()


@pytest.mark.parametrize("size", [0, -1, 2.0, "2", True])
def test_an_axis_that_is_no_count_is_refused(size):
    with pytest.raises(ConfigError, match="'data' has size"):
        Mesh({"data": size})


def test_what_is_outside_the_mesh_is_refused_by_name():
    mesh = Mesh({"data": 2, "stage": 4})
    with pytest.raises(ConfigError, match="rank 8 is outside a mesh of 8"):
        mesh.coordinates(8)
    with pytest.raises(ConfigError, match="rank 9 is outside"):
        mesh.place(9, 0)
    with pytest.raises(ConfigError, match="index 4 is outside mesh axis 'stage' of size 4"):
        mesh.rank({"data": 0, "stage": 4})
    with pytest.raises(ConfigError, match="name the axes"):
        mesh.rank({"data": 0})
    with pytest.raises(ConfigError, match="no mesh axis 'tensor'"):
        mesh.groups("tensor")
    with pytest.raises(ConfigError, match="no mesh axis 'tensor'"):
        mesh.group_of(0, "tensor")


def test_meshes_are_equal_by_axes_in_order():
    assert Mesh({"data": 2, "stage": 1}) == Mesh({"data": 2, "stage": 1})
    assert Mesh({"data": 2, "stage": 1}) != Mesh({"stage": 1, "data": 2})
    assert hash(Mesh({"data": 2})) == hash(Mesh({"data": 2}))
    assert Mesh({"data": 2}) != {"data": 2}
