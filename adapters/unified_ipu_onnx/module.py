"""An ONNX graph as a torch module: its initializers are parameters, its nodes torch functions."""

from __future__ import annotations

from pathlib import Path
from typing import (
    Any,
    Callable,
    Collection,
    Dict,
    List,
    Mapping,
    Optional,
    Sequence,
    Set,
    Tuple,
    Union,
)

import numpy as np
import torch
from onnx import ModelProto, ValueInfoProto

from unified_ipu.errors import CapabilityError, ConfigError
from unified_ipu_onnx.assembly import TENSOR
from unified_ipu_onnx.compilation import Compiler
from unified_ipu_onnx.errors import NAME
from unified_ipu_onnx.functions import functions_of
from unified_ipu_onnx.names import escape
from unified_ipu_onnx.nodes import Mode
from unified_ipu_onnx.operators import REGISTRY
from unified_ipu_onnx.program import execute, seal, without_unused
from unified_ipu_onnx.reading import opsets_of, read_model, real_inputs
from unified_ipu_onnx.reference import by_reference
from unified_ipu_onnx.scopes import Scope, Value
from unified_ipu_onnx.tensors import to_torch, torch_dtype
from unified_ipu_onnx.trainable import Uses, is_float, uses_of
from unified_ipu_onnx.unsupported import Unsupported, refuse
from unified_ipu_onnx.value_types import Types

Trainable = Union[None, Collection[str], Callable[[str], bool]]


class GraphModule(torch.nn.Module):
    """Computes what the graph says, with gradients; made by ``from_model``.

    ``BatchNormalization`` and ``Dropout`` follow ``training`` of the module, whatever the file
    says; running statistics follow the rule of ONNX: the variance of the population, and momentum
    as the share of the old value.

    Attributes:
        input_names: Inputs to feed, in order.
        output_names: Outputs, in order.
        initializer_names: ONNX name of each parameter and each buffer that is saved.
        frozen: Tensors in the place of weights that are not trained: outputs of ``Constant``
            nodes, and initializers that ``trainable`` left out.
        running_statistics: Names of the buffers that training moves by averages.
        coupling: Nodes whose result for a row depends on the other rows, when training.
        drawing: Nodes that draw random numbers, when training.
        fallbacks: Nodes that the reference evaluator of ONNX computes, without gradients.
    """

    input_names: Tuple[str, ...]
    output_names: Tuple[str, ...]
    initializer_names: Dict[str, str]
    frozen: Tuple[str, ...]
    running_statistics: Tuple[str, ...]
    coupling: Tuple[str, ...]
    drawing: Tuple[str, ...]
    fallbacks: Tuple[Unsupported, ...]

    def __init__(self) -> None:
        super().__init__()
        self.initializer_names = {}
        self._mode = Mode()
        self._constant_names: Dict[int, str] = {}

    @classmethod
    def from_model(
        cls,
        proto: ModelProto,
        *,
        base_dir: Optional[Path] = None,
        trainable: Trainable = None,
    ) -> GraphModule:
        """Build the module of a model; runs only what does not depend on inputs or weights.

        Args:
            proto: Not changed, and not kept.
            base_dir: Folder of its external data.
            trainable: Names of the initializers to train, or what says so of a name; by default
                all that some operator has a gradient for.

        Raises:
            CapabilityError: If nodes are not supported; all of them are listed.
            ConfigError: If the file is not valid, or ``trainable`` names what cannot be trained.
        """
        loaded = read_model(proto, base_dir=base_dir)
        module = cls()
        module._build(loaded.proto, loaded.base_dir, trainable)
        return module

    def forward(self, *args: torch.Tensor, **kwargs: torch.Tensor) -> Any:
        """Run the graph.

        Args:
            args: Inputs in the order of ``input_names``.
            kwargs: Inputs by name.

        Returns:
            The output, or a dict of them in the order of the graph if there are several.

        Raises:
            ConfigError: If an input is missing, unknown or given twice.
        """
        environment = self._template[:]
        if kwargs or len(args) != len(self._input_places):
            args = self._by_position(args, kwargs)
        for place, value in zip(self._input_places, args):
            environment[place] = value
        self._prepare(environment)
        execute(self._sealed, environment)
        if len(self._output_places) == 1:
            return environment[self._output_places[0]]
        return {
            name: environment[place] for name, place in zip(self.output_names, self._output_places)
        }

    def run(self, feeds: Mapping[str, Any], outputs: Sequence[str]) -> Dict[str, Any]:
        """Run the graph and return any of its values, to compare node by node.

        Args:
            feeds: Inputs by name.
            outputs: Names of values of the main graph.

        Returns:
            The values by name.

        Raises:
            ConfigError: If the graph does not compute a value of that name.
        """
        unknown = [name for name in outputs if name not in self._places]
        if unknown:
            raise ConfigError(f"the graph computes no value {unknown[0]!r}; ask for one it has")
        environment = self._template[:]
        for place, value in zip(self._input_places, self._by_position((), feeds)):
            environment[place] = value
        self._prepare(environment)
        execute(self._keeping, environment)
        found = {name: environment[self._places[name]] for name in outputs}
        return {
            name: torch.from_numpy(np.array(value)) if isinstance(value, _ON_HOST) else value
            for name, value in found.items()
        }

    def computed_names(self) -> Tuple[str, ...]:
        """Names that ``run`` can return, in the order in which they are computed."""
        return tuple(self._places)

    def _prepare(self, environment: List[Any]) -> None:
        parameters, buffers = self._parameters, self._buffers
        for place, name in self._parameter_places:
            environment[place] = parameters[name]
        for place, name in self._buffer_places:
            environment[place] = buffers[name]
        mode = self._mode
        mode.training = self.training
        if self._device_source is not None:
            # A sequence among the inputs has no device; what is made from nothing stays put.
            source = environment[self._device_source]
            mode.device = getattr(source, "device", mode.device)

    def _by_position(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tuple[Any, ...]:
        names = self.input_names
        given = dict(zip(names, args))
        twice = sorted(given.keys() & kwargs.keys())
        given.update(kwargs)
        missing = [name for name in names if name not in given]
        unknown = sorted(kwargs.keys() - set(names))
        if missing or unknown or twice or len(args) > len(names):
            wrong = f"got {len(args)} by position and {sorted(kwargs)} by name"
            raise ConfigError(f"the graph has the inputs {list(names)}, {wrong}; give each once")
        return tuple(given[name] for name in names)

    def _build(self, proto: ModelProto, base_dir: Optional[Path], trainable: Trainable) -> None:
        graph = proto.graph
        if graph.sparse_initializer:
            name = graph.sparse_initializer[0].values.name
            raise ConfigError(f"sparse initializer {name!r} is not supported; store it densely")
        compiler = Compiler(
            REGISTRY,
            functions_of(proto),
            base_dir=base_dir,
            mode=self._mode,
            fallback=by_reference,
        )
        scope = Scope()
        uses = uses_of(proto)
        chosen = _choose(uses, trainable)
        held: Dict[str, Value] = {}
        for tensor in graph.initializer:
            value = to_torch(tensor, base_dir)
            if tensor.name in uses.states or (is_float(tensor) and tensor.name in uses.weights):
                held[tensor.name] = compiler.assembly.value(
                    trains=tensor.name in chosen, state=tensor.name in uses.states
                )
                scope.values[tensor.name] = held[tensor.name]
                self._hold(tensor.name, value, trained=tensor.name in chosen)
            else:
                scope.values[tensor.name] = compiler.assembly.constant(value)
        self.input_names = real_inputs(graph)
        for formal in graph.input:
            if formal.name in self.input_names:
                _check_type(formal)
                scope.values[formal.name] = compiler.assembly.value()
        compiler.compile(graph, scope, opsets_of(proto.opset_import), Types.of_model(proto))
        if compiler.unsupported:
            raise refuse(compiler.unsupported)
        self.output_names = tuple(value.name for value in graph.output)
        self.frozen = tuple(sorted(uses.weights - chosen)) + tuple(sorted(uses.constants))
        self.running_statistics = tuple(
            own for own, name in self.initializer_names.items() if name in uses.states
        )
        self.coupling = tuple(compiler.coupling)
        self.drawing = tuple(compiler.drawing)
        self.fallbacks = tuple(compiler.fallbacks)
        self._seal(compiler, scope, held)

    def _hold(self, name: str, tensor: torch.Tensor, *, trained: bool) -> None:
        own = escape(name, _Reserved(self))
        if trained:
            self.register_parameter(own, torch.nn.Parameter(tensor))
        else:
            self.register_buffer(own, tensor)
        self.initializer_names[own] = name

    def _seal(self, compiler: Compiler, scope: Scope, held: Mapping[str, Value]) -> None:
        outputs = []
        for name in self.output_names:
            value = scope.find(name)
            if value is None:
                raise ConfigError(f"the graph lists the output {name!r}, which nothing computes")
            outputs.append(compiler.assembly.read(value, TENSOR))
        steps = without_unused(compiler.assembly.steps, outputs)
        read = {*outputs, *(place for step in steps for place in step.reads)}
        written = {place for step in steps for place in step.writes}
        self._template = [
            compiler.assembly.presets.get(i) for i in range(compiler.assembly.num_places)
        ]
        self._input_places = tuple(scope.values[name].place for name in self.input_names)
        self._output_places = tuple(outputs)
        self._sealed = seal(steps, outputs)
        self._keeping = seal(steps, outputs, free=False)
        places = {name: value.place for name, value in held.items()}
        names = {initializer: own for own, initializer in self.initializer_names.items()}
        self._parameter_places = tuple(
            (place, names[name])
            for name, place in places.items()
            if names[name] in self._parameters
        )
        buffers = [(p, names[n]) for n, p in places.items() if names[n] in self._buffers]
        for place, tensor in compiler.assembly.constants.items():
            if place in read:
                # They move with the module, and are no part of its state.
                own = escape(f"constant.{place}")
                self.register_buffer(own, tensor, persistent=False)
                buffers.append((place, own))
        self._buffer_places = tuple(buffers)
        sources = (*(p for p, _ in self._parameter_places), *(p for p, _ in buffers))
        self._device_source = next(iter((*sources, *self._input_places)), None)
        known = {*written, *self._input_places, *sources}
        self._places = {
            name: value.place for name, value in scope.values.items() if value.place in known
        }


_ON_HOST = (np.ndarray, np.generic)  # shapes


class _Reserved:
    """Names that a module has as attributes."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module

    def __contains__(self, name: object) -> bool:
        return hasattr(self._module, str(name))


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
