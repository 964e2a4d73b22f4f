"""All operators, by family."""

from __future__ import annotations

from unified_ipu_onnx.operators.convolution import OPERATORS as CONVOLUTION
from unified_ipu_onnx.operators.linear import OPERATORS as LINEAR
from unified_ipu_onnx.operators.pointwise import OPERATORS as POINTWISE
from unified_ipu_onnx.operators.shape import OPERATORS as SHAPE
from unified_ipu_onnx.registry import Registry

REGISTRY = Registry((*CONVOLUTION, *LINEAR, *POINTWISE, *SHAPE))
