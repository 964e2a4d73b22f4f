"""Which tensors of a graph are weights: the definitions of the operators that read them say so."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, FrozenSet, Iterable, List, Mapping, Set

import onnx
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto

from unified_ipu_onnx.functions import Key, functions_of
from unified_ipu_onnx.reading import plain_domain

_FLOATS = frozenset(
    {TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16}
)
_ALL = frozenset(range(32))

# Operators whose definitions say nothing ("unknown"), or nothing usable: positions that train.
# Loop and Scan pass their values on to a body that is looked at by itself.
_OURS: Mapping[str, FrozenSet[int]] = {
    "Attention": frozenset({0, 1, 2}),
    "DeformConv": frozenset({0, 1, 2, 3, 4}),
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
_STATES: Mapping[str, FrozenSet[int]] = {"BatchNormalization": frozenset({3, 4})}


@dataclass
class Uses:
    """How the tensors held in a graph are read.

    Attributes:
        weights: Initializers that an output has a gradient for.
        states: Initializers that hold running statistics.
        constants: Outputs of ``Constant`` nodes in the place of weights, of more than one element.
    """

    weights: Set[str] = field(default_factory=set)
    states: Set[str] = field(default_factory=set)
    constants: Set[str] = field(default_factory=set)


def uses_of(model: ModelProto) -> Uses:
    """Follow the gradient from the outputs back, through functions and inner graphs.

    What is only compared, rounded or read as a shape on its way has none, such as a mask.

    Args:
        model: Whose main graph's initializers are asked about.

    Returns:
        Names in the main graph; only tensors of float16, bfloat16, float32 and float64.
    """
    graph = model.graph
    live: Set[str] = {value.name for value in graph.output}
    states: Set[str] = set()
    _follow(graph.node, live, states, functions_of(model))
    floats = {tensor.name for tensor in graph.initializer if tensor.data_type in _FLOATS}
    constants = {node.output[0] for node in graph.node if _is_constant(node)}
    return Uses(live & floats - states, states & floats, live & constants)


def _follow(
    nodes: Iterable[NodeProto],
    live: Set[str],
    states: Set[str],
    functions: Mapping[Key, FunctionProto],
) -> None:
    """Add to ``live`` what has a gradient, and to ``states`` what is read as running statistics."""
    for node in reversed(list(nodes)):
        domain = plain_domain(node.domain)
        function = functions.get((domain, node.op_type, getattr(node, "overload", "")))
        if node.op_type == "Identity" and not domain:  # exporters write one for equal tensors
            for names in (live, states):
                names.update(node.input if node.output[0] in names else ())
        elif not live.intersection(node.output):
            continue
        elif function is not None:
            _follow_call(node, function, live, states, functions)
        else:
            trained = trained_positions(domain, node.op_type)
            live.update(name for index, name in enumerate(node.input) if index in trained)
            running = _STATES.get(node.op_type, frozenset())
            states.update(name for index, name in enumerate(node.input) if index in running)
            for graph in (graph for attribute in node.attribute for graph in _graphs(attribute)):
                _follow_inner(graph, live, states, functions)


def _follow_call(
    node: NodeProto,
    function: FunctionProto,
    live: Set[str],
    states: Set[str],
    functions: Mapping[Key, FunctionProto],
) -> None:
    inner = {formal for formal, name in zip(function.output, node.output) if name in live}
    inner_states: Set[str] = set()
    _follow(function.node, inner, inner_states, functions)
    for formal, name in zip(function.input, node.input):
        live.update([name] if formal in inner else ())
        states.update([name] if formal in inner_states else ())


def _follow_inner(
    graph: GraphProto,
    live: Set[str],
    states: Set[str],
    functions: Mapping[Key, FunctionProto],
) -> None:
    inner, inner_states = {value.name for value in graph.output}, set(states)
    _follow(graph.node, inner, inner_states, functions)
    own = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    own.update(name for node in graph.node for name in node.output)
    live |= inner - own
    states |= inner_states - own


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
    """Inputs of an operator that it has a gradient for."""
    if not domain and name in _OURS:
        return _OURS[name]
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
