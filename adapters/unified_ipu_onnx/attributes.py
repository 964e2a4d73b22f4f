"""Attributes of a node as Python values, those that a function passes on included."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable, Dict, Mapping, Optional

from onnx import AttributeProto, GraphProto, NodeProto, helper

from unified_ipu.errors import CapabilityError
from unified_ipu_onnx.errors import NAME
from unified_ipu_onnx.tensors import to_torch

Bindings = Mapping[str, AttributeProto]


def resolved(node: NodeProto, bindings: Bindings) -> Dict[str, AttributeProto]:
    """Attributes of a node by name, with those of the calling node put in where it refers to them.

    Args:
        node: In the body of a function, or in a graph.
        bindings: Attributes that the function was called with, defaults included.

    Returns:
        Without those that refer to an attribute the caller left out.
    """
    found: Dict[str, AttributeProto] = {}
    for attribute in node.attribute:
        if not attribute.ref_attr_name:
            found[attribute.name] = attribute
        elif attribute.ref_attr_name in bindings:
            bound = AttributeProto()
            bound.CopyFrom(bindings[attribute.ref_attr_name])
            bound.name = attribute.name
            found[attribute.name] = bound
    return found


def parsed(
    attribute: AttributeProto,
    *,
    base_dir: Optional[Path],
    subgraph: Callable[[GraphProto], Any],
) -> Any:
    """Value of one attribute.

    Args:
        attribute: Not a reference.
        base_dir: Folder of external data.
        subgraph: Makes of a graph what the operator is given.

    Returns:
        A number, a string, a torch tensor, what ``subgraph`` returned, or a list of them.

    Raises:
        CapabilityError: If it is of another kind, as a sparse tensor.
    """
    kind = AttributeProto.AttributeType.Name(attribute.type)
    if kind == "GRAPH":
        return subgraph(attribute.g)
    if kind == "TENSOR":
        return to_torch(attribute.t, base_dir)
    if kind == "TENSORS":
        return [to_torch(tensor, base_dir) for tensor in attribute.tensors]
    value = helper.get_attribute_value(attribute)
    if kind == "STRING":
        return bytes(value).decode("utf-8", "replace")
    if kind == "STRINGS":
        return [bytes(item).decode("utf-8", "replace") for item in value]
    if kind in {"FLOAT", "INT"}:
        return value
    if kind in {"FLOATS", "INTS"}:
        return list(value)
    raise CapabilityError(NAME, f"attribute {attribute.name!r} of kind {kind} is not supported")
