"""Element by element: arithmetic, comparison, logic and activations."""

from __future__ import annotations

from functools import reduce
from typing import Any, Callable, Optional, Tuple

import torch
from torch.nn import functional

from unified_ipu_onnx.nodes import Node
from unified_ipu_onnx.operators.unsigned import with_unsigned
from unified_ipu_onnx.registry import Function, Operator

Binary = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def unary(function: Function) -> Callable[[Node], Function]:
    """Builder of an operator without attributes."""
    return lambda _: function


def binary(function: Binary) -> Callable[[Node], Function]:
    """Builder of a broadcasting operator, before operator set 7 with ``axis``."""

    def build(node: Node) -> Function:
        axis = node.integer("axis", -1)
        if node.opset >= 7 or not node.integer("broadcast") or axis < 0:
            return function

        def run(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            # The axes of b are laid on those of a from ``axis`` on.
            return function(a, b.reshape(b.shape + (1,) * (a.dim() - axis - b.dim())))

        return run

    return build


def variadic(function: Binary) -> Callable[[Node], Function]:
    """Builder of an operator over any number of inputs."""
    return lambda _: lambda *values: reduce(function, values)


def divide(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Quotient; of integers cut towards zero."""
    if a.is_floating_point() or a.is_complex():
        return a / b
    return torch.div(a, b, rounding_mode="trunc")


def power(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Power in the type of the base."""
    if a.is_floating_point() and not b.is_floating_point():
        b = b.to(a.dtype)  # torch takes no gradient where the exponent is unsigned
    return torch.pow(a, b) if a.dtype == b.dtype else torch.pow(a, b).to(a.dtype)


def modulo(node: Node) -> Function:
    """Remainder with the sign of the divisor, or with ``fmod`` of the dividend."""
    return torch.fmod if node.integer("fmod") else with_unsigned("Mod", torch.remainder)


def mean(node: Node) -> Function:
    """Mean over the inputs."""
    del node
    return lambda *values: reduce(torch.add, values) / len(values)


def clip(node: Node) -> Function:
    """Between the bounds of the attributes; before operator set 11."""
    low = node.number("min") if node.has("min") else None
    high = node.number("max") if node.has("max") else None
    return lambda x: torch.clamp(x, low, high) if (low, high) != (None, None) else x


def clip_inputs(node: Node) -> Function:
    """Between the bounds of the inputs, where the upper one wins."""
    del node

    def run(
        x: torch.Tensor, low: Optional[torch.Tensor] = None, high: Optional[torch.Tensor] = None
    ) -> torch.Tensor:
        if low is None and high is None:
            return x
        return torch.clamp(x, low, high)

    return run


def activation(function: Function, **defaults: float) -> Callable[[Node], Function]:
    """Builder of an activation whose attributes are numbers, in the order of ``defaults``."""

    def build(node: Node) -> Function:
        settings: Tuple[float, ...] = tuple(
            node.number(name, default) for name, default in defaults.items()
        )
        return lambda x: function(x, *settings)

    return build


def selu(x: torch.Tensor, alpha: float, gamma: float) -> torch.Tensor:
    """``gamma (x or alpha (exp x - 1))``."""
    return gamma * functional.elu(x, alpha)


def hard_sigmoid(x: torch.Tensor, alpha: float, beta: float) -> torch.Tensor:
    """``alpha x + beta`` between 0 and 1."""
    return torch.clamp(alpha * x + beta, 0, 1)


def celu(x: torch.Tensor, alpha: float) -> torch.Tensor:
    """Continuously differentiable ELU."""
    return functional.celu(x, alpha)


def thresholded_relu(x: torch.Tensor, alpha: float) -> torch.Tensor:
    """``x`` above ``alpha``, else 0."""
    return torch.where(x > alpha, x, torch.zeros_like(x))


def shrink(x: torch.Tensor, bias: float, lambd: float) -> torch.Tensor:
    """Move towards zero by ``bias``, and to it within ``lambd``."""
    zero = torch.zeros_like(x)
    return torch.where(x < -lambd, x + bias, torch.where(x > lambd, x - bias, zero))


def swish(x: torch.Tensor, alpha: float) -> torch.Tensor:
    """``x sigmoid(alpha x)``."""
    return x * torch.sigmoid(alpha * x)


def gelu(node: Node) -> Function:
    """Exact, or by tanh."""
    approximate = node.text("approximate", "none")
    return lambda x: functional.gelu(x, approximate=approximate)


def prelu(node: Node) -> Function:
    """Leaky, with a slope that is broadcast to ``x`` from the right."""
    old = node.opset < 7

    def run(x: torch.Tensor, slope: torch.Tensor) -> torch.Tensor:
        if old and slope.dim() == 1 and slope.numel() > 1 and x.dim() > 2:
            slope = slope.reshape((-1,) + (1,) * (x.dim() - 2))
        return torch.where(x < 0, x * slope, x)

    return run


def softmax(function: Function) -> Callable[[Node], Function]:
    """Builder over one axis."""

    def build(node: Node) -> Function:
        axis = node.integer("axis", -1)
        return lambda x: function(x, axis)

    return build


def softmax_of_rows(function: Function) -> Callable[[Node], Function]:
    """Builder over all axes from ``axis`` on together; before operator set 13."""

    def build(node: Node) -> Function:
        axis = node.integer("axis", 1)

        def run(x: torch.Tensor) -> torch.Tensor:
            first = axis % x.dim() if x.dim() else 0
            if first == x.dim() - 1:
                result: torch.Tensor = function(x, -1)
                return result
            return function(x.flatten(first), -1).reshape(x.shape)  # type: ignore[no-any-return]

        return run

    return build


def softmax_of_masked(x: torch.Tensor, axis: int) -> torch.Tensor:
    """Softmax whose rows of minus infinity, which give NaN, pass no gradient on.

    Attention replaces such a row by zeros behind the softmax. Its gradient is 0 then, and 0 times
    NaN would still be NaN for all that leads to the row.
    """
    result = torch.softmax(x, axis)
    if result.grad_fn is not None and result.numel() and result.dim():
        masked = result.narrow(axis, 0, 1).isnan()

        def without_masked(gradients: Any, _: Any) -> Tuple[torch.Tensor]:
            return (gradients[0].masked_fill(masked, 0.0),)

        result.grad_fn.register_hook(without_masked)
    return result


def hardmax(x: torch.Tensor, axis: int) -> torch.Tensor:
    """1 at the first largest element of the axis, else 0."""
    chosen = torch.argmax(x, axis, keepdim=True)
    return torch.zeros_like(x).scatter_(axis, chosen, 1)


def is_inf(node: Node) -> Function:
    """Infinite, of the signs asked for."""
    negative = bool(node.integer("detect_negative", 1))
    positive = bool(node.integer("detect_positive", 1))

    def run(x: torch.Tensor) -> torch.Tensor:
        found = torch.isinf(x)
        return found & ((x < 0) & negative | (x > 0) & positive)

    return run


def where(condition: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """``a`` where the condition holds, else ``b``."""
    return torch.where(condition, a, b)


_UNARY: Tuple[Tuple[str, Any], ...] = (
    ("Abs", torch.abs), ("Acos", torch.acos), ("Acosh", torch.acosh), ("Asin", torch.asin),
    ("Asinh", torch.asinh), ("Atan", torch.atan), ("Atanh", torch.atanh), ("Ceil", torch.ceil),
    ("Cos", torch.cos), ("Cosh", torch.cosh), ("Erf", torch.erf), ("Exp", torch.exp),
    ("Floor", torch.floor), ("HardSwish", functional.hardswish), ("IsNaN", torch.isnan),
    ("Log", torch.log), ("Mish", functional.mish), ("Neg", torch.neg), ("Not", torch.logical_not),
    ("Reciprocal", torch.reciprocal), ("Relu", torch.relu), ("Round", torch.round),
    ("Sigmoid", torch.sigmoid), ("Sign", torch.sign), ("Sin", torch.sin), ("Sinh", torch.sinh),
    ("Softplus", functional.softplus), ("Softsign", functional.softsign), ("Sqrt", torch.sqrt),
    ("Tan", torch.tan), ("Tanh", torch.tanh),
)  # fmt: skip

_BINARY: Tuple[Tuple[str, Any], ...] = (
    ("Add", torch.add), ("And", torch.logical_and), ("Div", divide), ("Equal", torch.eq),
    ("Greater", torch.gt), ("GreaterOrEqual", torch.ge), ("Less", torch.lt),
    ("LessOrEqual", torch.le), ("Mul", torch.mul), ("Or", torch.logical_or), ("Pow", power),
    ("Sub", torch.sub), ("Xor", torch.logical_xor),
)  # fmt: skip

OPERATORS = (
    *(Operator(name, 1, unary(function)) for name, function in _UNARY),
    *(Operator(name, 1, binary(with_unsigned(name, function))) for name, function in _BINARY),
    Operator("Celu", 12, activation(celu, alpha=1.0)),
    Operator("Clip", 1, clip),
    Operator("Clip", 11, clip_inputs),
    Operator("Elu", 1, activation(functional.elu, alpha=1.0)),
    Operator("Gelu", 20, gelu),
    Operator("HardSigmoid", 1, activation(hard_sigmoid, alpha=0.2, beta=0.5)),
    Operator("Hardmax", 1, softmax_of_rows(hardmax)),
    Operator("Hardmax", 13, softmax(hardmax)),
    Operator("IsInf", 10, is_inf),
    Operator("LeakyRelu", 1, activation(functional.leaky_relu, alpha=0.01)),
    Operator("LogSoftmax", 1, softmax_of_rows(torch.log_softmax)),
    Operator("LogSoftmax", 13, softmax(torch.log_softmax)),
    Operator("Max", 1, variadic(with_unsigned("Max", torch.maximum))),
    Operator("Mean", 1, mean),
    Operator("Min", 1, variadic(with_unsigned("Min", torch.minimum))),
    Operator("Mod", 10, modulo),
    Operator("PRelu", 1, prelu),
    Operator(
        "Selu",
        6,
        activation(selu, alpha=1.67326319217681884765625, gamma=1.05070102214813232421875),
    ),
    Operator("Selu", 1, activation(selu, alpha=1.6732, gamma=1.0507)),
    Operator("Shrink", 9, activation(shrink, bias=0.0, lambd=0.5)),
    Operator("Softmax", 1, softmax_of_rows(softmax_of_masked)),
    Operator("Softmax", 13, softmax(softmax_of_masked)),
    Operator("Sum", 1, variadic(torch.add)),
    Operator("Swish", 24, activation(swish, alpha=1.0)),
    Operator("ThresholdedRelu", 10, activation(thresholded_relu, alpha=1.0)),
    Operator("Where", 9, unary(where)),
)
