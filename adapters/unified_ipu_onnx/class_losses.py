"""The two losses of ONNX that know class weights and an ignored class, as nodes of a graph."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

import numpy as np
from onnx import ModelProto, NodeProto, helper

_OPERATORS = frozenset({"SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"})


class ClassLoss(NamedTuple):
    """One of the two losses of ONNX that know class weights and an ignored class.

    Their mean is divided by the weights of the classes of the targets that are not ignored.

    Args:
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        targets: Name of the value that holds them.
        ignored: Class that does not count, or None.
        weights: Name of the value that holds the class weights, or None.
    """

    reduction: str
    targets: str
    ignored: Optional[int]
    weights: Optional[str]

    def units(self, targets: Any, weights: Any) -> float:
        """W of these targets.

        Args:
            targets: ``[rows, ...]`` class indices on the host.
            weights: ``[classes]`` or None.
        """
        kept = targets.reshape(-1)
        if self.ignored is not None:
            kept = kept[kept != self.ignored]
        if weights is None:
            return float(kept.size)
        # An index that is out of range is the operator's to report.
        return float(np.take(weights, kept, mode="clip").sum(dtype=np.float64))


def class_loss(proto: ModelProto, output: str) -> Optional[ClassLoss]:
    """The operator that makes ``output``, if it is one of those whose denominator is known."""
    made = {name: node for node in proto.graph.node for name in node.output if name}
    node = made.get(output)
    while node is not None and node.op_type == "Identity":
        output = node.input[0]
        node = made.get(output)
    if node is None or node.op_type not in _OPERATORS or node.domain not in {"", "ai.onnx"}:
        return None
    if node.output[0] != output:  # the second one is the logarithm of the probabilities
        return None
    return _read(node)


def _read(node: NodeProto) -> ClassLoss:
    values = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    reduction = values.get("reduction", b"mean")
    return ClassLoss(
        reduction=reduction.decode() if isinstance(reduction, bytes) else str(reduction),
        targets=node.input[1],
        ignored=values.get("ignore_index"),
        weights=node.input[2] if len(node.input) > 2 and node.input[2] else None,  # noqa: PLR2004
    )
