"""Structures that options hold; most of them say where tensors lie, which nothing here heeds."""

from __future__ import annotations

from typing import Any, ClassVar, Dict, List, Optional, Tuple, Union

from unified_ipu_onnx.emulated.popart.enums import (
    CommGroupType,
    ReplicatedTensorSharding,
    TensorStorage,
    TileSet,
)
from unified_ipu_onnx.emulated.popart.errors import check_type


class Settings:
    """Attributes of fixed names and types; another name is an AttributeError.

    Args:
        values: By name.
    """

    _defaults: ClassVar[Dict[str, Any]] = {}

    def __init__(self, **values: Any) -> None:
        for name, default in {**self._defaults, **values}.items():
            setattr(self, name, _fresh(default))

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._defaults:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        default = self._defaults[name]
        if default is not None:
            check_type(type(self).__name__, name, value, type(default))
        object.__setattr__(self, name, value)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]  # its values change

    def __repr__(self) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({given})"


def _fresh(value: Any) -> Any:
    """A copy of what can be changed in place, so that no two objects share it."""
    if isinstance(value, (list, dict, set)):
        return type(value)(value)
    if isinstance(value, Settings):
        return type(value)(**vars(value))
    return value


class CommGroup(Settings):
    """Which replicas belong together.

    Args:
        type: How they are grouped.
        replicaGroupSize: How many are in a group.
    """

    _defaults: ClassVar[Dict[str, Any]] = {"type": CommGroupType.All, "replicaGroupSize": 0}

    def __init__(self, type: CommGroupType = CommGroupType.All, replicaGroupSize: int = 0) -> None:
        super().__init__(type=type, replicaGroupSize=replicaGroupSize)


class TensorLocation(Settings):
    """Where a tensor lies.

    Args:
        args: Storage; tile sets for loading and storing, both or none; sharding; its domain.
        named: The same by name.

    Raises:
        TypeError: If they come in another order.
    """

    _defaults: ClassVar[Dict[str, Any]] = {
        "storage": TensorStorage.OnChip,
        "loadTileSet": TileSet.Compute,
        "storageTileSet": TileSet.Compute,
        "replicatedTensorSharding": ReplicatedTensorSharding.Off,
        "shardingDomain": CommGroup(),
    }

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(**_by_name(args), **named)


def _by_name(args: Tuple[Any, ...]) -> Dict[str, Any]:
    names: List[str] = list(TensorLocation._defaults)
    if len(args) > 1 and not isinstance(args[1], TileSet):
        del names[1:3]
    if len(args) > len(names):
        raise TypeError(f"TensorLocation() takes at most 5 arguments, got {args}")
    return dict(zip(names, args))


class TensorLocationSettings(Settings):
    """Where tensors of a kind lie.

    Args:
        location: A storage is enough.
        minElementsForOffChip: Smaller ones stay on the chip.
        minElementsForReplicatedTensorSharding: Smaller ones are not shared.
        storage: The location, by its other name.
    """

    _defaults: ClassVar[Dict[str, Any]] = {
        "location": TensorLocation(),
        "minElementsForOffChip": 2,
        "minElementsForReplicatedTensorSharding": 8192,
    }

    def __init__(
        self,
        location: Union[TensorLocation, TensorStorage, None] = None,
        minElementsForOffChip: int = 2,
        minElementsForReplicatedTensorSharding: int = 8192,
        *,
        storage: Optional[TensorStorage] = None,
    ) -> None:
        given = storage if location is None else location
        if given is None:
            given = TensorLocation()
        elif isinstance(given, TensorStorage):
            given = TensorLocation(given)
        super().__init__(
            location=given,
            minElementsForOffChip=minElementsForOffChip,
            minElementsForReplicatedTensorSharding=minElementsForReplicatedTensorSharding,
        )
