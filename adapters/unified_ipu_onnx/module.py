"""An ONNX graph as a torch module: its initializers are parameters, its nodes torch functions."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np
import torch
from onnx import ModelProto

from unified_ipu.errors import ConfigError
from unified_ipu_onnx.building import Built, Trainable, build
from unified_ipu_onnx.names import escape
from unified_ipu_onnx.program import execute, seal
from unified_ipu_onnx.reading import read_model


class GraphModule(torch.nn.Module):
    """Computes what the graph says, with gradients; made by ``from_model``.

    ``BatchNormalization`` and ``Dropout`` follow ``training`` of the module, whatever the file
    says; running statistics follow the rule of ONNX: the variance of the population, and momentum
    as the share of the old value.

    Args:
        built: The compiled graph.

    Attributes:
        input_names: Inputs to feed, in order.
        output_names: Outputs, in order.
        initializer_names: ONNX name of each parameter and each buffer that is saved.
        frozen: Tensors that could be trained and are not: outputs of ``Constant`` nodes,
            initializers that ``trainable`` left out, and those where an operator reads a setting.
        running_statistics: Names of the buffers that training moves by averages.
        coupling: Nodes whose result for a row depends on the other rows, when training.
        drawing: Nodes that draw random numbers, when training.
        fallbacks: Nodes that the reference evaluator of ONNX computes, without gradients.
    """

    def __init__(self, built: Built) -> None:
        super().__init__()
        outputs = [place for _, place in built.outputs]
        self.input_names = tuple(built.inputs)
        self.output_names = tuple(name for name, _ in built.outputs)
        self.initializer_names: Dict[str, str] = {}
        self.frozen = built.frozen
        self.running_statistics: Tuple[str, ...] = ()
        self.coupling = built.coupling
        self.drawing = built.drawing
        self.fallbacks = built.fallbacks
        self._mode = built.mode
        self._template = list(built.template)
        self._steps = seal(built.steps, outputs)
        self._keeping = seal(built.steps, outputs, free=False)
        self._places = dict(built.places)
        self._input_places = tuple(built.inputs.values())
        self._output_places = tuple(outputs)
        self._parameter_places: Tuple[Tuple[int, str], ...] = ()
        self._buffer_places: Tuple[Tuple[int, str], ...] = ()
        self._device_source: Optional[int] = None
        # Last, so that no name of a file can hide one of the above.
        self._hold(built)

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
        return cls(build(loaded.proto, loaded.base_dir, trainable))

    def forward(self, *args: torch.Tensor, **kwargs: torch.Tensor) -> Any:
        """Run the graph.

        Args:
            args: Inputs in the order of ``input_names``.
            kwargs: Inputs by name.

        Returns:
            The output, or a dict of them in the order of the graph if there are several.

        Raises:
            ConfigError: If an input is missing, unknown or given twice.
            DataError: If a node cannot compute what it is given.
        """
        if kwargs or len(args) != len(self._input_places):
            args = self._by_position(args, kwargs)
        environment = self._filled(args)
        execute(self._steps, environment)
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
            DataError: If a node cannot compute what it is given.
        """
        unknown = [name for name in outputs if name not in self._places]
        if unknown:
            raise ConfigError(f"the graph computes no value {unknown[0]!r}; ask for one it has")
        environment = self._filled(self._by_position((), feeds))
        execute(self._keeping, environment)
        found = {name: environment[self._places[name]] for name in outputs}
        return {
            name: torch.from_numpy(np.array(value)) if isinstance(value, _ON_HOST) else value
            for name, value in found.items()
        }

    def computed_names(self) -> Tuple[str, ...]:
        """Names that ``run`` can return, in the order in which they are computed."""
        return tuple(self._places)

    def _filled(self, args: Sequence[Any]) -> List[Any]:
        """Places with what is there before the first step."""
        environment = self._template[:]
        for place, value in zip(self._input_places, args):
            environment[place] = value
        parameters, buffers = self._parameters, self._buffers
        for place, name in self._parameter_places:
            environment[place] = parameters[name]
        for place, name in self._buffer_places:
            environment[place] = buffers[name]
        mode = self._mode
        mode.training = self.training
        if self._device_source is not None:
            source = environment[self._device_source]
            mode.device = getattr(source, "device", mode.device)  # a sequence input is a list
        return environment

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

    def _hold(self, built: Built) -> None:
        parameters: List[Tuple[int, str]] = []
        buffers: List[Tuple[int, str]] = []
        running: List[str] = []
        for weight in built.weights:
            own = escape(weight.name, _Reserved(self))
            self.initializer_names[own] = weight.name
            if weight.trained:
                self.register_parameter(own, torch.nn.Parameter(weight.tensor))
                parameters.append((weight.place, own))
            else:
                self.register_buffer(own, weight.tensor)
                buffers.append((weight.place, own))
            if weight.running:
                running.append(own)
        for place, tensor in built.constants.items():
            # They move with the module, and are no part of its state.
            own = escape(f"constant.{place}", _Reserved(self))
            self.register_buffer(own, tensor, persistent=False)
            buffers.append((place, own))
        self.running_statistics = tuple(running)
        self._parameter_places, self._buffer_places = tuple(parameters), tuple(buffers)
        sources = [place for place, _ in (*parameters, *buffers)]
        self._device_source = next(iter((*sources, *self._input_places)), None)


_ON_HOST = (np.ndarray, np.generic)  # shapes


class _Reserved:
    """Names that a module has as attributes."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module

    def __contains__(self, name: object) -> bool:
        return hasattr(self._module, str(name))
