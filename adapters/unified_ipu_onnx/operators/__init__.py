"""All operators, by family."""

from __future__ import annotations

from unified_ipu_onnx.operators.algebra import OPERATORS as ALGEBRA
from unified_ipu_onnx.operators.blocks import OPERATORS as BLOCKS
from unified_ipu_onnx.operators.control_flow import OPERATORS as CONTROL_FLOW
from unified_ipu_onnx.operators.convolution import OPERATORS as CONVOLUTION
from unified_ipu_onnx.operators.graphcore import OPERATORS as GRAPHCORE
from unified_ipu_onnx.operators.grid import OPERATORS as GRID
from unified_ipu_onnx.operators.indexing import OPERATORS as INDEXING
from unified_ipu_onnx.operators.linear import OPERATORS as LINEAR
from unified_ipu_onnx.operators.losses import OPERATORS as LOSSES
from unified_ipu_onnx.operators.matrices import OPERATORS as MATRICES
from unified_ipu_onnx.operators.normalisation import OPERATORS as NORMALISATION
from unified_ipu_onnx.operators.ordering import OPERATORS as ORDERING
from unified_ipu_onnx.operators.pointwise import OPERATORS as POINTWISE
from unified_ipu_onnx.operators.pooling import OPERATORS as POOLING
from unified_ipu_onnx.operators.quantisation import OPERATORS as QUANTISATION
from unified_ipu_onnx.operators.random_numbers import OPERATORS as RANDOM_NUMBERS
from unified_ipu_onnx.operators.rearranging import OPERATORS as REARRANGING
from unified_ipu_onnx.operators.recurrent import OPERATORS as RECURRENT
from unified_ipu_onnx.operators.reduction import OPERATORS as REDUCTION
from unified_ipu_onnx.operators.regularisation import OPERATORS as REGULARISATION
from unified_ipu_onnx.operators.resize import OPERATORS as RESIZE
from unified_ipu_onnx.operators.scatter import OPERATORS as SCATTER
from unified_ipu_onnx.operators.sequences import OPERATORS as SEQUENCES
from unified_ipu_onnx.operators.shape import OPERATORS as SHAPE
from unified_ipu_onnx.operators.signals import OPERATORS as SIGNALS
from unified_ipu_onnx.registry import Registry

REGISTRY = Registry(
    (
        *ALGEBRA,
        *BLOCKS,
        *CONTROL_FLOW,
        *CONVOLUTION,
        *GRAPHCORE,
        *GRID,
        *INDEXING,
        *LINEAR,
        *LOSSES,
        *MATRICES,
        *NORMALISATION,
        *ORDERING,
        *POINTWISE,
        *POOLING,
        *QUANTISATION,
        *RANDOM_NUMBERS,
        *RECURRENT,
        *REARRANGING,
        *REDUCTION,
        *REGULARISATION,
        *RESIZE,
        *SCATTER,
        *SEQUENCES,
        *SHAPE,
        *SIGNALS,
    )
)
