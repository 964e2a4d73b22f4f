"""The copies of an executor: weights, optimizer state and random state, on host and device.

Source: PopTorch 3.4, ``python/_poplar_executor.py``, ``docs/user_guide/overview.rst``.
"""

from __future__ import annotations

from types import MethodType
from typing import Any, Dict, List, Optional

import torch

from unified_ipu.device import WeightCopies
from unified_ipu_torch.emulated.poptorch.compile import Compiled
from unified_ipu_torch.emulated.poptorch.device_optimizer import DeviceOptimizer
from unified_ipu_torch.emulated.poptorch.errors import Error
from unified_ipu_torch.emulated.poptorch.log import logger
from unified_ipu_torch.emulated.poptorch.optimizer_attributes import (
    OptimizerDescription,
    OptimizerReader,
)
from unified_ipu_torch.emulated.poptorch.options import Options
from unified_ipu_torch.emulated.poptorch.variable_attributes import Optimizer

NO_EXECUTABLE = "Model has not been compiled or has been destroyed."


class ExecutorState:
    """The part of ``PoplarExecutor`` that keeps host and device in step."""

    _user_model: torch.nn.Module
    _training: bool
    _options: Options
    _executable: Optional[Compiled]
    _reader: OptimizerReader

    def __init__(self) -> None:
        self._is_attached = False
        self._copies = WeightCopies()
        self._seen_version = 0
        self._optimizer: Any = None
        self._description: Optional[OptimizerDescription] = None
        self._rng_state: Optional[List[int]] = None

    @property
    def _host_weights_version(self) -> int:
        return self._copies.version

    def _compiled(self) -> Compiled:
        if self._executable is None:
            raise Error(NO_EXECUTABLE)
        return self._executable

    def copyWeightsToHost(self) -> None:
        """Copy weights and buffers from the device to the user's model."""
        model = self._compiled().program.model
        self._copies.to_host(model.to_host)

    def copyWeightsToHostIfNeeded(self) -> bool:
        """Do so if the device's are newer; whether they were."""
        if not self._copies.host_is_stale:
            return False
        logger.debug("Implicit copyWeightsToHost()")
        self.copyWeightsToHost()
        return True

    def copyWeightsToDevice(self) -> None:
        """Copy weights and buffers from the user's model to the device."""
        model = self._compiled().program.model
        self._copies.to_device(model.to_device)

    def copyNamedBuffersToDevice(self) -> None:
        """Copy the buffers that ``updatableNamedBuffers`` named to the device.

        Raises:
            Error: If none were named.
        """
        model = self._compiled().program.model
        names = self._options._Popart.options.get("updatableNamedBuffers")
        if names is None:
            raise Error("No named buffers marked as updatable via updatableNamedBuffers option")
        self._copies.to_device(lambda: model.to_device(names))

    def load_state_dict(self, state_dict: Dict[str, Any], strict: bool = True) -> Any:
        """Load weights into the user's model, and send them to the device if there is one.

        Args:
            state_dict: As for the model.
            strict: As for the model.

        Returns:
            What the model's method returns.
        """
        found = self._user_model.load_state_dict(state_dict, strict)
        if self._executable is not None and self._is_attached:
            self.copyWeightsToDevice()
        return found

    def _fetch_trained_weights(self) -> None:
        """Another executor may train the same model: take over what it has learnt."""
        fetch = getattr(self._user_model, "copyWeightsToHostIfNeeded", None)
        if callable(fetch):
            fetch()
            version: Any = self._user_model._host_weights_version
            if version is not None and version != self._seen_version:
                logger.debug("Implicit copyWeightsToDevice()")
                self.copyWeightsToDevice()
                self._seen_version = version

    def setOptimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Take over the optimizer, or its changed values; nothing else makes them known.

        Args:
            optimizer: Of torch or of ``poptorch.optim``.
        """
        compiled = self._description if self._executable is not None else None
        if self._executable is not None and optimizer is not self._optimizer:
            if isinstance(self._optimizer, Optimizer):
                self._read_optim_state_dict_if_needed()
                self._optimizer.state_dict = self._optimizer.get_state_dict  # type: ignore[method-assign]  # as theirs
            if isinstance(optimizer, Optimizer):
                optimizer.ipu_state_is_dirty = True
        before, self._description = self._description, self._reader.read(optimizer, compiled)
        if isinstance(optimizer, Optimizer):
            # From now on its state is the device's.
            optimizer.state_dict = MethodType(_read_state, self)  # type: ignore[method-assign]  # as theirs
        self._optimizer = optimizer
        if self._executable is not None and self._is_attached:
            if self._description != before:
                self._send_optimizer()
            self._write_optim_state_dict_if_needed()

    def _send_optimizer(self) -> None:
        device = self._compiled().program.optimizer
        if device is not None and self._description is not None:
            device.describe(self._description)

    def _device_optimizer(self) -> DeviceOptimizer:
        device = self._compiled().program.optimizer
        if device is None:
            raise Error("an inferenceModel has no optimizer")
        return device

    def _device_trained(self) -> None:
        self._copies.device_trained()
        if isinstance(self._optimizer, Optimizer):
            self._optimizer.host_state_is_dirty = True

    def _read_optim_state_dict_if_needed(self) -> None:
        if isinstance(self._optimizer, Optimizer) and self._optimizer.host_state_is_dirty:
            self._optimizer.set_state_dict(self._device_optimizer().read_state())
            self._optimizer.ipu_state_is_dirty = False

    def _write_optim_state_dict_if_needed(self) -> None:
        if isinstance(self._optimizer, Optimizer) and self._optimizer.ipu_state_is_dirty:
            if self._optimizer.has_state():
                weights = list(self._compiled().program.model.parameters)
                self._device_optimizer().write_state(self._optimizer.get_state_dict(), weights)
            self._optimizer.ipu_state_is_dirty = False

    def _on_device_attach(self) -> None:
        self.copyWeightsToDevice()
        if self._training:
            self._send_optimizer()
        if isinstance(self._optimizer, Optimizer):
            if self._optimizer.has_state():
                self._optimizer.ipu_state_is_dirty = True
                self._write_optim_state_dict_if_needed()
            else:
                self._optimizer.host_state_is_dirty = True
                self._optimizer.ipu_state_is_dirty = False
        if self._rng_state is not None:
            self._compiled().program.random.state = self._rng_state
            self._rng_state = None

    def _first_seed(self) -> int:
        if self._options.exists("random_seed"):
            return int(self._options.random_seed)
        return torch.initial_seed() % (1 << 63)

    @property
    def rng_state(self) -> List[int]:
        """The device's seed and the state of its random numbers."""
        return self._compiled().program.random.state

    @rng_state.setter
    def rng_state(self, state: List[int]) -> None:
        """Go on from a state read before."""
        program = self._compiled().program
        if self._is_attached:
            program.random.state = list(state)
        else:
            self._rng_state = list(state)


def _read_state(executor: ExecutorState) -> Dict[str, Any]:
    """The ``state_dict`` of an optimizer that an executor has."""
    executor._read_optim_state_dict_if_needed()
    found: Dict[str, Any] = executor._optimizer.get_state_dict()
    return found
