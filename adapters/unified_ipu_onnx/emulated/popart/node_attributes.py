"""Attributes of nodes: placement, memory, number formats, and what users add themselves."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Collection, Dict, Iterator, List, Sequence, Union

from onnx import AttributeProto, ModelProto, NodeProto, helper

from unified_ipu_onnx.emulated.popart.errors import popart_exception

Outputs = Union[str, Collection[str]]


class NodeAttributes:
    """The part of a builder that annotates nodes, which are named by their outputs."""

    _model: ModelProto
    _placed: List[Dict[str, int]]

    def addNodeAttribute(
        self,
        attributeName: str,
        attributeValue: Any,
        nodeOutputNames: Outputs,
    ) -> None:
        """Set an attribute of the node with these outputs.

        Raises:
            popart_exception: If it is set already, or there is no such node.
        """
        node = self._node(nodeOutputNames)
        if any(a.name == attributeName for a in node.attribute):
            raise popart_exception(f"Node already has attribute {attributeName}.")
        node.attribute.append(helper.make_attribute(attributeName, attributeValue))

    def setAvailableMemoryProportion(
        self, nodeOutputName: Outputs, availableMemoryProportion: float
    ) -> None:
        """Set it; without effect here.

        Raises:
            popart_exception: If it is not in (0, 1], or there is no such node.
        """
        if not 0.0 < availableMemoryProportion <= 1.0:
            raise popart_exception("availableMemoryProportion must be in (0, 1]")
        self._annotate("__available_memory", availableMemoryProportion, nodeOutputName)

    def setPartialsType(self, nodeOutputName: str, partialsType: str) -> None:
        """Set it; without effect here."""
        self._annotate("__partials_type", partialsType, nodeOutputName)

    def recomputeOutputInBackwardPass(self, nodeOutputName: Any, value: Any = 1) -> None:
        """Set it; without effect here."""
        self._annotate("__recompute_output_in_backward_pass", int(value), nodeOutputName)

    def nodeHasAttribute(self, attributeName: str, nodeOutputNames: Outputs) -> bool:
        """Whether it is set."""
        return attributeName in self.getAllNodeAttributeNames(nodeOutputNames)

    def getAllNodeAttributeNames(self, nodeOutputNames: Outputs) -> List[str]:
        """Names of all that are set."""
        return [attribute.name for attribute in self._node(nodeOutputNames).attribute]

    def getInt64NodeAttribute(self, attributeName: str, nodeOutputNames: Outputs) -> int:
        """Return an integer."""
        return int(self._value(attributeName, nodeOutputNames, AttributeProto.INT))

    def getInt64VectorNodeAttribute(
        self, attributeName: str, nodeOutputNames: Outputs
    ) -> List[int]:
        """Return integers."""
        return list(self._value(attributeName, nodeOutputNames, AttributeProto.INTS))

    def getFloatNodeAttribute(self, attributeName: str, nodeOutputNames: Outputs) -> float:
        """Return a number."""
        return float(self._value(attributeName, nodeOutputNames, AttributeProto.FLOAT))

    def getFloatVectorNodeAttribute(
        self, attributeName: str, nodeOutputNames: Outputs
    ) -> List[float]:
        """Return numbers."""
        return list(self._value(attributeName, nodeOutputNames, AttributeProto.FLOATS))

    def getStringNodeAttribute(self, attributeName: str, nodeOutputNames: Outputs) -> str:
        """Return text."""
        found: bytes = self._value(attributeName, nodeOutputNames, AttributeProto.STRING)
        return found.decode()

    def getStringVectorNodeAttribute(
        self, attributeName: str, nodeOutputNames: Outputs
    ) -> List[str]:
        """Return texts."""
        found = self._value(attributeName, nodeOutputNames, AttributeProto.STRINGS)
        return [text.decode() for text in found]

    def removeNodeAttribute(self, attributeName: str, nodeOutputNames: Outputs) -> None:
        """Take one away.

        Raises:
            popart_exception: If it is not set.
        """
        node = self._node(nodeOutputNames)
        for index, attribute in enumerate(node.attribute):
            if attribute.name == attributeName:
                del node.attribute[index]
                return
        raise popart_exception(f"Cannot remove attribute {attributeName} as it does not exist.")

    def getPartialsType(self, nodeOutputName: str) -> str:
        """Return what was set."""
        return self.getStringNodeAttribute("__partials_type", nodeOutputName)

    def virtualGraph(self, *args: Any) -> Any:
        """Place what is added inside a ``with``, or the nodes of these outputs, on an IPU."""
        return self._place("__ipu_number", args)

    def pipelineStage(self, *args: Any) -> Any:
        """Place what is added inside a ``with``, or the nodes of these outputs, in a stage."""
        return self._place("__pipeline_stage", args)

    def executionPhase(self, *args: Any) -> Any:
        """Place what is added inside a ``with``, or the nodes of these outputs, in a phase."""
        return self._place("__execution_phase", args)

    def getVirtualGraph(self, nodeOutputNames: Outputs) -> int:
        """Return the IPU that was set."""
        return self.getInt64NodeAttribute("__ipu_number", nodeOutputNames)

    def _value(self, name: str, outputs: Outputs, kind: int) -> Any:
        for attribute in self._node(outputs).attribute:
            if attribute.name == name:
                if attribute.type != kind:
                    raise popart_exception(f"attribute {name} has another type")
                return helper.get_attribute_value(attribute)
        raise popart_exception(f"Node does not have an attribute {name}.")

    def _place(self, attribute: str, args: Sequence[Any]) -> Any:
        if len(args) == 1:
            return self._placing(attribute, int(args[0]))
        return self._annotate(attribute, int(args[1]), args[0])

    @contextmanager
    def _placing(self, attribute: str, value: int) -> Iterator[None]:
        self._placed.append({attribute: value})
        yield
        self._placed.pop()

    def _annotate(self, attribute: str, value: Any, outputs: Any) -> None:
        node = self._node(outputs)
        for index, found in enumerate(node.attribute):
            if found.name == attribute:
                del node.attribute[index]
                break
        node.attribute.append(helper.make_attribute(attribute, value))

    def _node(self, outputs: Outputs) -> NodeProto:
        names = {outputs} if isinstance(outputs, str) else set(outputs)
        found: NodeProto
        for found in self._model.graph.node:
            if set(found.output) == names:
                return found
        raise popart_exception(f"Could not find a node with outputs {sorted(names)}")
