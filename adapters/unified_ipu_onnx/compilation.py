"""From a graph to steps: operators chosen, functions opened, constants computed once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence

from onnx import AttributeProto, GraphProto, NodeProto

from unified_ipu.errors import CapabilityError, ConfigError, UnifiedIpuError
from unified_ipu_onnx.assembly import Assembly
from unified_ipu_onnx.attributes import parsed, resolved
from unified_ipu_onnx.emission import (
    Call,
    define,
    emit,
    emit_on_host,
    fold,
    is_shape_arithmetic,
)
from unified_ipu_onnx.functions import (
    Body,
    Key,
    depends_on_types,
    local_body,
    schema_body,
    schema_of,
    with_attributes,
)
from unified_ipu_onnx.nodes import Mode, Node
from unified_ipu_onnx.operators.shapes_on_host import ON_HOST, stays
from unified_ipu_onnx.program import Subgraph, seal, without_unused
from unified_ipu_onnx.reading import plain_domain
from unified_ipu_onnx.registry import Function, Operator, Registry
from unified_ipu_onnx.scopes import Scope, Value
from unified_ipu_onnx.tensors import to_torch
from unified_ipu_onnx.unsupported import Unsupported
from unified_ipu_onnx.value_types import Types


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

    Attributes:
        assembly: Holds the steps.
        unsupported: Nodes that cannot be computed.
        fallbacks: Nodes that ``fallback`` computes.
        drawing: Labels of nodes that draw random numbers.
        coupling: Labels of nodes that couple rows.
    """

    def __init__(
        self,
        registry: Registry,
        functions: Mapping[Key, Any],
        *,
        base_dir: Optional[Path],
        mode: Mode,
        fallback: Optional[Callable[[NodeProto, Node], Optional[Function]]] = None,
    ) -> None:
        self.assembly = Assembly(mode)
        self.unsupported: List[Unsupported] = []
        self.fallbacks: List[Unsupported] = []
        self.drawing: List[str] = []
        self.coupling: List[str] = []
        self._registry = registry
        self._functions = functions
        self._base_dir = base_dir
        self._mode = mode
        self._fallback = fallback

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
            label = context.prefix + name
            domain = plain_domain(node.domain)
            call = Call(
                node,
                label,
                domain,
                context.opsets.get(domain, 1),
                _inputs(node, label, scope),
                resolved(node, context.bindings),
                scope,
            )
            self._node(call, context)

    def _node(self, call: Call, context: _Context) -> None:
        node = call.proto
        renames = node.op_type == "Identity" and not call.domain and bool(call.inputs)
        if renames and call.inputs[0] is not None:
            call.scope.values[node.output[0]] = call.inputs[0]
            return
        body = local_body(node, call.attributes, self._functions, context.opsets)
        if body is None:
            _check_counts(call)
            if self._on_host(call):
                return
            operator = self._registry.find(call.domain, node.op_type, call.opset)
            if operator is not None:
                self._operator(operator, call, context)
                return
            body = schema_body(
                node,
                call.attributes,
                context.opsets,
                lambda: context.types.of_inputs(node, call.inputs),
            )
        if body is not None:
            self._inline(body, call, context)
        else:
            self._by_fallback(call)

    def _on_host(self, call: Call) -> bool:
        operator = ON_HOST.find(call.domain, call.proto.op_type, call.opset)
        if operator is None or not is_shape_arithmetic(call):
            return False
        if not stays(call.proto.op_type, call.attributes):
            return False
        function = self._built(operator, call, _no_subgraph)
        if function is not None:
            emit_on_host(call, operator, function, self.assembly)
        return function is not None

    def _operator(self, operator: Operator, call: Call, context: _Context) -> None:
        branch = _known_branch(call)
        if branch is not None:
            self._branch(branch, call, context)
            return
        subgraphs: List[Subgraph] = []
        inner = replace(context, prefix=f"{call.label}/", inner=True)

        def subgraph(graph: GraphProto) -> Subgraph:
            subgraphs.append(self._subgraph(graph, Scope(call.scope), inner))
            return subgraphs[-1]

        function = self._built(operator, call, subgraph)
        if function is None:
            define(call, self.assembly)
            return
        if operator.draws:
            self.drawing.append(call.label)
        if operator.couples:
            self.coupling.append(call.label)
        stays = operator.draws or operator.couples or bool(subgraphs) or context.inner
        if stays or not fold(call, operator, function, self.assembly):
            emit(call, operator, function, self.assembly, subgraphs)

    def _built(
        self, operator: Operator, call: Call, subgraph: Callable[[GraphProto], Any]
    ) -> Optional[Function]:
        before = len(self.unsupported)
        try:
            attributes = {
                name: parsed(attribute, base_dir=self._base_dir, subgraph=subgraph)
                for name, attribute in call.attributes.items()
            }
            if len(self.unsupported) > before:  # in an inner graph: nothing to build on
                return None
            return operator.build(call.describe(attributes, self._mode))
        except CapabilityError as error:
            self.unsupported.append(_unsupported(call, error.message))
            return None
        except UnifiedIpuError:
            raise
        except Exception as error:
            raise ConfigError(
                f"node {call.label!r} ({call.proto.op_type}) is not what the standard says: "
                f"{error!r}; check the file with onnx.checker.check_model"
            ) from error

    def _subgraph(self, graph: GraphProto, scope: Scope, context: _Context) -> Subgraph:
        with self.assembly.inner() as steps:
            formals = self._enter(graph, scope)
            self._nodes(graph.node, scope, replace(context, types=context.types.inner(graph)))
            outputs = [
                self.assembly.read(_output(scope, result.name, context.prefix))
                for result in graph.output
            ]
        needed = without_unused(steps, outputs)
        return Subgraph(formals, tuple(outputs), needed, seal(needed, outputs))

    def _enter(self, graph: GraphProto, scope: Scope) -> Any:
        for tensor in graph.initializer:
            held = self.assembly.constant(to_torch(tensor, self._base_dir))
            scope.values[tensor.name] = held
        formals = [formal.name for formal in graph.input if formal.name not in scope.values]
        scope.values.update((name, self.assembly.value(trains=True)) for name in formals)
        return tuple(scope.values[name].place for name in formals)

    def _branch(self, graph: GraphProto, call: Call, context: _Context) -> None:
        """Put the branch of an ``If`` that is known to be taken in its place."""
        inner = Scope(call.scope)
        self._enter(graph, inner)
        types, prefix = context.types.inner(graph), f"{call.label}/"
        self._nodes(graph.node, inner, replace(context, prefix=prefix, types=types))
        _bind_outputs(call, [output.name for output in graph.output], inner)

    def _inline(self, body: Body, call: Call, context: _Context) -> None:
        formals: Dict[str, Value] = {
            name: value for name, value in zip(body.proto.input, call.inputs) if value is not None
        }
        inner = Scope()
        inner.values.update(formals)
        absent = [name for name in body.proto.input if name not in formals]
        nodes = [_without_inputs(node, absent) for node in body.proto.node]
        context = replace(
            context,
            opsets=body.opsets,
            bindings=body.bindings,
            types=context.types.of_body(body, call.proto, call.inputs),
            prefix=f"{call.label}/",
        )
        self._nodes(nodes, inner, context)
        _bind_outputs(call, list(body.proto.output), inner)

    def _by_fallback(self, call: Call) -> None:
        function = None
        if self._fallback is not None and not call.trains and not _has_graph(call.proto):
            plain = with_attributes(call.proto, call.attributes)
            function = self._fallback(plain, call.describe({}, self._mode))
        if function is None:
            reason = "its body depends on types that are not known here"
            is_typed = depends_on_types(call.proto, call.opset)
            self.unsupported.append(_unsupported(call, reason if is_typed else ""))
            define(call, self.assembly)
            return
        self.fallbacks.append(_unsupported(call))
        given = function
        emit(call, Operator(call.proto.op_type, 1, lambda _: given), given, self.assembly)


def _unsupported(call: Call, reason: str = "") -> Unsupported:
    return Unsupported(call.label, call.proto.op_type, call.domain, call.opset, reason)


def _check_counts(call: Call) -> None:
    """Refuse a node with more or fewer inputs or outputs than its operator has.

    Raises:
        ConfigError: With the numbers.
    """
    schema = schema_of(call.proto, call.opset)
    if schema is None:
        return
    for what, names, least, most in (
        ("inputs", call.proto.input, schema.min_input, schema.max_input),
        ("outputs", call.proto.output, schema.min_output, schema.max_output),
    ):
        if not least <= len(names) <= most:
            raise ConfigError(
                f"node {call.label!r} ({call.proto.op_type}) lists {len(names)} {what}, its "
                f"operator has {least} to {most}; check the file with onnx.checker.check_model"
            )


def _inputs(node: NodeProto, label: str, scope: Scope) -> List[Optional[Value]]:
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


def _output(scope: Scope, name: str, where: str) -> Value:
    value = scope.find(name)
    if value is None:
        raise ConfigError(
            f"the graph or function at {where!r} lists the output {name!r}, which nothing in it "
            "computes; check the file with onnx.checker.check_model"
        )
    return value


def _bind_outputs(call: Call, names: Sequence[str], inner: Scope) -> None:
    # A body may leave out outputs that nobody asked for.
    for name, inner_name in zip(call.proto.output, names):
        if name:
            call.scope.values[name] = _output(inner, inner_name, call.label)


def _known_branch(call: Call) -> Optional[GraphProto]:
    if call.proto.op_type != "If" or call.domain or not call.inputs or call.inputs[0] is None:
        return None
    condition = call.inputs[0].constant
    if condition is None:
        return None
    return call.attributes["then_branch" if bool(condition) else "else_branch"].g


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


def _no_subgraph(graph: GraphProto) -> GraphProto:
    return graph
