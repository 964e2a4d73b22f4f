"""Arrays that go into a step and come out of it."""

from __future__ import annotations

from typing import Any, Dict, Mapping

import numpy as np

from unified_ipu_onnx.emulated.popart.errors import NotEmulatedError, popart_exception
from unified_ipu_onnx.emulated.popart.tensor_info import TensorInfo


class PyStepIO:
    """Inputs and outputs of one ``run``.

    Args:
        inputs: C-contiguous arrays by name; leading axes may be shaped freely.
        outputs: Arrays that are filled in place, as ``initAnchorArrays`` makes them.

    Raises:
        popart_exception: If an array is not C-contiguous.
    """

    def __init__(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> None:
        self.inputs: Dict[str, Any] = dict(inputs)
        self.outputs: Dict[str, Any] = dict(outputs)
        self.asserts = True
        for name, array in (*self.inputs.items(), *self.outputs.items()):
            if not isinstance(array, np.ndarray) or not array.flags.c_contiguous:
                raise popart_exception(
                    f"the array of {name!r} must be a C-contiguous numpy array; make it one with "
                    "numpy.ascontiguousarray"
                )

    def enableRuntimeAsserts(self, enabled: bool) -> None:
        """Without effect: sizes and types are always checked here."""
        self.asserts = bool(enabled)


def steps_of(name: str, array: np.ndarray, info: TensorInfo, count: int) -> np.ndarray:
    """Cut an input into the micro-batches of a step.

    Args:
        name: Of the tensor.
        array: Of any leading shape.
        info: Of one micro-batch.
        count: How many there must be.

    Returns:
        ``[count, *shape]``, in the order in which they are consumed.

    Raises:
        popart_exception: If type or number of elements differ.
    """
    if array.dtype != info.data_type_lcase():
        raise popart_exception(
            f"Type discrepancy for tensor {name}. User provided : {array.dtype} and expected : "
            f"{info.data_type_lcase()}. Consider a custom copy here (as memcpy cannot be used)"
        )
    if array.size != info.nelms() * count:
        raise popart_exception(
            f"Unexpected number of elements for tensor {name}. Expected {info.nelms() * count} "
            f"({count} x {info.shape()}), but received {array.size} with shape "
            f"{list(array.shape)}"
        )
    return array.reshape([count, *info.shape()])


class PyWeightsIO:
    """Arrays that ``readWeights`` fills and ``writeWeights`` reads.

    Args:
        weights: By name of the tensor.
    """

    def __init__(self, weights: Mapping[str, np.ndarray]) -> None:
        self.weights: Dict[str, np.ndarray] = dict(weights)


class PyStepIOCallback:
    """Inputs and outputs by callbacks: not emulated.

    Raises:
        popart_exception: Always.
    """

    def __init__(self, *callbacks: Any, **named: Any) -> None:
        del callbacks, named
        raise NotEmulatedError("PyStepIOCallback; use PyStepIO with arrays")
