"""Which tensors of a graph are weights: the definitions of the operators that read them say so."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, FrozenSet, Iterable, List, Mapping, Set, Tuple

import onnx
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto

from unified_ipu_onnx.functions import Key, functions_of
from unified_ipu_onnx.reading import plain_domain

_FLOATS = frozenset(
    {TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16}
)
_ALL = frozenset(range(32))

# Operators whose definitions leave it open which inputs have a gradient, or are of no use here.
# Loop and Scan pass their values on to a body that is looked at by itself.
_TRAINED: Mapping[str, FrozenSet[int]] = {
    "Attention": frozenset({0, 1, 2}),
    "DeformConv": frozenset({0, 1, 2, 3, 4}),
    "FlexAttention": frozenset({0, 1, 2}),
    "LayerNormalization": frozenset({0, 1, 2}),
    "Loop": _ALL - {0, 1},
    "ReverseSequence": frozenset({0}),
    "RMSNormalization": frozenset({0, 1}),
    "RoiAlign": frozenset({0}),
    "RotaryEmbedding": frozenset({0}),
    "Scan": _ALL,
    "Upsample": frozenset({0}),
    # Its mean and variance are called differentiable; they are state.
    "BatchNormalization": frozenset({0, 1, 2}),
}
# Inputs that pass a gradient on to what they were computed from, whatever the definitions say. A
# tensor of the file that lies there itself is a setting (a mask, a window, a first state of zeros).
_PASSED_ON: Mapping[str, FrozenSet[int]] = {
    "AffineGrid": frozenset({0}),
    "Attention": frozenset({3, 4, 5}),
    "CausalConvWithState": frozenset({3}),
    "Clip": frozenset({1, 2}),
    "ConcatFromSequence": _ALL,
    "DequantizeLinear": frozenset({0, 1}),
    "DFT": frozenset({0}),
    "GridSample": frozenset({1}),
    "GRU": frozenset({5}),
    "LinearAttention": frozenset({3}),
    "LSTM": frozenset({5, 6}),
    "OneHot": frozenset({2}),
    "Optional": _ALL,
    "OptionalGetElement": _ALL,
    "RNN": frozenset({5}),
    "RotaryEmbedding": frozenset({1, 2}),
    "SequenceAt": frozenset({0}),
    "SequenceConstruct": _ALL,
    "SequenceErase": frozenset({0}),
    "SequenceInsert": frozenset({0, 1}),
    "SequenceMap": _ALL,
    "SplitToSequence": frozenset({0}),
    "STFT": frozenset({0, 2}),
    "Unique": frozenset({0}),
}
_GRAPHCORE: Mapping[str, FrozenSet[int]] = {
    "IdentityLoss": frozenset({0}),
    "L1": frozenset({0}),
    "Nll": frozenset({0}),
    "Nop": frozenset({0}),
    "Scale": frozenset({0}),
}
_STATES: Mapping[str, FrozenSet[int]] = {"BatchNormalization": frozenset({3, 4})}


@dataclass
class Uses:
    """How the floats held in a graph are read.

    Attributes:
        weights: Initializers that an output has a gradient for, read where weights are.
        states: Initializers that hold running statistics.
        settings: Other initializers, and outputs of ``Constant`` nodes, that an output has a
            gradient for; those of more than one element.
    """

    weights: Set[str] = field(default_factory=set)
    states: Set[str] = field(default_factory=set)
    settings: Set[str] = field(default_factory=set)


def uses_of(model: ModelProto) -> Uses:
    """Follow the gradient from the outputs back, through functions and inner graphs.

    What is only compared, rounded or read as a shape on its way has none, such as a mask.

    Args:
        model: Whose main graph's initializers are asked about.

    Returns:
        Names in the main graph; only tensors of float16, bfloat16, float32 and float64.
    """
    graph, marks = model.graph, _Marks()
    marks.live.update(value.name for value in graph.output)
    _follow(graph.node, marks, functions_of(model))
    sizes = {t.name: math.prod(t.dims) for t in graph.initializer if t.data_type in _FLOATS}
    held = marks.live & sizes.keys() - marks.states
    settings = {name for name in held - marks.weights if sizes[name] > 1}
    settings |= {n.output[0] for n in graph.node if _is_constant(n) and n.output[0] in marks.live}
    return Uses(held & marks.weights, marks.states & sizes.keys(), settings)


@dataclass
class _Marks:
    """Names with a gradient, those of them that lie where weights do, and running statistics."""

    live: Set[str] = field(default_factory=set)
    weights: Set[str] = field(default_factory=set)
    states: Set[str] = field(default_factory=set)

    def sets(self) -> Tuple[Set[str], Set[str], Set[str]]:
        return self.live, self.weights, self.states


def _follow(
    nodes: Iterable[NodeProto], marks: _Marks, functions: Mapping[Key, FunctionProto]
) -> None:
    for node in reversed(list(nodes)):
        domain = plain_domain(node.domain)
        function = functions.get((domain, node.op_type, getattr(node, "overload", "")))
        if node.op_type == "Identity" and not domain:  # exporters write one for equal tensors
            for names in marks.sets():
                names.update(node.input if node.output[0] in names else ())
        elif not marks.live.intersection(node.output):
            continue
        elif function is not None:
            _follow_call(node, function, marks, functions)
        else:
            _mark_inputs(node, domain, marks)
            for graph in (graph for attribute in node.attribute for graph in _graphs(attribute)):
                _follow_inner(graph, marks, functions)


def _mark_inputs(node: NodeProto, domain: str, marks: _Marks) -> None:
    trained = trained_positions(domain, node.op_type)
    passed_on = _PASSED_ON.get(node.op_type, frozenset())
    running = _STATES.get(node.op_type, frozenset())
    for index, name in enumerate(node.input):
        if index in trained:
            marks.weights.add(name)
        if index in trained or index in passed_on:
            marks.live.add(name)
        if index in running:
            marks.states.add(name)


def _follow_call(
    node: NodeProto,
    function: FunctionProto,
    marks: _Marks,
    functions: Mapping[Key, FunctionProto],
) -> None:
    inner = _Marks()
    inner.live.update(
        formal for formal, name in zip(function.output, node.output) if name in marks.live
    )
    _follow(function.node, inner, functions)
    for names, inner_names in zip(marks.sets(), inner.sets()):
        names.update(
            name for formal, name in zip(function.input, node.input) if formal in inner_names
        )


def _follow_inner(graph: GraphProto, marks: _Marks, functions: Mapping[Key, FunctionProto]) -> None:
    results = {value.name for value in graph.output}
    inner = _Marks(set(results), set(results))
    _follow(graph.node, inner, functions)
    own = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    own.update(name for node in graph.node for name in node.output)
    for names, inner_names in zip(marks.sets(), inner.sets()):
        names.update(inner_names - own)


def _graphs(attribute: AttributeProto) -> List[GraphProto]:
    return [attribute.g] if attribute.type == AttributeProto.GRAPH else list(attribute.graphs)


def _is_constant(node: NodeProto) -> bool:
    """Whether a node holds floats, more than one."""
    if node.op_type != "Constant" or plain_domain(node.domain):
        return False
    return any(
        (a.name == "value" and a.t.data_type in _FLOATS and math.prod(a.t.dims) > 1)
        or (a.name == "value_floats" and len(a.floats) > 1)
        for a in node.attribute
    )


@lru_cache(maxsize=None)
def trained_positions(domain: str, name: str) -> FrozenSet[int]:
    """Inputs of an operator where its weights are read."""
    if name in _TRAINED and domain in {"", "ai.onnx.preview"}:
        return _TRAINED[name]
    if domain == "ai.graphcore":
        return _GRAPHCORE.get(name, frozenset())
    # Old versions of a definition leave the question open: the newest answers for all.
    try:
        schema: Any = onnx.defs.get_schema(name, onnx.defs.onnx_opset_version(), domain)
    except onnx.defs.SchemaError:
        return frozenset()
    differentiable = onnx.defs.OpSchema.DifferentiationCategory.Differentiable
    variadic = onnx.defs.OpSchema.FormalParameterOption.Variadic
    found: Set[int] = set()
    for index, formal in enumerate(schema.inputs):
        if formal.differentiation_category != differentiable:
            continue
        found |= set(range(index, 1024)) if formal.option == variadic else {index}
    return frozenset(found)


def gradient_positions(domain: str, name: str) -> FrozenSet[int]:
    """Inputs of an operator that a gradient passes."""
    return trained_positions(domain, name) | _PASSED_ON.get(name, frozenset())
