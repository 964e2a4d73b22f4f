"""The mesh: named axes over the ranks, row-major."""

from __future__ import annotations

from itertools import product
from typing import Dict, List, Mapping, Optional, Tuple

from unified_ipu.errors import ConfigError
from unified_ipu.world.place import Place


class Mesh:
    """Ranks arranged along named axes; the last axis is the fastest.

    With axes ``{"data": 2, "stage": 4}`` rank 6 stands at data 1, stage 2.
    """

    def __init__(self, axes: Mapping[str, int]) -> None:
        """Check and keep the axes.

        Args:
            axes: Size of each axis by name, slowest first; no axis stands for one rank.

        Raises:
            ConfigError: If a size is no whole number of at least 1.
        """
        given: Mapping[str, object] = axes  # callers may not be type checked
        for name, size in given.items():
            if not isinstance(size, int) or isinstance(size, bool) or size < 1:
                raise ConfigError(
                    f"mesh axis {name!r} has size {size!r}; give a whole number of at least 1"
                )
        self._axes = dict(axes)
        self._size = 1
        for length in self._axes.values():
            self._size *= length

    @property
    def axes(self) -> Dict[str, int]:
        """Size of each axis by name, slowest first."""
        return dict(self._axes)

    @property
    def size(self) -> int:
        """Number of ranks: the product of the axes."""
        return self._size

    def check(self, world_size: int) -> None:
        """Refuse a world of another size.

        Args:
            world_size: Number of processes.

        Raises:
            ConfigError: If the mesh has more or fewer ranks than the world.
        """
        if self._size != world_size:
            sizes = " x ".join(f"{name}={size}" for name, size in self._axes.items())
            raise ConfigError(
                f"mesh {sizes or 'without axes'} has {self._size} ranks but the world has "
                f"{world_size}; change an axis, or start {self._size} processes"
            )

    def coordinates(self, rank: int) -> Dict[str, int]:
        """Index on each axis.

        Args:
            rank: ``0 <= rank < size``.

        Raises:
            ConfigError: If there is no such rank.
        """
        if not 0 <= rank < self._size:
            raise ConfigError(f"rank {rank} is outside a mesh of {self._size} ranks")
        found: Dict[str, int] = {}
        for name in reversed(list(self._axes)):
            rank, found[name] = divmod(rank, self._axes[name])
        return {name: found[name] for name in self._axes}

    def rank(self, coordinates: Mapping[str, int]) -> int:
        """Rank that stands at the coordinates.

        Args:
            coordinates: Index on each axis, all axes.

        Raises:
            ConfigError: If an axis is missing or unknown, or an index is outside of its axis.
        """
        if set(coordinates) != set(self._axes):
            raise ConfigError(
                f"coordinates name the axes {sorted(coordinates)}; this mesh has "
                f"{sorted(self._axes)}"
            )
        rank = 0
        for name, size in self._axes.items():
            index = coordinates[name]
            if not 0 <= index < size:
                raise ConfigError(f"index {index} is outside mesh axis {name!r} of size {size}")
            rank = rank * size + index
        return rank

    def groups(self, axis: str) -> Tuple[Tuple[int, ...], ...]:
        """Ranks that differ only along ``axis``, every such group, ordered by first rank.

        Args:
            axis: Name of an axis.

        Raises:
            ConfigError: If there is no such axis.
        """
        self._check_axis(axis)
        others = [name for name in self._axes if name != axis]
        groups: List[Tuple[int, ...]] = []
        for indices in product(*(range(self._axes[name]) for name in others)):
            fixed = dict(zip(others, indices))
            members = ({**fixed, axis: index} for index in range(self._axes[axis]))
            groups.append(tuple(self.rank(member) for member in members))
        return tuple(groups)

    def group_of(self, rank: int, axis: str) -> Tuple[int, ...]:
        """The group along ``axis`` that ``rank`` is a member of.

        Args:
            rank: ``0 <= rank < size``.
            axis: Name of an axis.

        Raises:
            ConfigError: If there is no such axis or rank.
        """
        self._check_axis(axis)
        here = self.coordinates(rank)
        return tuple(self.rank({**here, axis: index}) for index in range(self._axes[axis]))

    def place(
        self,
        rank: int,
        local_rank: int,
        *,
        device_index: Optional[int] = None,
        local_size: int = 1,
    ) -> Place:
        """Place of a process that drives one replica, or one stage of it.

        Args:
            rank: ``0 <= rank < size``.
            local_rank: Index of the process on its host.
            device_index: Its accelerator, or None on CPU.
            local_size: Number of processes on that host.

        Raises:
            ConfigError: If there is no such rank.
        """
        here = self.coordinates(rank)
        replica = here.get("data", 0)
        return Place(
            rank=rank,
            local_rank=local_rank,
            coordinates=here,
            replicas=range(replica, replica + 1),
            num_replicas=self._axes.get("data", 1),
            device_index=device_index,
            local_size=local_size,
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Mesh):
            return NotImplemented
        return list(self._axes.items()) == list(other._axes.items())

    def __hash__(self) -> int:
        return hash(tuple(self._axes.items()))

    def __repr__(self) -> str:
        return f"Mesh({self._axes!r})"

    def _check_axis(self, axis: str) -> None:
        if axis not in self._axes:
            raise ConfigError(f"no mesh axis {axis!r}; this mesh has {sorted(self._axes)}")
