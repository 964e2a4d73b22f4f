"""Operators of ONNX that PopART of SDK 3.4 can run, at operator set 11 at most.

Source: the operator definitions in ``willow/src/op`` and ``willow/src/ces`` and the rewrites in
``willow/src/onnxpasses``. That the builder has a method does not mean that PopART runs it.
"""

from __future__ import annotations

OLDEST_OPSET, DEFAULT_OPSET, NEWEST_OPSET = 6, 10, 11
GRAPHCORE = "ai.graphcore"

IMPLEMENTED = frozenset(
    """
    Abs Acos Acosh Add And ArgMax ArgMin Asin Asinh Atan Atanh AveragePool BatchNormalization Cast
    Ceil Clip Concat Constant ConstantOfShape Conv ConvTranspose Cos Cosh CumSum DepthToSpace Div
    Dropout Elu Equal Erf Exp Expand Flatten Floor GRU Gather Gemm GlobalAveragePool GlobalMaxPool
    Greater HardSigmoid Identity If InstanceNormalization IsInf IsNaN LRN LSTM LeakyRelu Less Log
    LogSoftmax Loop MatMul Max MaxPool Mean Min Mod Mul Neg Not OneHot Or PRelu Pad Pow RNN
    RandomNormal RandomNormalLike RandomUniform RandomUniformLike Reciprocal ReduceL1 ReduceL2
    ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum
    ReduceSumSquare Relu Reshape Resize RoiAlign Round Scan Scatter ScatterElements Selu Shape
    Shrink Sigmoid Sign Sin Sinh Slice Softmax Softplus Softsign SpaceToDepth Split Sqrt Squeeze
    Sub Sum Tan Tanh ThresholdedRelu Tile TopK Transpose Unsqueeze Upsample Where
    """.split()  # noqa: SIM905  a list of a hundred strings is no better
)
