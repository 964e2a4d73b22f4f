"""What of the plan changes how an update is made."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Optional, Union


@dataclass(frozen=True)
class UpdateRules:
    """The settings of the update law.

    Args:
        reduction: ``"mean"``: g = sum of dS / sum of W; ``"sum"``: g = sum of dS.
        clip_norm: Largest global norm of g, or None.
        global_batch_size: G, in samples; its nearest power of two scales what is accumulated.
        bucket_bytes: Size of a gradient bucket, in bytes.
        seed: The plan's.
        program: Index of the program in its session.
        compute: Type of forward and backward.
        reduce: Type of the summed gradients: ``"float32"``, the parameters' own, or ``"compute"``.
        loss_scale: ``"none"``, ``"dynamic"`` or a number.
    """

    reduction: str = "mean"
    clip_norm: Optional[float] = None
    global_batch_size: int = 1
    bucket_bytes: int = 26214400
    seed: int = 0
    program: int = 0
    compute: str = "float32"
    reduce: str = "float32"
    loss_scale: Union[str, float] = "none"

    @property
    def is_reduced(self) -> bool:
        """Whether forward and backward run in half precision."""
        return self.compute != "float32"

    @property
    def bucket_dtype(self) -> Optional[str]:
        """Type of the gradients that are reduced; None: that of their parameters."""
        return self.compute if self.is_reduced and self.reduce == "compute" else None

    @property
    def reference_weight(self) -> float:
        """Power of two near G: keeps accumulated gradients near the size of a mean, exactly."""
        return float(2.0 ** round(math.log2(self.global_batch_size)))
