"""All operators, by family."""

from __future__ import annotations

from unified_ipu_onnx.operators.control_flow import OPERATORS as CONTROL_FLOW
from unified_ipu_onnx.operators.convolution import OPERATORS as CONVOLUTION
from unified_ipu_onnx.operators.indexing import OPERATORS as INDEXING
from unified_ipu_onnx.operators.linear import OPERATORS as LINEAR
from unified_ipu_onnx.operators.losses import OPERATORS as LOSSES
from unified_ipu_onnx.operators.normalisation import OPERATORS as NORMALISATION
from unified_ipu_onnx.operators.pointwise import OPERATORS as POINTWISE
from unified_ipu_onnx.operators.pooling import OPERATORS as POOLING
from unified_ipu_onnx.operators.reduction import OPERATORS as REDUCTION
from unified_ipu_onnx.operators.regularisation import OPERATORS as REGULARISATION
from unified_ipu_onnx.operators.resize import OPERATORS as RESIZE
from unified_ipu_onnx.operators.shape import OPERATORS as SHAPE
from unified_ipu_onnx.registry import Registry

REGISTRY = Registry(
    (
        *CONTROL_FLOW,
        *CONVOLUTION,
        *INDEXING,
        *LINEAR,
        *LOSSES,
        *NORMALISATION,
        *POINTWISE,
        *POOLING,
        *REDUCTION,
        *REGULARISATION,
        *RESIZE,
        *SHAPE,
    )
)
