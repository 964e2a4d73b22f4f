"""Builds ONNX graphs, from nothing or on top of a model.

Source: PopART of SDK 3.4, ``python/popart/python_files/builder.py`` and
``willow/src/builder_impl.cpp``.
"""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Set, Union

import numpy as np
import onnx
from onnx import ModelProto, helper

from unified_ipu_onnx.emulated.popart.data_flow import InputSettings
from unified_ipu_onnx.emulated.popart.enums import ReplicatedStreamMode
from unified_ipu_onnx.emulated.popart.errors import NotEmulatedError, popart_exception
from unified_ipu_onnx.emulated.popart.node_attributes import NodeAttributes
from unified_ipu_onnx.emulated.popart.opsets import AiGraphcoreOpset1, AiOnnx
from unified_ipu_onnx.emulated.popart.protos import info_of, load, onnx_type, tensor_of
from unified_ipu_onnx.emulated.popart.support import (
    DEFAULT_OPSET,
    GRAPHCORE,
    NEWEST_OPSET,
    OLDEST_OPSET,
)
from unified_ipu_onnx.emulated.popart.tensor_info import TensorInfo
from unified_ipu_onnx.reading import plain_domain

STREAM_MODE = "__replicated_stream_mode"


class Builder(NodeAttributes):
    """Builds an ONNX graph.

    Args:
        modelProtoOrFilename: Bytes or a path of a model to start from.
        opsets: Versions of both domains; without it the first ``aiOnnx...`` decides.
        builderCore: Not emulated.

    Raises:
        popart_exception: If the model cannot be read.
        KeyError: If ``opsets`` leaves one of the two out.
    """

    def __init__(
        self,
        modelProtoOrFilename: Union[str, bytes, None] = None,
        opsets: Optional[Mapping[str, int]] = None,
        builderCore: Any = None,
    ) -> None:
        if builderCore is not None:
            raise NotEmulatedError("builders of subgraphs")
        self._model = ModelProto(ir_version=4)
        self._model.graph.name = "BuilderGraph"
        if modelProtoOrFilename is not None:
            self._model = load(modelProtoOrFilename)
        graphcore, self._version = 1, None
        if opsets is not None:
            self._version, graphcore = opsets["ai.onnx"], opsets[GRAPHCORE]
        self._scopes: List[str] = []
        self._placed: List[Dict[str, int]] = []
        self.aiGraphcore = self.aiGraphcoreOpset1 = AiGraphcoreOpset1(self._add_node, graphcore)

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("aiOnnx") or name == "aiOnnxMl":
            raise NotEmulatedError(f"Builder.{name}") if name[:1] != "_" else AttributeError(name)
        asked = name[len("aiOnnxOpset") :]
        version = int(asked) if asked else self._version or DEFAULT_OPSET
        if not OLDEST_OPSET <= version <= NEWEST_OPSET:
            raise popart_exception(
                f"no operator set {version}: from {OLDEST_OPSET} to {NEWEST_OPSET}"
            )
        if self._version is None:
            self._version = version
        if version != self._version:
            raise RuntimeError(
                f"Invalid opset '{name}' selected. Opset for domain ai.onnx already defined as "
                f"{self._version}"
            )
        return AiOnnx(self._add_node, version)

    def setGraphName(self, name: str) -> None:
        """Name the graph."""
        self._model.graph.name = name

    def addInputTensor(self, *args: Any, debugContext: str = "") -> str:
        """Add an input: a ``TensorInfo``, or type and shape; then ``InputSettings``, a debug name.

        Raises:
            popart_exception: If the type is unknown.
        """
        rest = list(args)
        if not isinstance(rest[0], TensorInfo):
            rest[:2] = [TensorInfo(rest[0], rest[1])]
        info = rest.pop(0)
        settings = rest.pop(0) if rest and isinstance(rest[0], InputSettings) else InputSettings()
        name = self._unique((rest[0] if rest else debugContext) or "input")
        self._model.graph.input.append(
            helper.make_tensor_value_info(name, onnx_type(info.dataType()), info.shape())
        )
        if settings.replicatedStreamMode() is ReplicatedStreamMode.Broadcast:
            self._model.metadata_props.add(key=f"{STREAM_MODE}{name}", value="Broadcast")
        return name

    def addUntypedInputTensor(self, debugContext: str = "") -> str:
        """Inputs without a type are for subgraphs only.

        Raises:
            popart_exception: Always.
        """
        del debugContext
        raise popart_exception("Can not add untyped tensors to the top-level graph.")

    def reshape_const(
        self, aiOnnx: AiOnnx, args: Sequence[str], shape: Sequence[int], debugContext: str = ""
    ) -> str:
        """Add a reshape to a constant shape."""
        sizes = aiOnnx.constant(np.array(shape, np.int64), f"{debugContext}_const")
        return str(aiOnnx.reshape([args[0], sizes], debugContext))

    def addInitializedInputTensor(self, initVal: Any, *args: Any, debugContext: str = "") -> str:
        """Add a weight.

        Raises:
            NotEmulatedError: If its replicas should differ.
        """
        if args and not isinstance(args[0], str):
            raise NotEmulatedError("VariableSettings; all replicas share a weight here")
        value = np.asarray(initVal)
        name = self._unique((args[0] if args else debugContext) or "init_input")
        info = TensorInfo(value.dtype, value.shape)
        graph = self._model.graph
        graph.initializer.append(tensor_of(value, name))
        graph.input.append(
            helper.make_tensor_value_info(name, onnx_type(info.dataType()), info.shape())
        )
        return name

    def addOutputTensor(self, outputName: str) -> None:
        """Make a tensor an output."""
        self._check_known(outputName)
        graph = self._model.graph
        if outputName not in self.getOutputTensorIds():
            found = [v for v in graph.value_info if v.name == outputName]
            graph.output.append(found[0] if found else onnx.ValueInfoProto(name=outputName))

    def getModelProto(self) -> bytes:
        """Return the serialised model."""
        return bytes(self._model.SerializeToString())

    def saveModelProto(self, filename: str) -> None:
        """Write the model to a file."""
        Path(filename).write_bytes(self.getModelProto())

    def getInputTensorIds(self) -> List[str]:
        """Inputs and weights."""
        return [value.name for value in self._model.graph.input]

    def getOutputTensorIds(self) -> List[str]:
        """Outputs."""
        return [value.name for value in self._model.graph.output]

    def getValueTensorIds(self) -> List[str]:
        """Everything that nodes compute and that is no output."""
        outputs = self.getOutputTensorIds()
        names = [name for node in self._model.graph.node for name in node.output]
        return [name for name in names if name not in outputs]

    def getTrainableTensorIds(self) -> List[str]:
        """Weights."""
        return [tensor.name for tensor in self._model.graph.initializer]

    def isInitializer(self, id: str) -> bool:
        """Whether a tensor is a weight."""
        return id in self.getTrainableTensorIds()

    def getTensorShape(self, id: str) -> List[int]:
        """Shape of any tensor."""
        return info_of(self._model, id).shape()

    def getTensorDtypeString(self, id: str) -> str:
        """Type of any tensor, as numpy calls it."""
        return info_of(self._model, id).data_type_lcase()

    def customOp(self, opName: str, *args: Any, **named: Any) -> List[str]:
        """Operators of the user's own are not emulated.

        Raises:
            NotEmulatedError: Always.
        """
        del args, named
        raise NotEmulatedError(f"customOp {opName!r}: its code is for Poplar")

    @contextmanager
    def nameScope(self, name: str) -> Iterator[None]:
        """Prefix names of what is added inside."""
        self._scopes.append(name)
        yield
        self._scopes.pop()

    def getNameScope(self, name: str = "") -> str:
        """Return the prefix of names, with a name behind it."""
        return "".join(f"{scope}/" for scope in self._scopes) + name

    def _unique(self, name: str) -> str:
        base = self.getNameScope(name)
        known, found, count = self._known(), base, 0
        while found in known:
            count += 1
            found = f"{base}/{count}"
        return found

    def _known(self) -> Set[str]:
        graph = self._model.graph
        names = {value.name for value in graph.input} | {t.name for t in graph.initializer}
        return names | {name for node in graph.node for name in node.output}

    def _check_known(self, name: str) -> None:
        known = self._known()
        if name not in known:
            raise popart_exception(f"Unknown tensor {name!r} (valid tensors are {sorted(known)})")

    def _add_node(
        self,
        domain: str,
        operator: str,
        version: int,
        inputs: List[str],
        attributes: Mapping[str, Any],
        outputs: int,
        debug: str,
    ) -> List[str]:
        for name in filter(None, inputs):
            self._check_known(name)
        self._require(domain, version)
        prefix = f"{debug}/{operator}" if debug else operator
        names = [self._unique(f"{prefix}:{index}") for index in range(outputs)]
        node = helper.make_node(operator, inputs, names, name=debug, domain=domain, **attributes)
        for placed in self._placed:
            node.attribute.extend(helper.make_attribute(n, v) for n, v in placed.items())
        self._model.graph.node.append(node)
        return names

    def _require(self, domain: str, version: int) -> None:
        for entry in self._model.opset_import:
            if plain_domain(entry.domain) == domain:
                if entry.version != version:
                    raise popart_exception(
                        f"Invalid opset {version} used to add an operation. Opset for domain "
                        f"{domain or 'ai.onnx'} already defined as {entry.version}"
                    )
                return
        self._model.opset_import.append(helper.make_opsetid(domain, version))
