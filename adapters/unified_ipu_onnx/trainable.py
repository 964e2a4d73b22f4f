"""Which tensors of a graph are weights: the definitions of the operators that read them say so."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Dict, FrozenSet, Iterable, List, Mapping, Optional, Set

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
        weights: Initializers that some operator has a gradient for.
        states: Initializers that hold running statistics.
        constants: Outputs of ``Constant`` nodes in the place of weights, of more than one element.
    """

    weights: Set[str] = field(default_factory=set)
    states: Set[str] = field(default_factory=set)
    constants: Set[str] = field(default_factory=set)


def uses_of(model: ModelProto) -> Uses:
    """Look at every node of a model that leads to an output, functions and inner graphs included.

    Args:
        model: Whose main graph's initializers are asked about.

    Returns:
        Names in the main graph; only tensors of float16, bfloat16, float32 and float64.
    """
    walk = _Walk(functions_of(model))
    bound = {t.name: t.name for t in model.graph.initializer if t.data_type in _FLOATS}
    walk.visit(_needed(model.graph), bound)
    walk.uses.weights -= walk.uses.states
    return walk.uses


def is_float(tensor: TensorProto) -> bool:
    """Whether a tensor has a type that can be trained."""
    return tensor.data_type in _FLOATS


class _Walk:
    def __init__(self, functions: Mapping[Key, FunctionProto]) -> None:
        self.uses = Uses()
        self._functions = functions

    def visit(self, nodes: Iterable[NodeProto], bound: Dict[str, str]) -> None:
        """Record uses; ``bound`` gives for a local name the one in the main graph."""
        for node in nodes:
            constant = _constant(node)
            if constant is not None:
                bound[node.output[0]] = _CONSTANT + node.output[0]
            elif node.op_type == "Identity" and not plain_domain(node.domain):
                if node.input[0] in bound:  # exporters write one for equal tensors
                    bound[node.output[0]] = bound[node.input[0]]
            else:
                self._read(node, bound)

    def _read(self, node: NodeProto, bound: Dict[str, str]) -> None:
        domain = plain_domain(node.domain)
        function = self._functions.get((domain, node.op_type, getattr(node, "overload", "")))
        if function is not None:
            inner = {
                formal: bound[actual]
                for formal, actual in zip(function.input, node.input)
                if actual in bound
            }
            self.visit(function.node, inner)
            return
        trained = _trained_positions(domain, node.op_type)
        states = _STATES.get(node.op_type, frozenset())
        for index, name in enumerate(node.input):
            if name not in bound:
                continue
            if index in states:
                self.uses.states.add(bound[name])
            elif index in trained:
                self._add(bound[name])
        for attribute in node.attribute:
            for graph in _graphs(attribute):
                self._enter(graph, bound)

    def _enter(self, graph: GraphProto, bound: Mapping[str, str]) -> None:
        own = {value.name for value in graph.input} | {t.name for t in graph.initializer}
        inner = {name: held for name, held in bound.items() if name not in own}
        self.visit(graph.node, inner)
        for value in graph.output:
            if value.name in inner and value.name in bound:
                self._add(inner[value.name])

    def _add(self, name: str) -> None:
        if name.startswith(_CONSTANT):
            self.uses.constants.add(name[len(_CONSTANT) :])
        else:
            self.uses.weights.add(name)


_CONSTANT = "\0"  # in no name of a file, so these cannot be taken for initializers


def _needed(graph: GraphProto) -> List[NodeProto]:
    """Nodes that an output depends on, in order."""
    wanted = {value.name for value in graph.output}
    kept: List[NodeProto] = []
    for node in reversed(graph.node):
        if wanted.intersection(node.output):
            kept.append(node)
            wanted.update(_names_read(node))
    return kept[::-1]


def _names_read(node: NodeProto) -> Set[str]:
    names = set(node.input)
    for attribute in node.attribute:
        for graph in _graphs(attribute):
            names |= {value.name for value in graph.output}
            for inner in graph.node:
                names |= _names_read(inner)
    return names - {""}


def _graphs(attribute: AttributeProto) -> Iterable[GraphProto]:
    return [attribute.g] if attribute.type == AttributeProto.GRAPH else list(attribute.graphs)


def _constant(node: NodeProto) -> Optional[TensorProto]:
    if node.op_type != "Constant" or plain_domain(node.domain):
        return None
    for attribute in node.attribute:
        tensor: TensorProto = attribute.t
        if attribute.name == "value" and is_float(tensor) and _size(tensor.dims) > 1:
            return tensor
    return None


def _size(dims: Iterable[int]) -> int:
    size = 1
    for dim in dims:
        size *= dim
    return size


@lru_cache(maxsize=None)
def _trained_positions(domain: str, name: str) -> FrozenSet[int]:
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
