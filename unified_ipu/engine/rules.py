"""What of the plan changes how an update is made."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Optional


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
    """

    reduction: str = "mean"
    clip_norm: Optional[float] = None
    global_batch_size: int = 1
    bucket_bytes: int = 26214400
    seed: int = 0
    program: int = 0

    @property
    def reference_weight(self) -> float:
        """Power of two near G: keeps accumulated gradients near the size of a mean, exactly."""
        return float(2.0 ** round(math.log2(self.global_batch_size)))
