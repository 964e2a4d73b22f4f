"""Operators that are written in terms of others: functions of a model, and bodies of schemas."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import onnx
from onnx import AttributeProto, FunctionProto, ModelProto, NodeProto, TypeProto

from unified_ipu.errors import ConfigError
from unified_ipu_onnx.reading import opsets_of, plain_domain

Key = Tuple[str, str, str]  # domain, name, overload


@dataclass(frozen=True)
class Body:
    """Nodes to put in the place of one node.

    Attributes:
        proto: Its nodes, and the names of its inputs and outputs.
        opsets: Operator sets that its nodes are read by.
        bindings: Attributes of the call, defaults included.
    """

    proto: FunctionProto
    opsets: Mapping[str, int]
    bindings: Mapping[str, AttributeProto]


def functions_of(model: ModelProto) -> Dict[Key, FunctionProto]:
    """Functions that a model brings along; none before IR version 8."""
    return {
        (plain_domain(f.domain), f.name, getattr(f, "overload", "")): f for f in model.functions
    }


def local_body(
    node: NodeProto,
    attributes: Mapping[str, AttributeProto],
    functions: Mapping[Key, FunctionProto],
    opsets: Mapping[str, int],
) -> Optional[Body]:
    """Body of a node that calls a function of the model, or None.

    Args:
        node: Any node.
        attributes: Its own, resolved.
        functions: The model's.
        opsets: The caller's, inherited where the function imports none.
    """
    key = (plain_domain(node.domain), node.op_type, getattr(node, "overload", ""))
    function = functions.get(key)
    if function is None:
        return None
    bindings = {a.name: a for a in getattr(function, "attribute_proto", ())}
    bindings.update(attributes)
    return Body(function, {**opsets, **opsets_of(function.opset_import)}, bindings)


def schema_body(
    node: NodeProto,
    attributes: Mapping[str, AttributeProto],
    opsets: Mapping[str, int],
    input_types: Callable[[], Optional[Sequence[TypeProto]]],
) -> Optional[Body]:
    """Body that the ONNX standard gives an operator, or None.

    Args:
        node: Any node.
        attributes: Its own, resolved.
        opsets: The caller's.
        input_types: Types of its inputs, an empty one for an absent input; None if unknown. Asked
            only if the body depends on them.
    """
    domain = plain_domain(node.domain)
    opset = opsets.get(domain, 1)
    schema = schema_of(node, opset)
    if schema is None:
        return None
    bindings = {
        name: attribute.default_value
        for name, attribute in schema.attributes.items()
        if attribute.default_value.name
    }
    bindings.update(attributes)
    serialized, version = _fixed_body(schema, opset)
    if not serialized:
        types = input_types() if schema.has_context_dependent_function else None
        if types is None:
            return None
        serialized, version = _context_body(schema, opset, with_attributes(node, attributes), types)
    if not serialized:
        return None
    function = FunctionProto()
    function.ParseFromString(serialized)
    # A body may import nothing; it is then written in the operator set it was asked for.
    return Body(function, {**opsets, domain: version, **opsets_of(function.opset_import)}, bindings)


def schema_of(node: NodeProto, opset: int) -> Any:
    """Definition of a node's operator in that operator set, or None."""
    try:
        return onnx.defs.get_schema(node.op_type, opset, plain_domain(node.domain))
    except onnx.defs.SchemaError:
        return None


def _fixed_body(schema: Any, opset: int) -> Tuple[bytes, int]:
    if not schema.has_function:
        return b"", 0
    version = _version(schema.function_opset_versions, opset)
    return bytes(schema.get_function_with_opset_version(version)), version


def _context_body(
    schema: Any, opset: int, node: NodeProto, types: Sequence[TypeProto]
) -> Tuple[bytes, int]:
    version = _version(schema.context_dependent_function_opset_versions, opset)
    try:
        serialized = schema.get_context_dependent_function_with_opset_version(
            version, node.SerializeToString(), [kind.SerializeToString() for kind in types]
        )
    except (RuntimeError, ValueError) as error:
        raise ConfigError(
            f"node {node.name or list(node.output)!r} ({node.op_type}) is not what the standard "
            f"says: {error}; check the file with onnx.checker.check_model"
        ) from error
    return bytes(serialized), version


def _version(versions: Sequence[int], opset: int) -> int:
    # Bodies are read by their own operator set, so a newer one means the same.
    fitting = [version for version in versions if version <= opset]
    return max(fitting) if fitting else min(versions)


def depends_on_types(node: NodeProto, opset: int) -> bool:
    """Whether the standard has a body for the operator that the types of its inputs decide."""
    schema = schema_of(node, opset)
    return schema is not None and bool(schema.has_context_dependent_function)


def with_attributes(node: NodeProto, attributes: Mapping[str, AttributeProto]) -> NodeProto:
    """Copy of a node that holds its attributes itself."""
    plain = NodeProto()
    plain.CopyFrom(node)
    values: List[AttributeProto] = list(attributes.values())
    del plain.attribute[:]
    plain.attribute.extend(values)
    return plain
