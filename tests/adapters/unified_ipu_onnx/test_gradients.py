"""Gradients of every differentiable operator, against finite differences of other engines.

The graphs are the node cases of the onnx package. The slopes are those of onnxruntime's forward in
double precision; where it has no kernel for that, of the reference evaluator of ONNX; where an
operator is defined for float32 only, or an engine computes in it, in single precision with a longer
step and a wider tolerance.
"""

from __future__ import annotations

import math
from collections import defaultdict
from functools import lru_cache
from typing import Any, Dict, List, Optional, Tuple

import numpy as np
import onnx_coverage
import pytest
import torch
from onnx import ModelProto
from onnx_coverage import Case

from tests.adapters.unified_ipu_onnx.finite_differences import (
    engine_of,
    feeds_of,
    in_double,
    slope,
)
from unified_ipu_onnx.module import GraphModule
from unified_ipu_onnx.trainable import trained_positions

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

# Step, and tolerances of a slope: relative, and absolute for slopes that cancel.
DOUBLE = (1e-6, 2e-5, 1e-6)
SINGLE = (4e-3, 5e-3, 2e-3)

FLOATS = {"float32", "float64"}

# Definitions that leave open what has a gradient, and that have a body or a function of ours.
EVERY_FLOAT = {
    "AffineGrid", "CausalConvWithState", "DFT", "FlexAttention", "LinearAttention", "STFT",
    "Unique",
}  # fmt: skip

OPERATORS = [
    "Abs", "Acos", "Acosh", "Add", "AffineGrid", "Asin", "Asinh", "Atan", "Atanh", "Attention",
    "AveragePool", "BatchNormalization", "CausalConvWithState", "Celu", "CenterCropPad", "Clip",
    "Col2Im", "Compress", "Concat", "Conv", "ConvTranspose", "Cos", "Cosh", "CumProd", "CumSum",
    "DFT", "DeformConv", "DepthToSpace", "Det", "Div", "Dropout", "Einsum", "Elu", "Erf", "Exp",
    "Expand", "Flatten", "FlexAttention", "GRU", "Gather", "GatherElements", "GatherND", "Gelu",
    "Gemm", "GlobalAveragePool", "GlobalMaxPool", "GridSample", "GroupNormalization",
    "HardSigmoid", "HardSwish", "Identity", "InstanceNormalization", "LRN", "LSTM",
    "LayerNormalization", "LeakyRelu", "LinearAttention", "Log", "LogSoftmax", "Loop",
    "LpNormalization", "LpPool", "MatMul", "Max", "MaxPool", "MaxUnpool", "Mean",
    "MeanVarianceNormalization", "Min", "Mish", "Mod", "Mul", "Neg", "NegativeLogLikelihoodLoss",
    "PRelu", "Pad", "Pow", "RMSNormalization", "RNN", "Reciprocal", "ReduceL1", "ReduceL2",
    "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd",
    "ReduceSum", "ReduceSumSquare", "Relu", "Reshape", "Resize", "ReverseSequence", "RoiAlign",
    "RotaryEmbedding", "STFT", "Scan", "Scatter", "ScatterElements", "ScatterND", "Selu",
    "Shrink", "Sigmoid", "Sin", "Sinh", "Slice", "Softmax", "SoftmaxCrossEntropyLoss", "Softplus",
    "Softsign", "SpaceToDepth", "Split", "Sqrt", "Squeeze", "Sub", "Sum", "SwiGLU", "Swish",
    "Tan", "Tanh", "TensorScatter", "ThresholdedRelu", "Tile", "TopK", "Transpose", "Unique",
    "Unsqueeze", "Upsample", "Where",
]  # fmt: skip

# Steps, integers, constants, and what another engine computes here.
WITHOUT_GRADIENT = {
    "Adagrad", "Adam", "ArrayFeatureExtractor", "Binarizer", "Ceil", "DequantizeLinear",
    "DynamicQuantizeLinear", "Floor", "Hardmax", "MelWeightMatrix", "Momentum", "OneHot",
    "OptionalGetElement", "Range", "Round", "Sign", "TreeEnsemble",
}  # fmt: skip

Settings = Tuple[float, float, float]


@pytest.mark.parametrize("operator", OPERATORS)
def test_the_gradient_is_the_slope_of_another_engine(operator: str) -> None:
    assert sum(checked(case) for case in cases()[operator]) > 0


def test_every_operator_has_its_gradient_checked_or_has_none() -> None:
    assert set(cases()) - WITHOUT_GRADIENT == set(OPERATORS)
    for operator in WITHOUT_GRADIENT:
        assert sum(checked(case) for case in cases().get(operator, ())) == 0


def test_a_wrong_gradient_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check that cannot fail would prove nothing: this one does when a slope is off by 1 %."""
    take = torch.autograd.grad

    def off(*args: Any, **settings: Any) -> Any:
        return tuple(gradient * 1.01 for gradient in take(*args, **settings))

    monkeypatch.setattr(torch.autograd, "grad", off)
    with pytest.raises(AssertionError, match="test_tanh"):
        checked(cases()["Tanh"][0])


def checked(case: Case) -> int:
    """Number of slopes of a case that were compared; fails if one differs."""
    model = in_double(case.model)
    names = _differentiable(case, model)
    feeds = _moved(model, case, names, 1e-3)
    double = [name for name in names if feeds[name].dtype == np.float64]
    if double:
        try:
            engine = engine_of(model, feeds)
            outputs = engine(feeds)
        except Exception:  # noqa: BLE001  # bodies with constants of float32, in either engine
            double = []
        else:
            # An engine that agrees to 1e-7 only, or an output in float32, was rounded inside.
            apart = _distance(model, case, feeds, outputs)
            assert apart < 1e-5
            settings = DOUBLE if apart < 1e-10 else SINGLE
            if settings is SINGLE:
                feeds = _moved(model, case, names, 2e-2)
            return _compared(case, model, feeds, double, engine, settings)
    single = [name for name in names if feeds[name].dtype.name in FLOATS]
    if not single:
        return 0
    feeds = _moved(case.model, case, names, 2e-2)
    engine = engine_of(case.model, feeds)
    assert _distance(case.model, case, feeds, engine(feeds)) < 1e-4
    return _compared(case, case.model, feeds, single, engine, SINGLE)


def _differentiable(case: Case, model: ModelProto) -> List[str]:
    node = model.graph.node[0]
    every = node.op_type in EVERY_FLOAT
    positions = trained_positions(node.domain, node.op_type)
    fed = {value.name for value in model.graph.input}
    del case
    return [
        name
        for index, name in enumerate(node.input)
        if name in fed and (every or index in positions)
    ]


def _moved(model: ModelProto, case: Case, names: List[str], size: float) -> Dict[str, Any]:
    """Inputs a little away from where they are: many lie on kinks, or are equal to each other."""
    feeds = feeds_of(model, case.data[0][0])
    rng = np.random.default_rng(1)
    for name in names:
        value = feeds[name]
        if value.dtype.name in FLOATS:
            noise = size * (1 + rng.random(value.shape))
            feeds[name] = np.asarray(value + noise, value.dtype)
    return feeds


def _outputs(
    model: ModelProto, case: Case, feeds: Dict[str, Any], names: List[str]
) -> Tuple[List[torch.Tensor], Dict[str, torch.Tensor]]:
    module = GraphModule.from_model(model).train(case.is_training)
    inputs = {name: torch.from_numpy(np.array(value)) for name, value in feeds.items()}
    for name in names:
        inputs[name].requires_grad_()
    result = module(**inputs)
    return (list(result.values()) if isinstance(result, dict) else [result]), inputs


def _distance(model: ModelProto, case: Case, feeds: Dict[str, Any], outputs: List[Any]) -> float:
    ours, _ = _outputs(model, case, feeds, [])
    farthest = 0.0
    for own, other in zip(ours, outputs):
        if own.is_floating_point() and own.numel():
            a, b = own.double().numpy(), np.asarray(other, np.float64)
            finite = np.isfinite(a) & np.isfinite(b)
            apart = np.abs(a[finite] - b[finite]) / (1 + np.abs(b[finite]))
            farthest = max(farthest, float(apart.max(initial=0.0)))
    return farthest


def _compared(
    case: Case,
    model: ModelProto,
    feeds: Dict[str, Any],
    names: List[str],
    engine: Any,
    settings: Settings,
) -> int:
    step, relative, absolute = settings
    outputs, inputs = _outputs(model, case, feeds, names)
    rng = np.random.default_rng(2)
    cotangents: List[Any] = []
    total = torch.zeros((), dtype=torch.float64)
    for output in outputs:
        # What is rounded to float32 has no slope over a short step.
        counts = output.dtype == torch.float64 or (
            output.dtype == torch.float32 and settings is SINGLE
        )
        weights = rng.standard_normal(output.shape) * torch.isfinite(output).numpy()
        cotangents.append(np.asarray(weights) if counts and output.requires_grad else None)
        if cotangents[-1] is not None:
            counted = torch.from_numpy(np.asarray(weights))
            total = total + (output.double() * counted)[counted != 0].sum()
    if not total.requires_grad:
        return 0
    tensors = [inputs[name] for name in names]
    gradients = torch.autograd.grad(total, tensors, allow_unused=True)
    given: List[Optional[torch.Tensor]] = list(gradients)
    for name, gradient in zip(names, given):
        direction = rng.choice([-1.0, 1.0], feeds[name].shape)
        expected = slope(engine, feeds, {name: direction}, cotangents, step)
        found = 0.0 if gradient is None else float((gradient.double().numpy() * direction).sum())
        close = math.isclose(found, expected, rel_tol=relative, abs_tol=absolute)
        assert close, (case.name, name, found, expected, step)
    return len(names)


@lru_cache(maxsize=1)
def cases() -> Dict[str, List[Case]]:
    """Native node cases of one node, by operator, of types that numpy has."""
    found: Dict[str, List[Case]] = defaultdict(list)
    for case in onnx_coverage.nodes():
        if case.is_random or not case.has_floats or len(case.model.graph.node) != 1:
            continue
        if "expanded" in case.name or case.name in SLOW or _has_other_types(case):
            continue
        found[case.model.graph.node[0].op_type].append(case)
    return found


SLOW = {f"test_{kind}_3d_default" for kind in ("averagepool", "lppool", "maxpool")}


def _has_other_types(case: Case) -> bool:
    return any(
        not isinstance(value, (np.ndarray, np.generic))
        or value.dtype.name in {"float16", "bfloat16"}
        for value in case.data[0][0]
    )
