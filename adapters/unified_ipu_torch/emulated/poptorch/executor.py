"""``PoplarExecutor``: a model wrapped to run on the device.

Source: PopTorch 3.4, ``python/_poplar_executor.py``.
"""

from __future__ import annotations

import datetime as dt
import time
import weakref
from typing import Any, Dict, List, Optional

import torch

from unified_ipu_torch.emulated.poptorch import enums, optim
from unified_ipu_torch.emulated.poptorch.args import ArgsParser
from unified_ipu_torch.emulated.poptorch.call_options import own_options
from unified_ipu_torch.emulated.poptorch.compile import Compiled, compile_model
from unified_ipu_torch.emulated.poptorch.errors import Error, absent, require
from unified_ipu_torch.emulated.poptorch.executor_facts import ExecutorFacts
from unified_ipu_torch.emulated.poptorch.executor_state import ExecutorState
from unified_ipu_torch.emulated.poptorch.hooks import run_post_compile_hooks, run_pre_compile_hooks
from unified_ipu_torch.emulated.poptorch.log import logger
from unified_ipu_torch.emulated.poptorch.optimizer_attributes import OptimizerReader
from unified_ipu_torch.emulated.poptorch.options import Options
from unified_ipu_torch.emulated.poptorch.printing import module_repr
from unified_ipu_torch.emulated.poptorch.structures import flatten, rebuild
from unified_ipu_torch.emulated.poptorch.wrapping import unwrap, wrap

_EXPORT = "compiled programs are not written to files; compile again, or keep the state_dict"


class PoplarExecutor(ExecutorFacts, ExecutorState):
    """Runs a model; made by ``trainingModel`` and ``inferenceModel``.

    Args:
        model: A shallow copy of the user's model, which is called.
        options: How; None takes the defaults. Frozen from now on.
        training: Whether it trains.
        optimizer: Of the training; None means SGD with a learning rate of 0.01.
        user_model: The user's own, which keeps the weights of the host.

    Raises:
        Error: If the options are of another class, or accumulate gradients in inference.
        AssertionError: If an optimizer is given for inference.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        options: Optional[Options],
        training: bool,
        optimizer: Optional[torch.optim.Optimizer] = None,
        user_model: Optional[torch.nn.Module] = None,
    ) -> None:
        super().__init__()
        self._user_model = model if user_model is None else user_model
        self._model = model
        self._training = training
        self._options = own_options(options, training=training)
        self._args_parser = ArgsParser(model)
        self._executable: Optional[Compiled] = None
        self._executable_inputs: Any = None
        self._compilation_time = dt.timedelta(0)
        self._reader = OptimizerReader(self._options)
        if training:
            chosen = optimizer or optim.SGD(self._user_model.parameters(), lr=0.01)
            self.setOptimizer(chosen)
        else:
            require(not optimizer, "Optimizer should be None for inference")
        self._options._freeze()
        if training:
            wrap(self._user_model, weakref.ref(self))

    def __getattr__(self, name: str) -> Any:
        """What the executor does not have, the user's model may have.

        Raises:
            AttributeError: If neither has it.
        """
        if name.startswith("__") or name == "_user_model":
            raise AttributeError(name)
        found = getattr(self._user_model, name)
        return _GroupedParameter(found) if isinstance(found, torch.nn.Parameter) else found

    def __repr__(self) -> str:
        return module_repr(self._user_model)

    @property
    def model(self) -> torch.nn.Module:
        """The user's model."""
        return self._user_model

    @property
    def options(self) -> Options:
        """The frozen options."""
        return self._options

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile for these arguments: all checks, and no update.

        Args:
            args: As for the model.
            kwargs: As for the model.
        """
        if self.isCompiled():
            logger.warning("Call to compile() ignored: the executable is already compiled")
            return
        self._compile(self._args_parser(args, kwargs))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model on the rows of a whole call; the first call compiles.

        Args:
            args: As for the model.
            kwargs: As for the model.

        Returns:
            What the model returns, its tensors as the output mode says.
        """
        require(
            self._options.connection_type != enums.ConnectionType.Never,
            "Trying to run a model on an offline device (ConnectionType.Never): use "
            "model.compile(inputs) instead of model(inputs)",
        )
        inputs = self._args_parser(args, kwargs)
        if not self.isCompiled():
            self._compile(inputs)
        if not self._is_attached:
            self.attachToDevice()
        if not self._training:
            self._fetch_trained_weights()
        self._executable_inputs.validateInputs(inputs)
        self._write_optim_state_dict_if_needed()
        compiled = self._compiled()
        outputs = compiled.program.run(inputs)
        if self._training:
            self._device_trained()
        for output in outputs:
            _forbid_backward(output)
        return _restore(compiled, outputs)

    def _compile(self, inputs: Any) -> None:
        begin = time.perf_counter()
        run_pre_compile_hooks()
        try:
            self._executable = compile_model(
                self._model, inputs, self._options, self._description, seed=self._first_seed()
            )
        finally:
            run_post_compile_hooks()
        self._executable_inputs = inputs.map(lambda tensor: tensor.detach())
        self._compilation_time = dt.timedelta(seconds=time.perf_counter() - begin)
        if self._options.connection_type != enums.ConnectionType.Never:
            self._is_attached = True
            self._on_device_attach()

    def isCompiled(self) -> bool:
        """Whether there is a program, which ``destroy`` takes away."""
        return self._executable is not None

    def isAttachedToDevice(self) -> bool:
        """Whether the program has a device."""
        return self.isCompiled() and self._is_attached

    def attachToDevice(self) -> None:
        """Take a device: weights, optimizer state and random state go there.

        Raises:
            Error: If there is no program, or it has a device.
        """
        self._compiled()
        require(
            self._options.connection_type != enums.ConnectionType.Never,
            "Trying to attach to an offline device (ConnectionType.Never)",
        )
        if self._is_attached:
            raise Error("Device is already attached")
        self._is_attached = True
        self._on_device_attach()

    def detachFromDevice(self) -> None:
        """Give the device back; all state comes to the host before.

        Raises:
            Error: If there is no program, or it has no device.
        """
        self._compiled()
        if not self._is_attached:
            raise Error("Device is not attached")
        if self._training:
            self.copyWeightsToHostIfNeeded()
            self._read_optim_state_dict_if_needed()
        self._is_attached = False

    def destroy(self) -> None:
        """Give up the program and unwrap the model; all state comes to the host before."""
        if not self.isCompiled():
            return
        if self._training:
            self.copyWeightsToHostIfNeeded()
            self._read_optim_state_dict_if_needed()
        self._executable = None
        self._is_attached = False
        if self._training:
            unwrap(self._user_model)

    def compileAndExport(self, *_: Any, **__: Any) -> None:
        """Refused."""
        absent("PoplarExecutor.compileAndExport", _EXPORT)

    def save(self, *_: Any, **__: Any) -> None:
        """Refused."""
        absent("PoplarExecutor.save", _EXPORT)

    def loadExecutable(self, *_: Any, **__: Any) -> None:
        """Refused."""
        absent("PoplarExecutor.loadExecutable", _EXPORT)


class _GroupedParameter:
    """A parameter of the top module, with what PopTorch adds to it."""

    def __init__(self, parameter: torch.nn.Parameter) -> None:
        self._parameter = parameter

    def replicaGrouping(self, *_: Any) -> None:
        """Refused."""
        absent("PoplarExecutor.<parameter>.replicaGrouping", "all replicas have the same weights")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._parameter, name)


def _restore(compiled: Compiled, outputs: List[torch.Tensor]) -> Any:
    if compiled.structure is None:
        return None
    values = iter(outputs)
    tensors = [
        next(values) if is_ours else constant
        for constant, is_ours in zip(flatten(compiled.structure), compiled.on_device)
    ]
    return rebuild(compiled.structure, tensors)


def _forbid_backward(output: torch.Tensor) -> None:
    def backward(*_: Any, **__: Any) -> None:
        raise Error(
            "backward() cannot be called explicitly on outputs of a PopTorch model. If you're "
            "using a trainingModel, the backwards pass is performed automatically when invoking "
            "the model. If you're using an inferenceModel, you should use a trainingModel instead."
        )

    attributes: Dict[str, Any] = vars(output)
    attributes["backward"] = backward
