"""Every error that unified_ipu raises on purpose.

UnifiedIpuError
  ConfigError (ValueError)              the caller asked for something impossible
    PlanError                           the plan is wrong, or no plan satisfies the constraints
  DataError                             a source, a pipeline or a batch is wrong
  NumericsError (ArithmeticError)       a gradient is not finite, or the ranks' weights differ
  AdapterError                          carries the adapter's name
    AdapterNotFoundError (LookupError)  no such name is registered, or none accepts the model
    AdapterLoadError (ImportError)      registered, but its framework is absent
    CapabilityError                     this adapter cannot do that, and says so
    ContractError                       the adapter broke a promise; its author's bug
    DeviceError                         the device or its runtime failed
  CollectiveError                       a collective failed, or ranks disagreed about it
    CollectiveTimeoutError (TimeoutError)
    PeerLostError                       another rank died or gave up
  CheckpointError                       saved state is missing, damaged or of another shape
  LaunchError                           a process could not be started, or a rank failed

A message says what was given, what was expected and what to change. The rank is put in front once,
by ``located``, where it is known.
"""

from __future__ import annotations

from typing import Optional


class UnifiedIpuError(Exception):
    """Root of all errors raised here; catch it to catch every one of them."""

    rank: Optional[int] = None

    def __str__(self) -> str:
        text = super().__str__()
        return text if self.rank is None else f"rank {self.rank}: {text}"


class ConfigError(UnifiedIpuError, ValueError):
    """A setting or argument is impossible; a wrong plan raises ``PlanError`` instead."""


class PlanError(ConfigError):
    """The plan has an unknown, invalid, contradictory or not yet built setting."""


class DataError(UnifiedIpuError):
    """A source, a pipeline function, or a batch is not what was promised."""


class NumericsError(UnifiedIpuError, ArithmeticError):
    """A gradient is not finite and may not be skipped, or the ranks' weights are not the same."""


class AdapterError(UnifiedIpuError):
    """Something between the core and a framework; ``adapter`` is its name."""

    def __init__(self, adapter: str, message: str) -> None:
        super().__init__(adapter, message)
        self.adapter = adapter
        self.message = message

    def __str__(self) -> str:
        text = f"adapter {self.adapter!r}: {self.message}"
        return text if self.rank is None else f"rank {self.rank}: {text}"


class AdapterNotFoundError(AdapterError, LookupError):
    """No adapter of that name is registered, or none accepts the model."""


class AdapterLoadError(AdapterError, ImportError):
    """The adapter is registered but its framework cannot be imported."""


class CapabilityError(AdapterError):
    """The adapter does not support what was asked; raised before training starts."""


class ContractError(AdapterError):
    """The adapter broke a promise of ``adapter/contract.py``: a bug of its author."""


class DeviceError(AdapterError):
    """The device or its runtime failed, out of memory included."""


class CollectiveError(UnifiedIpuError):
    """Ranks entered different collectives, or one could not be carried out."""


class CollectiveTimeoutError(CollectiveError, TimeoutError):
    """A rank did not enter a collective within ``comms.timeout_seconds``."""


class PeerLostError(CollectiveError):
    """Another rank died, or left with an error, while this one waited for it."""


class CheckpointError(UnifiedIpuError):
    """Saved state is missing, damaged, foreign or of another shape."""


class LaunchError(UnifiedIpuError):
    """Processes could not be started, or one of them failed."""


class located:  # noqa: N801  used like a function, and entered once a step: a generator costs more
    """Put ``rank`` in front of the message of any of our errors that passes.

    Raises:
        UnifiedIpuError: Whatever passes.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank

    def __enter__(self) -> None:
        """Nothing to do."""

    def __exit__(self, kind: object, error: Optional[BaseException], trace: object) -> None:
        """Tell the error where it happened, unless it knows."""
        if isinstance(error, UnifiedIpuError) and error.rank is None:
            error.rank = self._rank
