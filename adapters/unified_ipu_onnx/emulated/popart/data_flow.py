"""What one ``run`` takes and gives back."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Sequence, Union

from unified_ipu_onnx.emulated.popart.enums import (
    AnchorReturnTypeId,
    ExchangeStrategy,
    ReplicatedStreamMode,
    TileSet,
)
from unified_ipu_onnx.emulated.popart.errors import popart_exception
from unified_ipu_onnx.emulated.popart.tensor_info import TensorInfo

_BY_NAME = {member.name.lower(): member for member in AnchorReturnTypeId}


class AnchorReturnType:
    """Which values of an anchored tensor come back.

    Args:
        anchorReturnTypeString: ``"Final"``, ``"All"``, ``"Sum"`` or ``"EveryN"``, in any case.
        returnPeriod: With EveryN: one of so many batches.
        tileSet: Without effect here.
        exchangeStrategy: Without effect here.

    Raises:
        popart_exception: If the name is unknown, or a period is missing or surplus.
    """

    def __init__(
        self,
        anchorReturnTypeString: str,
        returnPeriod: Optional[int] = None,
        tileSet: TileSet = TileSet.Compute,
        exchangeStrategy: ExchangeStrategy = ExchangeStrategy.JustInTime,
    ) -> None:
        found = _BY_NAME.get(anchorReturnTypeString.lower())
        if found is None:
            raise popart_exception(
                f"Invalid anchor return type ID supplied: {anchorReturnTypeString}"
            )
        if found is AnchorReturnTypeId.EveryN:
            if returnPeriod is None:
                raise popart_exception("Must specify return period with option 'EVERYN'")
            if returnPeriod <= 0:
                raise popart_exception("Anchor return period must be greater than zero")
        elif returnPeriod is not None:
            raise popart_exception(_NO_PERIOD)
        self._id, self._period = found, returnPeriod
        self._tile_set, self._strategy = tileSet, exchangeStrategy

    def id(self) -> AnchorReturnTypeId:
        """Which one it is."""
        return self._id

    def rp(self) -> int:
        """Return the period.

        Raises:
            popart_exception: If it is not EveryN.
        """
        if self._period is None:
            raise popart_exception(_NO_PERIOD)
        return self._period

    def tileSet(self) -> TileSet:
        """As given."""
        return self._tile_set

    def exchangeStrategy(self) -> ExchangeStrategy:
        """As given."""
        return self._strategy


_NO_PERIOD = "A return period should not be supplied for this anchor return type"


class DataFlow:
    """Batches of a ``run``, and what comes back.

    Args:
        batchesPerStep: Updates of a training session, executions of an inference session.
        anchorTensors: How each anchored tensor comes back, or a list of names.
        anchorReturnType: Of all, if names are listed; every one if left out.
        anchorIds: The list of names, by its other name.

    Raises:
        popart_exception: If the number is not above 0, or a period does not divide it.
        TypeError: If no anchors are given, not even an empty list.
    """

    def __init__(
        self,
        batchesPerStep: int,
        anchorTensors: Union[Mapping[str, AnchorReturnType], Sequence[str], None] = None,
        anchorReturnType: Optional[AnchorReturnType] = None,
        *,
        anchorIds: Optional[Sequence[str]] = None,
    ) -> None:
        anchors = anchorIds if anchorTensors is None else anchorTensors
        if anchors is None:
            raise TypeError("DataFlow needs anchorTensors; pass {} for none")
        if not isinstance(anchors, Mapping):
            every = anchorReturnType or AnchorReturnType("All")
            anchors = dict.fromkeys(anchors, every)
        if batchesPerStep <= 0:
            raise popart_exception("'Batches per step' must be greater than zero")
        self._anchors: Dict[str, AnchorReturnType] = dict(sorted(anchors.items()))
        self._batches = int(batchesPerStep)
        self._check()

    def isAnchored(self, name: str) -> bool:
        """Whether that tensor comes back."""
        return name in self._anchors

    def nAnchors(self) -> int:
        """Return how many tensors come back."""
        return len(self._anchors)

    def batchesPerStep(self) -> int:
        """As given."""
        return self._batches

    def setBatchesPerStep(self, batches: int) -> None:
        """Change the number, before a session is made."""
        self._batches = int(batches)

    def anchors(self) -> List[str]:
        """Names of what comes back, sorted."""
        return list(self._anchors)

    def art(self, name: str) -> AnchorReturnType:
        """How that tensor comes back.

        Raises:
            popart_exception: If it does not.
        """
        if name not in self._anchors:
            raise popart_exception(f"Tensor {name} is not an anchor")
        return self._anchors[name]

    def _check(self) -> None:
        for kind in self._anchors.values():
            if kind.id() is not AnchorReturnTypeId.EveryN:
                continue
            if kind.rp() > self._batches:
                raise popart_exception("Return period must be <= to the number of batches per step")
            if self._batches % kind.rp():
                raise popart_exception(
                    "Return period must be a factor of the number of batches per step"
                )


class InputSettings:
    """How an input is streamed.

    Args:
        tileSet: Without effect here.
        exchangeStrategy: Without effect here.
        relicatedStreamMode: Whether each replica has rows of its own; the SDK spells it so.
    """

    def __init__(
        self,
        tileSet: Union[TileSet, ReplicatedStreamMode] = TileSet.Compute,
        exchangeStrategy: ExchangeStrategy = ExchangeStrategy.JustInTime,
        *,
        relicatedStreamMode: ReplicatedStreamMode = ReplicatedStreamMode.Replicate,
    ) -> None:
        is_mode = isinstance(tileSet, ReplicatedStreamMode)
        self._mode = ReplicatedStreamMode(tileSet) if is_mode else relicatedStreamMode
        self._tile_set = TileSet.Compute if is_mode else TileSet(tileSet)
        self._strategy = exchangeStrategy

    def tileSet(self) -> TileSet:
        """As given."""
        return self._tile_set

    def exchangeStrategy(self) -> ExchangeStrategy:
        """As given."""
        return self._strategy

    def replicatedStreamMode(self) -> ReplicatedStreamMode:
        """As given."""
        return self._mode


class InputShapeInfo:
    """Shapes and types of inputs of which the model does not say them."""

    def __init__(self) -> None:
        self._infos: Dict[str, TensorInfo] = {}

    def add(self, name: str, info: TensorInfo) -> None:
        """Say what an input is."""
        self._infos[name] = info

    def get(self, name: str) -> TensorInfo:
        """Return what was said.

        Raises:
            popart_exception: If nothing was.
        """
        if name not in self._infos:
            raise popart_exception(f"no info for tensor {name}")
        return self._infos[name]

    def has(self, name: Any) -> bool:
        """Whether something was said."""
        return name in self._infos
