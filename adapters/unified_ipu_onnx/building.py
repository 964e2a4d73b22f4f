"""What a graph module is made of: weights, constants, and steps over their places."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Collection, Dict, List, Mapping, Optional, Set, Tuple, Union

import torch
from onnx import GraphProto, ModelProto, ValueInfoProto

from unified_ipu.errors import CapabilityError, ConfigError
from unified_ipu_onnx.compilation import Compiler
from unified_ipu_onnx.errors import NAME
from unified_ipu_onnx.functions import functions_of
from unified_ipu_onnx.nodes import Mode
from unified_ipu_onnx.operators import REGISTRY
from unified_ipu_onnx.program import Step, without_unused
from unified_ipu_onnx.reading import opsets_of, real_inputs
from unified_ipu_onnx.reference import by_reference
from unified_ipu_onnx.scopes import Scope, Value
from unified_ipu_onnx.tensors import to_torch, torch_dtype
from unified_ipu_onnx.trainable import Uses, uses_of
from unified_ipu_onnx.unsupported import Unsupported, check_supported
from unified_ipu_onnx.value_types import Types

Trainable = Union[None, Collection[str], Callable[[str], bool]]


@dataclass(frozen=True)
class Weight:
    """An initializer that is part of a module's state.

    Attributes:
        name: In the file.
        place: Where the steps read it.
        tensor: Its value.
        trained: Whether it is a parameter.
        running: Whether it is a running statistic.
    """

    name: str
    place: int
    tensor: torch.Tensor
    trained: bool
    running: bool


@dataclass(frozen=True)
class Built:
    """A compiled graph, not yet a module.

    Attributes:
        mode: What its operators look at when they run.
        weights: In the order of the file.
        constants: Tensors that the steps read, by place.
        inputs: Names and places of what is fed.
        outputs: Names and places of results.
        steps: In order.
        template: What lies at each place before a run; None for tensors.
        places: Of everything that is there or computed, by its name in the main graph.
        frozen: Tensors in the place of weights that are not trained.
        coupling: Nodes whose result for a row depends on the other rows.
        drawing: Nodes that draw random numbers.
        fallbacks: Nodes without gradients.
    """

    mode: Mode
    weights: Tuple[Weight, ...]
    constants: Mapping[int, torch.Tensor]
    inputs: Mapping[str, int]
    outputs: Tuple[Tuple[str, int], ...]
    steps: Tuple[Step, ...]
    template: Tuple[Any, ...]
    places: Mapping[str, int]
    frozen: Tuple[str, ...]
    coupling: Tuple[str, ...]
    drawing: Tuple[str, ...]
    fallbacks: Tuple[Unsupported, ...]


def build(proto: ModelProto, base_dir: Optional[Path], trainable: Trainable) -> Built:
    """Compile a model.

    Args:
        proto: Checked by ``read_model``.
        base_dir: Folder of its external data.
        trainable: As ``GraphModule.from_model`` takes it.

    Returns:
        All a module needs. Errors are those of ``GraphModule.from_model``.
    """
    graph, mode, scope = proto.graph, Mode(), Scope()
    compiler = Compiler(
        REGISTRY, functions_of(proto), base_dir=base_dir, mode=mode, fallback=by_reference
    )
    uses = uses_of(proto)
    chosen = _choose(uses, trainable)
    weights = _enter(graph, base_dir, scope, compiler, uses=uses, chosen=chosen)
    inputs = real_inputs(graph)
    for formal in graph.input:
        if formal.name in inputs:
            _check_type(formal)
            scope.values[formal.name] = compiler.assembly.value()
    compiler.compile(graph, scope, opsets_of(proto.opset_import), Types.of_model(proto))
    check_supported(compiler.unsupported)
    assembly = compiler.assembly
    outputs = [(v.name, assembly.read(_output(scope, v.name))) for v in graph.output]
    steps = without_unused(assembly.steps, [place for _, place in outputs])
    read = {place for step in steps for place in step.reads} | {place for _, place in outputs}
    constants = {p: tensor for p, tensor in assembly.constants.items() if p in read}
    present = {scope.values[name].place for name in inputs} | {w.place for w in weights}
    present |= {place for step in steps for place in step.writes} | set(constants)
    return Built(
        mode=mode,
        weights=tuple(weights),
        constants=constants,
        inputs={name: scope.values[name].place for name in inputs},
        outputs=tuple(outputs),
        steps=tuple(steps),
        template=tuple(assembly.presets.get(place) for place in range(assembly.num_places)),
        places={name: v.place for name, v in scope.values.items() if v.place in present},
        frozen=(*sorted(uses.weights - chosen), *sorted(uses.settings)),
        coupling=tuple(compiler.coupling),
        drawing=tuple(compiler.drawing),
        fallbacks=tuple(compiler.fallbacks),
    )


def _enter(
    graph: GraphProto,
    base_dir: Optional[Path],
    scope: Scope,
    compiler: Compiler,
    *,
    uses: Uses,
    chosen: Set[str],
) -> List[Weight]:
    """Put every initializer into the scope: as part of the state, or as a constant.

    Raises:
        CapabilityError: If one is sparse.
    """
    if graph.sparse_initializer:
        name = graph.sparse_initializer[0].values.name
        raise CapabilityError(
            NAME, f"sparse initializer {name!r} is not supported; store it densely"
        )
    weights: List[Weight] = []
    values: Dict[str, Value] = {}
    for tensor in graph.initializer:
        name, held = tensor.name, to_torch(tensor, base_dir)
        if name in uses.weights or name in uses.states:
            trained, running = name in chosen, name in uses.states
            values[name] = compiler.assembly.value(trains=trained, state=running)
            weights.append(Weight(name, values[name].place, held, trained, running))
        else:
            values[name] = compiler.assembly.constant(held)
    scope.values.update(values)
    return weights


def _output(scope: Scope, name: str) -> Value:
    value = scope.find(name)
    if value is None:
        raise ConfigError(
            f"the graph lists the output {name!r}, which nothing computes; check the file with "
            "onnx.checker.check_model"
        )
    return value


def _check_type(formal: ValueInfoProto) -> None:
    """Refuse an input that no torch tensor can hold; sequences come as lists of tensors.

    Raises:
        CapabilityError: Naming it.
    """
    if formal.type.HasField("tensor_type"):
        try:
            torch_dtype(formal.type.tensor_type.elem_type)
        except CapabilityError as error:
            raise CapabilityError(NAME, f"input {formal.name!r}: {error.message}") from error


def _choose(uses: Uses, trainable: Trainable) -> Set[str]:
    if trainable is None:
        return uses.weights
    if callable(trainable):
        return {name for name in uses.weights if trainable(name)}
    unknown = sorted(set(trainable) - uses.weights)
    if unknown:
        raise ConfigError(
            f"trainable names {unknown[0]!r}, which is no initializer that an operator has a "
            f"gradient for; choose from {sorted(uses.weights)}"
        )
    return set(trainable)
