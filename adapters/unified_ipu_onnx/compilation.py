"""From a graph to steps: operators chosen, functions opened, constants computed once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

import torch
from onnx import AttributeProto, GraphProto, NodeProto

from unified_ipu.errors import CapabilityError, ConfigError
from unified_ipu_onnx.attributes import parsed, resolved
from unified_ipu_onnx.errors import NAME
from unified_ipu_onnx.functions import Body, Key, local_body, schema_body
from unified_ipu_onnx.nodes import Mode, Node
from unified_ipu_onnx.program import ABSENT, UNWANTED, Step, Subgraph, seal, without_unused
from unified_ipu_onnx.reading import plain_domain
from unified_ipu_onnx.registry import Operator, Registry
from unified_ipu_onnx.tensors import to_torch
from unified_ipu_onnx.value_types import Types


@dataclass(eq=False)
class Value:
    """A named value of a graph.

    Attributes:
        place: Where it lies when the graph runs.
        constant: What it is, if that is known before.
        trains: Whether it depends on a weight.
        state: Whether it is a running statistic.
    """

    place: int
    constant: Optional[torch.Tensor] = None
    trains: bool = False
    state: bool = False


@dataclass(frozen=True)
class Unsupported:
    """A node that no operator of ours, no function and no schema body computes."""

    label: str
    op_type: str
    domain: str
    opset: int
    reason: str = ""

    def __str__(self) -> str:
        domain = self.domain or "ai.onnx"
        place = f"node {self.label!r}, domain {domain}, operator set {self.opset}"
        return f"{self.op_type} ({place})" + (f": {self.reason}" if self.reason else "")


class Scope:
    """Values by name; those of the graphs around are visible.

    Args:
        outer: Scope of the graph around, if any.
    """

    def __init__(self, outer: Optional[Scope] = None) -> None:
        self.values: Dict[str, Value] = {}
        self.outer = outer

    def find(self, name: str) -> Optional[Value]:
        """Value of that name, or None."""
        scope: Optional[Scope] = self
        while scope is not None:
            if name in scope.values:
                return scope.values[name]
            scope = scope.outer
        return None


@dataclass(frozen=True)
class _Context:
    """How the nodes at hand are read."""

    opsets: Mapping[str, int]
    bindings: Mapping[str, AttributeProto]
    types: Types
    prefix: str = ""
    inner: bool = False  # in a branch or loop body, which may never run


class Compiler:
    """Compiles one model; collects what is not supported instead of stopping at the first.

    Args:
        registry: Operators to choose from.
        functions: Functions of the model.
        base_dir: Folder of external data.
        mode: Handed to every node.
        fallback: Asked last, for nodes that no weight leads to; returns a function or None.
    """

    def __init__(
        self,
        registry: Registry,
        functions: Mapping[Key, Any],
        *,
        base_dir: Optional[Path],
        mode: Mode,
        fallback: Optional[Callable[[NodeProto, Node], Optional[Callable[..., Any]]]] = None,
    ) -> None:
        self.unsupported: List[Unsupported] = []
        self.fallbacks: List[Unsupported] = []
        self.drawing: List[str] = []
        self.coupling: List[str] = []
        self.presets: Dict[int, Any] = {ABSENT: None, UNWANTED: None}
        self.constants: Dict[int, torch.Tensor] = {}
        self.steps: List[Step] = []
        self._registry = registry
        self._functions = functions
        self._base_dir = base_dir
        self._mode = mode
        self._fallback = fallback
        self._num_places = 2
        # Place of the same value as Python numbers; one table for each open list of steps, since
        # what a branch converts is not there when it is not taken.
        self._numbers_of: List[Dict[int, int]] = [{}]

    @property
    def num_places(self) -> int:
        """Size of the environment."""
        return self._num_places

    def value(self, **facts: Any) -> Value:
        """Return a value at a new place."""
        self._num_places += 1
        return Value(self._num_places - 1, **facts)

    def constant(self, tensor: torch.Tensor) -> Value:
        """Return a value that is known."""
        value = self.value(constant=tensor)
        self.constants[value.place] = tensor
        return value

    def compile(
        self, graph: GraphProto, scope: Scope, opsets: Mapping[str, int], types: Types
    ) -> None:
        """Append the steps of a model's main graph.

        Args:
            graph: Its inputs and initializers are in ``scope``.
            scope: Gets the value of every name.
            opsets: Operator set of each domain.
            types: Of the main graph's values.
        """
        self._nodes(graph.node, scope, _Context(opsets, {}, types))

    def _nodes(self, nodes: Iterable[NodeProto], scope: Scope, context: _Context) -> None:
        for index, node in enumerate(nodes):
            name = node.name or next((o for o in node.output if o), f"{node.op_type} {index}")
            self._node(node, context.prefix + name, scope, context)

    def _node(self, node: NodeProto, label: str, scope: Scope, context: _Context) -> None:
        inputs = self._inputs(node, label, scope)
        domain = plain_domain(node.domain)
        opset = context.opsets.get(domain, 1)
        if node.op_type == "Identity" and not domain and inputs and inputs[0] is not None:
            scope.values[node.output[0]] = inputs[0]
            return
        attributes = resolved(node, context.bindings)
        body = local_body(node, attributes, self._functions, context.opsets)
        operator = None if body else self._registry.find(domain, node.op_type, opset)
        if operator is not None:
            self._operator(operator, node, label, inputs, attributes, scope, context)
            return
        body = body or schema_body(
            node, attributes, context.opsets, lambda: context.types.of_inputs(node, inputs)
        )
        if body is not None:
            self._inline(body, node, label, inputs, scope, context)
            return
        self._by_fallback(node, Unsupported(label, node.op_type, domain, opset), inputs, scope)

    def _inputs(self, node: NodeProto, label: str, scope: Scope) -> List[Optional[Value]]:
        found: List[Optional[Value]] = []
        for name in node.input:
            value = scope.find(name) if name else None
            if name and value is None:
                raise ConfigError(
                    f"node {label!r} ({node.op_type}) reads {name!r}, which no input, initializer "
                    "or earlier node gives; check the file with onnx.checker.check_model"
                )
            found.append(value)
        while found and found[-1] is None:
            found.pop()
        return found

    def _operator(
        self,
        operator: Operator,
        proto: NodeProto,
        label: str,
        inputs: List[Optional[Value]],
        attributes: Mapping[str, AttributeProto],
        scope: Scope,
        context: _Context,
    ) -> None:
        branch = _known_branch(proto, inputs, attributes)
        if branch is not None:
            self._branch(branch, proto, label, scope, context)
            return
        subgraphs: List[Subgraph] = []
        inner = replace(context, prefix=f"{label}/", inner=True)

        def subgraph(graph: GraphProto) -> Subgraph:
            subgraphs.append(self._subgraph(graph, Scope(scope), inner))
            return subgraphs[-1]

        opset = context.opsets.get(plain_domain(proto.domain), 1)
        try:
            values = {
                name: parsed(attribute, base_dir=self._base_dir, subgraph=subgraph)
                for name, attribute in attributes.items()
            }
            node = self._describe(proto, label, opset, inputs, values)
            # With a node missing in an inner graph there is nothing to build on.
            function = None if subgraphs and self.unsupported else operator.build(node)
        except CapabilityError as error:
            function = None
            self.unsupported.append(
                Unsupported(label, proto.op_type, plain_domain(proto.domain), opset, error.message)
            )
        if function is None:
            self._define(proto, scope, trains=False)
            return
        if operator.draws:
            self.drawing.append(label)
        if operator.couples:
            self.coupling.append(label)
        stays = operator.draws or operator.couples or bool(subgraphs) or context.inner
        if stays or not self._fold(function, operator, proto, inputs, scope):
            self._emit(function, operator, proto, label, inputs, subgraphs, scope)

    def _describe(
        self,
        proto: NodeProto,
        label: str,
        opset: int,
        inputs: Sequence[Optional[Value]],
        attributes: Mapping[str, Any],
    ) -> Node:
        return Node(
            op_type=proto.op_type,
            domain=plain_domain(proto.domain),
            label=label,
            opset=opset,
            attributes=attributes,
            inputs=tuple(value is not None for value in inputs),
            outputs=tuple(bool(name) for name in proto.output),
            constants=tuple(value.constant if value else None for value in inputs),
            states=tuple(value.state if value else False for value in inputs),
            mode=self._mode,
        )

    def _fold(
        self,
        function: Callable[..., Any],
        operator: Operator,
        proto: NodeProto,
        inputs: Sequence[Optional[Value]],
        scope: Scope,
    ) -> bool:
        """Compute a node now, if all it reads is known."""
        if any(value is not None and value.constant is None for value in inputs):
            return False
        arguments: List[Any] = []
        for index, value in enumerate(inputs):
            known = value.constant if value else None
            wants_numbers = index in operator.ints and known is not None
            arguments.append(as_numbers(known) if wants_numbers and known is not None else known)
        with torch.no_grad():
            result = function(*arguments)
        results = result if len(proto.output) > 1 else (result,)
        if not all(isinstance(item, torch.Tensor) for item in results):
            return False
        for name, item in zip(proto.output, results):
            if name:
                scope.values[name] = self.constant(item)
        return True

    def _emit(
        self,
        function: Callable[..., Any],
        operator: Operator,
        proto: NodeProto,
        label: str,
        inputs: Sequence[Optional[Value]],
        subgraphs: Sequence[Subgraph],
        scope: Scope,
    ) -> None:
        reads = tuple(
            ABSENT if v is None else self._numbers(v) if i in operator.ints else v.place
            for i, v in enumerate(inputs)
        )
        trains = any(value.trains for value in inputs if value is not None)
        outputs = self._define(proto, scope, trains=trains or bool(subgraphs))
        if subgraphs:
            function = _scoped(function, reads)
            outer = {place for graph in subgraphs for place in graph.outer_reads()}
            reads = (*reads, *sorted(outer))
        self.steps.append(
            Step(
                function,
                reads,
                outputs,
                label,
                scoped=bool(subgraphs),
                returns_tuple=len(proto.output) > 1,
            )
        )

    def _define(self, proto: NodeProto, scope: Scope, *, trains: bool) -> Tuple[int, ...]:
        places = []
        for name in proto.output:
            if name:
                scope.values[name] = self.value(trains=trains)
            places.append(scope.values[name].place if name else UNWANTED)
        return tuple(places)

    def _numbers(self, value: Value) -> int:
        """Place where the value lies as Python numbers."""
        for known in self._numbers_of:
            if value.place in known:
                return known[value.place]
        place = self.value().place
        if value.constant is not None:
            self.presets[place] = as_numbers(value.constant)
            self._numbers_of[0][value.place] = place
        else:
            self.steps.append(Step(as_numbers, (value.place,), (place,), "numbers"))
            self._numbers_of[-1][value.place] = place
        return place

    def _subgraph(self, graph: GraphProto, scope: Scope, context: _Context) -> Subgraph:
        outer, self.steps = self.steps, []
        self._numbers_of.append({})
        for tensor in graph.initializer:
            scope.values[tensor.name] = self.constant(to_torch(tensor, self._base_dir))
        formals = []
        for formal in graph.input:
            if formal.name not in scope.values:
                scope.values[formal.name] = self.value(trains=True)
                formals.append(scope.values[formal.name].place)
        self._nodes(graph.node, scope, replace(context, types=context.types.inner(graph)))
        outputs = []
        for result in graph.output:
            value = scope.find(result.name)
            if value is None:
                raise ConfigError(f"an inner graph of {context.prefix!r} gives no {result.name!r}")
            outputs.append(value.place)
        steps = without_unused(self.steps, outputs)
        self.steps = outer
        self._numbers_of.pop()
        return Subgraph(tuple(formals), tuple(outputs), steps, seal(steps, outputs))

    def _branch(
        self, graph: GraphProto, proto: NodeProto, label: str, scope: Scope, context: _Context
    ) -> None:
        """Put the branch of an ``If`` that is known to be taken in its place."""
        inner = Scope(scope)
        for tensor in graph.initializer:
            inner.values[tensor.name] = self.constant(to_torch(tensor, self._base_dir))
        types = context.types.inner(graph)
        self._nodes(graph.node, inner, replace(context, prefix=f"{label}/", types=types))
        self._bind_outputs(proto, label, [o.name for o in graph.output], inner, scope)

    def _inline(
        self,
        body: Body,
        proto: NodeProto,
        label: str,
        inputs: Sequence[Optional[Value]],
        scope: Scope,
        context: _Context,
    ) -> None:
        inner = Scope()
        formals = {
            name: value for name, value in zip(body.proto.input, inputs) if value is not None
        }
        inner.values.update(formals)
        absent = [name for name in body.proto.input if name not in formals]
        nodes = [_without_inputs(node, absent) for node in body.proto.node]
        types = context.types.of_body(body, proto, inputs)
        context = replace(
            context,
            opsets=body.opsets,
            bindings=body.bindings,
            types=types,
            prefix=f"{label}/",
        )
        self._nodes(nodes, inner, context)
        self._bind_outputs(proto, label, list(body.proto.output), inner, scope)

    def _bind_outputs(
        self, proto: NodeProto, label: str, names: Sequence[str], inner: Scope, scope: Scope
    ) -> None:
        for name, inner_name in zip(proto.output, names):
            value = inner.find(inner_name)
            if not name:
                continue
            if value is None:
                raise ConfigError(f"the body of node {label!r} gives no {inner_name!r}")
            scope.values[name] = value

    def _by_fallback(
        self, proto: NodeProto, what: Unsupported, inputs: Sequence[Optional[Value]], scope: Scope
    ) -> None:
        function = None
        trains = any(value.trains for value in inputs if value is not None)
        if self._fallback is not None and not trains and not _has_graph(proto):
            node = self._describe(proto, what.label, what.opset, inputs, {})
            function = self._fallback(proto, node)
        if function is None:
            self.unsupported.append(what)
            self._define(proto, scope, trains=False)
            return
        self.fallbacks.append(what)
        operator = Operator(proto.op_type, 1, lambda _: function)
        self._emit(function, operator, proto, what.label, inputs, (), scope)


def as_numbers(tensor: torch.Tensor) -> List[Any]:
    """Elements as Python numbers; waits for the device if the tensor is on one."""
    numbers: List[Any] = tensor.reshape(-1).tolist()
    return numbers


def refuse(unsupported: Sequence[Unsupported]) -> CapabilityError:
    """Error that lists every node that cannot be computed, for the caller to raise."""
    listed = "; ".join(str(node) for node in unsupported)
    return CapabilityError(
        NAME,
        f"{len(unsupported)} node(s) of the graph are not supported: {listed}. Export the model "
        "without them, or with another operator set",
    )


def _scoped(function: Callable[..., Any], reads: Tuple[int, ...]) -> Callable[..., Any]:
    def call(environment: List[Any]) -> Any:
        return function(environment, *[environment[place] for place in reads])

    return call


def _known_branch(
    proto: NodeProto, inputs: Sequence[Optional[Value]], attributes: Mapping[str, AttributeProto]
) -> Optional[GraphProto]:
    if proto.op_type != "If" or plain_domain(proto.domain) or not inputs or inputs[0] is None:
        return None
    condition = inputs[0].constant
    if condition is None:
        return None
    return attributes["then_branch" if bool(condition) else "else_branch"].g


def _without_inputs(node: NodeProto, absent: Sequence[str]) -> NodeProto:
    """Copy of a node of a function in which what the caller left out is left out too."""
    if not any(name in absent for name in node.input):
        return node
    copy = NodeProto()
    copy.CopyFrom(node)
    copy.input[:] = ["" if name in absent else name for name in node.input]
    return copy


def _has_graph(node: NodeProto) -> bool:
    return any(a.type in {AttributeProto.GRAPH, AttributeProto.GRAPHS} for a in node.attribute)
