"""One node as a step, as a constant computed now, or as arithmetic on the host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, List, Mapping, Optional, Sequence, Tuple

import torch
from onnx import AttributeProto, NodeProto

from unified_ipu_onnx.assembly import ARRAY, NUMBERS, TENSOR, Assembly, as_numbers
from unified_ipu_onnx.errors import of_node
from unified_ipu_onnx.nodes import Mode, Node
from unified_ipu_onnx.program import UNWANTED, Step, Subgraph
from unified_ipu_onnx.registry import Function, Operator
from unified_ipu_onnx.scopes import Scope, Value
from unified_ipu_onnx.trainable import gradient_positions

STARTS = frozenset({"Shape", "Size"})  # arithmetic on shapes begins here
_SMALL = 4096  # elements of a constant that may be part of it


@dataclass(frozen=True)
class Call:
    """A node and where it stands.

    Attributes:
        proto: The node.
        label: Its name, with those of the nodes around it in front.
        domain: Of its operator.
        opset: Version of the domain's operator set.
        inputs: Values it reads; trailing absent ones are cut off.
        attributes: Its own, references resolved.
        scope: Gets its outputs.
    """

    proto: NodeProto
    label: str
    domain: str
    opset: int
    inputs: Sequence[Optional[Value]]
    attributes: Mapping[str, AttributeProto]
    scope: Scope

    @property
    def trains(self) -> bool:
        """Whether an input that passes a gradient depends on a weight."""
        positions = gradient_positions(self.domain, self.proto.op_type)
        return any(
            value.trains and index in positions
            for index, value in enumerate(self.inputs)
            if value is not None
        )

    def describe(self, attributes: Mapping[str, Any], mode: Mode) -> Node:
        """What its operator is told."""
        return Node(
            op_type=self.proto.op_type,
            domain=self.domain,
            label=self.label,
            opset=self.opset,
            attributes=attributes,
            inputs=tuple(value is not None for value in self.inputs),
            outputs=tuple(bool(name) for name in self.proto.output),
            constants=tuple(value.constant if value else None for value in self.inputs),
            states=tuple(value.state if value else False for value in self.inputs),
            mode=mode,
        )


def define(
    call: Call, assembly: Assembly, *, trains: bool = False, on_host: bool = False
) -> Tuple[int, ...]:
    """Give every wanted output a place, and return the places of all."""
    places = []
    for name in call.proto.output:
        if name:
            call.scope.values[name] = assembly.value(trains=trains, on_host=on_host)
        places.append(call.scope.values[name].place if name else UNWANTED)
    return tuple(places)


def fold(call: Call, operator: Operator, function: Function, assembly: Assembly) -> bool:
    """Compute a node now, if all it reads is known; returns whether it was."""
    if any(value is not None and value.constant is None for value in call.inputs):
        return False
    arguments: List[Any] = []
    for index, value in enumerate(call.inputs):
        known = None if value is None else value.constant
        arguments.append(
            as_numbers(known) if known is not None and index in operator.ints else known
        )
    try:
        with torch.no_grad():
            result = function(*arguments)
    except Exception as error:
        told = of_node(error, call.label, call.proto.op_type, arguments)
        raise told from error
    results = result if len(call.proto.output) > 1 else (result,)
    if not all(isinstance(item, torch.Tensor) for item in results):
        return False
    for name, item in zip(call.proto.output, results):
        if name:
            call.scope.values[name] = assembly.constant(item)
    return True


def emit(
    call: Call,
    operator: Operator,
    function: Function,
    assembly: Assembly,
    subgraphs: Sequence[Subgraph] = (),
) -> None:
    """Add the step that computes a node with torch."""
    reads = tuple(
        assembly.read(value, NUMBERS if index in operator.ints else TENSOR)
        for index, value in enumerate(call.inputs)
    )
    writes = define(call, assembly, trains=call.trains or bool(subgraphs))
    if subgraphs:
        function = _scoped(function, reads)
        outer = {place for graph in subgraphs for place in graph.outer_reads()}
        reads = (*reads, *sorted(outer))
    assembly.steps.append(
        Step(
            function,
            reads,
            writes,
            call.label,
            call.proto.op_type,
            scoped=bool(subgraphs),
            returns_tuple=len(call.proto.output) > 1,
        )
    )


def is_shape_arithmetic(call: Call) -> bool:
    """Whether a node reads a shape, or only what was computed from shapes and small constants."""
    given = [value for value in call.inputs if value is not None]
    if call.proto.op_type in STARTS:
        return all(value.constant is None and not value.on_host for value in given)
    return any(value.on_host for value in given) and all(
        value.on_host or _is_whole(value.constant) for value in given
    )


def emit_on_host(call: Call, operator: Operator, function: Function, assembly: Assembly) -> None:
    """Add the step that computes a node with numpy, unless an equal one is there already.

    Exporters ask for the same shape again and again.
    """
    form = TENSOR if call.proto.op_type in STARTS else ARRAY
    reads = tuple(
        assembly.read(value, NUMBERS if index in operator.ints else form)
        for index, value in enumerate(call.inputs)
    )
    attributes = tuple(sorted(a.SerializeToString() for a in call.attributes.values()))
    num_outputs = len(call.proto.output)
    key = (call.proto.op_type, call.opset, attributes, reads, num_outputs)
    known = assembly.worked_out(key)
    if known is None:
        writes = define(call, assembly, on_host=True)
        assembly.steps.append(
            Step(
                function,
                reads,
                writes,
                call.label,
                call.proto.op_type,
                returns_tuple=num_outputs > 1,
            )
        )
        if UNWANTED not in writes:
            assembly.note(key, [call.scope.values[name] for name in call.proto.output])
    else:
        call.scope.values.update(zip(call.proto.output, known))


def _is_whole(tensor: Optional[torch.Tensor]) -> bool:
    whole = {torch.int64, torch.int32, torch.bool}
    return tensor is not None and tensor.dtype in whole and tensor.numel() <= _SMALL


def _scoped(function: Function, reads: Tuple[int, ...]) -> Callable[..., Any]:
    def call(environment: List[Any]) -> Any:
        return function(environment, *[environment[place] for place in reads])

    return call
