"""Newer operator sets as one that PopART reads, where nothing but the number differs.

Most newer versions of operators only take more types. Such a model is read by the older number;
for others the converter of the ``onnx`` package is asked.
"""

from __future__ import annotations

from typing import Any, List

import onnx
from onnx import ModelProto, NodeProto, version_converter

from unified_ipu.errors import CapabilityError
from unified_ipu_onnx.errors import NAME
from unified_ipu_onnx.popart_operators import NEWEST_OPSET
from unified_ipu_onnx.reading import opsets_of, plain_domain


def to_older(proto: ModelProto) -> ModelProto:
    """Return the model in operator set 11 at most.

    Args:
        proto: Its data lies inside; it is not changed.

    Raises:
        CapabilityError: If a node means something else there.
    """
    version = opsets_of(proto.opset_import).get("", 1)
    if version <= NEWEST_OPSET:
        return proto
    changed = [node for node in proto.graph.node if not _means_the_same(node, version)]
    if changed:
        return _converted(proto, version, changed)
    found = ModelProto()
    found.CopyFrom(proto)
    for entry in found.opset_import:
        if not plain_domain(entry.domain):
            entry.version = NEWEST_OPSET
    return found


def _means_the_same(node: NodeProto, version: int) -> bool:
    """Whether an operator, as this node uses it, only takes more types in its newer version."""
    if plain_domain(node.domain):
        return True
    if any(a.type in {a.GRAPH, a.GRAPHS} for a in node.attribute):
        return False  # what lies inside is not looked at
    try:
        newer: Any = onnx.defs.get_schema(node.op_type, version, "")
        older: Any = onnx.defs.get_schema(node.op_type, NEWEST_OPSET, "")
    except onnx.defs.SchemaError:
        return False
    if newer.since_version == older.since_version:
        return True
    if [i.name for i in newer.inputs] != [i.name for i in older.inputs]:
        return False
    if [o.name for o in newer.outputs] != [o.name for o in older.outputs]:
        return False
    given = {attribute.name for attribute in node.attribute}
    if not given <= older.attributes.keys():
        return False
    return all(
        name in given or _default(newer.attributes.get(name)) == _default(attribute)
        for name, attribute in older.attributes.items()
    )


def _default(attribute: Any) -> bytes:
    if attribute is None:
        return b"?"
    return bytes(attribute.default_value.SerializeToString())


def _converted(proto: ModelProto, version: int, changed: List[NodeProto]) -> ModelProto:
    names = {tensor.name for tensor in proto.graph.initializer}
    told = ", ".join(f"{node.name or node.output[0]!r} ({node.op_type})" for node in changed[:4])
    reason = CapabilityError(
        NAME,
        f"PopART reads operator sets up to {NEWEST_OPSET}; the model has {version}, where "
        f"{told} mean{'s' if len(changed) == 1 else ''} something else: export the model with "
        f"operator set {NEWEST_OPSET} (opset_version={NEWEST_OPSET})",
    )
    try:
        found: ModelProto = version_converter.convert_version(proto, NEWEST_OPSET)
    except (RuntimeError, ValueError, IndexError) as error:
        raise reason from error
    if not names <= {tensor.name for tensor in found.graph.initializer}:
        raise reason
    return found
