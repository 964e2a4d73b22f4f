"""The ``[ipu]`` table: what PopTorch, TensorFlow for IPU and PopART all have, by one name.

On host targets nothing of it has a meaning, so that one plan serves both; ``plan explain`` says so.
Where compiled programs are kept is ``compile.cache_dir``.
"""

from __future__ import annotations

import sys
from typing import ClassVar, Optional

import msgspec
from msgspec import Meta

from unified_ipu.errors import PlanError
from unified_ipu.plan.settings import Natural, Positive
from unified_ipu.plan.validation import check_fields

if sys.version_info >= (3, 9):
    from typing import Annotated, Literal
else:
    from typing import Literal

    from typing_extensions import Annotated

Location = Literal["on-chip", "off-chip"]
Proportion = Annotated[float, Meta(gt=0, le=1)]

FEWEST_IO_TILES, MOST_IO_TILES = 32, 192


class IpuSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[ipu]``: how a model lies on IPUs.

    Args:
        ipus_per_replica: None: one for each stage.
        replicas_per_process: Replicas that one process drives; PopRun starts as many processes as
            that needs.
        partials_type: Type of partial sums in convolutions and matrix products.
        stochastic_rounding: Round float16 results up or down at random, right on average.
        available_memory_proportion: Share of a tile's memory that convolutions and matrix products
            may use for temporaries; None leaves it to the compiler.
        weights: Where weights lie between uses.
        optimizer_state: Where the optimizer's state lies between updates.
        activations: Where activations lie between forward and backward.
        accumulators: Where accumulated gradients lie.
        replicated_tensor_sharding: Keep each replica's part of the optimizer's state only.
        prefetch_depth: Batches on their way to the device.
        io_tiles: Tiles set aside for host transfers, even and 32 to 192; 0: none.
        synthetic_data: Make the inputs on the device; for measurements only, nothing is learnt.
        offline_compile: Compile without a device.
        random_layers: "refuse" a model that draws random numbers (dropout): devices cannot be given
            a key for each micro-batch, so a run would not repeat after a restart or on another
            number of replicas; "native": draw as the device does, all the same.
    """

    section: ClassVar[str] = "ipu"

    ipus_per_replica: Optional[Positive] = None
    replicas_per_process: Positive = 1
    partials_type: Literal["float32", "float16"] = "float32"
    stochastic_rounding: bool = False
    available_memory_proportion: Optional[Proportion] = None
    weights: Location = "on-chip"
    optimizer_state: Location = "on-chip"
    activations: Location = "on-chip"
    accumulators: Location = "on-chip"
    replicated_tensor_sharding: bool = False
    prefetch_depth: Positive = 1
    io_tiles: Natural = 0
    synthetic_data: bool = False
    offline_compile: bool = False
    random_layers: Literal["refuse", "native"] = "refuse"

    def __post_init__(self) -> None:
        check_fields(self, self.section)
        tiles = self.io_tiles
        if tiles and (tiles % 2 or not FEWEST_IO_TILES <= tiles <= MOST_IO_TILES):
            raise PlanError(
                f"ipu.io_tiles: got {tiles}; expected 0, or an even number from {FEWEST_IO_TILES} "
                f"to {MOST_IO_TILES}"
            )
