"""What a device computes in one call, apart from any framework.

The emulated SDKs are thin skins over it: each translates its own native settings.
"""

from __future__ import annotations

from unified_ipu.device.coefficients import (
    loss_coefficients as loss_coefficients,
    micro_batch_coefficient as micro_batch_coefficient,
)
from unified_ipu.device.fabric import (
    Fabric as Fabric,
    connect_fabric as connect_fabric,
    fabric_of as fabric_of,
)
from unified_ipu.device.layout import CallShape as CallShape, Position as Position
from unified_ipu.device.outputs import Outputs as Outputs, OutputSelection as OutputSelection
from unified_ipu.device.pipeline import (
    forward_stages as forward_stages,
    power_of_two as power_of_two,
    training_stages as training_stages,
)
from unified_ipu.device.program import infer as infer, train as train
from unified_ipu.device.reduction import Arithmetic as Arithmetic, Reduction as Reduction
from unified_ipu.device.weights import WeightCopies as WeightCopies

__all__ = [
    "Arithmetic",
    "CallShape",
    "Fabric",
    "OutputSelection",
    "Outputs",
    "Position",
    "Reduction",
    "WeightCopies",
    "connect_fabric",
    "fabric_of",
    "forward_stages",
    "infer",
    "loss_coefficients",
    "micro_batch_coefficient",
    "power_of_two",
    "train",
    "training_stages",
]
