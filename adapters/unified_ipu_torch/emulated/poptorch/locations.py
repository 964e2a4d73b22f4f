"""Where tensors would live on the hardware: checked and kept, without effect here.

Source: PopTorch 3.4, ``python/options.py``.
"""

from __future__ import annotations

from typing import Optional

from unified_ipu_torch.emulated.poptorch.errors import require
from unified_ipu_torch.emulated.poptorch.log import note_once
from unified_ipu_torch.emulated.poptorch.values import OptionsDict

MEMORY = "the host has one memory"
LEAST_TILES, MOST_TILES = 32, 192


class TensorLocationSettings(OptionsDict):
    """Where one kind of tensor lives; nothing is set at first."""

    def minElementsForOffChip(self, min_elements: int) -> TensorLocationSettings:
        """Keep smaller tensors on the chip."""
        return self._integer("minElementsForOffChip", min_elements)

    def minElementsForReplicatedTensorSharding(self, min_elements: int) -> TensorLocationSettings:
        """Do not shard smaller tensors."""
        return self._integer("minElementsForReplicatedTensorSharding", min_elements)

    def useOnChipStorage(self, use: Optional[bool] = True) -> TensorLocationSettings:
        """Keep them on the chip; None leaves it open."""
        if use is None:
            self.deleteIfExists("onChip")
            return self
        return self._flag("onChip", use)

    def useReplicatedTensorSharding(self, use: bool = True) -> TensorLocationSettings:
        """Let each replica keep a part only."""
        return self._flag("useReplicatedTensorSharding", use)

    def useIOTilesToLoad(self, use: bool = True) -> TensorLocationSettings:
        """Load through the tiles set apart for transfers."""
        return self._flag("useIOTilesToLoad", use)

    def useIOTilesToStore(self, use: bool = True) -> TensorLocationSettings:
        """Store through the tiles set apart for transfers."""
        return self._flag("useIOTilesToStore", use)

    def _integer(self, name: str, value: int) -> TensorLocationSettings:
        require(isinstance(value, int), f"{name} must be an int, got {value!r}")
        self.createOrSet(**{name: value})
        return self

    def _flag(self, name: str, value: Optional[bool]) -> TensorLocationSettings:
        require(isinstance(value, bool), f"{name} must be a bool, got {value!r}")
        self.createOrSet(**{name: int(bool(value))})
        return self


class _TensorLocationOptions(OptionsDict):
    """The settings of each kind of tensor."""

    def numIOTiles(self, num_tiles: int) -> _TensorLocationOptions:
        """Set tiles apart for transfers.

        Args:
            num_tiles: Even, 32 to 192.

        Raises:
            AssertionError: If it is another number.
        """
        require(isinstance(num_tiles, int), f"numIOTiles must be an int, got {num_tiles!r}")
        require(
            LEAST_TILES <= num_tiles <= MOST_TILES and num_tiles % 2 == 0,
            f"numIOTiles must be an even number between {LEAST_TILES} and {MOST_TILES}.",
        )
        self.createOrSet(numIOTiles=num_tiles)
        return self

    def setActivationLocation(self, location: TensorLocationSettings) -> _TensorLocationOptions:
        """Set where activations live."""
        return self._set("activation", location)

    def setWeightLocation(self, location: TensorLocationSettings) -> _TensorLocationOptions:
        """Set where weights live."""
        return self._set("weight", location)

    def setOptimizerLocation(self, location: TensorLocationSettings) -> _TensorLocationOptions:
        """Set where the optimizer's slots live."""
        return self._set("optimizer", location)

    def setAccumulatorLocation(self, location: TensorLocationSettings) -> _TensorLocationOptions:
        """Set where gradient accumulators live."""
        return self._set("accumulator", location)

    def _set(self, kind: str, location: TensorLocationSettings) -> _TensorLocationOptions:
        require(
            isinstance(location, TensorLocationSettings),
            f"expected poptorch.TensorLocationSettings, got {type(location)}",
        )
        self.createOrSet(**{f"location_{kind}": location.toDict()})
        note_once(f"TensorLocations.set{kind.capitalize()}Location", MEMORY)
        return self
