"""The torch adapter: what it supports, and how its parts come together."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Iterator, Mapping, Optional, Tuple, Union

from unified_ipu.adapter import (
    Capability,
    Device,
    EjectRequest,
    Job,
    Lowering,
    NativeText,
    Place,
    Plan,
    Support,
)
from unified_ipu.errors import AdapterLoadError, CapabilityError, ConfigError
from unified_ipu.plan import runs_whole_calls
from unified_ipu_torch.errors import NAME
from unified_ipu_torch.lower import lower

if TYPE_CHECKING:
    from torch import device as torch_device

    from unified_ipu_torch.replica import TorchReplica


class TorchAdapter:
    """PyTorch on ``cpu`` and ``cuda``; PopTorch on ``ipu`` and ``ipu-emulated``."""

    def __init__(self) -> None:
        self.name = NAME
        self.support: Mapping[Capability, Support] = {
            Capability.NATIVE_OPTIMIZERS: Support.FULL,
            Capability.PARAMETER_GROUPS: Support.FULL,
            Capability.NATIVE_SCHEDULES: Support.FULL,
            Capability.RANDOM_LAYERS: Support.FULL,
            Capability.BUFFERS: Support.FULL,
            Capability.SHARED_PARAMETERS: Support.FULL,
            Capability.MIXED_PRECISION: Support.FULL,
            Capability.ONNX_EXPORT: Support.FULL,
        }

    def accepts(self, model: Any) -> bool:
        """Whether it is a torch module; who has one has imported torch."""
        torch = sys.modules.get("torch")
        return torch is not None and isinstance(model, torch.nn.Module)

    def targets(self) -> Tuple[str, ...]:
        """``cuda`` where there is one, then ``cpu``, then devices; none without torch.

        Raises:
            AdapterLoadError: If torch is not installed.
        """
        torch = _import_torch()
        from unified_ipu_torch.ipu.sdk import usable_targets

        hosts = ("cuda", "cpu") if torch.cuda.is_available() else ("cpu",)
        return (*hosts, *usable_targets())

    def facts(self) -> Mapping[str, str]:
        """What torch was built with, for the doctor."""
        torch = _import_torch()
        facts = {"torch": torch.__version__}
        if torch.version.cuda or torch.version.hip:
            facts["built for"] = f"CUDA {torch.version.cuda}" if torch.version.cuda else "ROCm"
        distributed = torch.distributed
        if distributed.is_available():
            built = [
                name
                for name in ("gloo", "nccl", "mpi", "ucc")
                if getattr(distributed, f"is_{name}_available", bool)()
            ]
            facts["transports"] = " ".join(built) or "none"
        return facts

    def seed(self, seed: int) -> None:
        """Seed torch's generators, if torch is imported already."""
        torch = sys.modules.get("torch")
        if torch is not None:
            torch.manual_seed(seed & ((1 << 63) - 1))

    def lower(self, plan: Plan, target: str) -> Lowering:
        """Map every plan field to torch's settings or refuse it."""
        return lower(plan, target)

    @contextmanager
    def scope(self, plan: Plan, place: Place) -> Iterator[None]:
        """Seed the generators, so all ranks build the same weights."""
        del place
        self.seed(plan.seed)
        if not plan.deterministic or sys.modules.get("torch") is None:
            yield  # who builds a model of torch has imported it
            return
        from unified_ipu_torch.determinism import deterministic_kernels

        with deterministic_kernels():
            yield

    def build(self, job: Job, plan: Plan, place: Place) -> Union[TorchReplica, Device]:
        """Check the job and return what drives the model; runs no forward.

        Raises:
            ConfigError: If something does not fit together.
            CapabilityError: If the plan asks for what is not written.
        """
        if not runs_whole_calls(plan.target):
            return self.build_replica(job, plan, place)
        from unified_ipu_torch.ipu.device import TorchDevice

        self._check_model(job, place)
        return TorchDevice(job, plan, place)

    def build_replica(self, job: Job, plan: Plan, place: Place) -> TorchReplica:
        """As ``build``, on host targets.

        Raises:
            CapabilityError: If the plan asks for what is not written.
        """
        from unified_ipu_torch.replica import TorchReplica

        self._check_model(job, place)
        device = choose_device(job.model, plan, place)
        refused = lower(plan, device.type).refused
        if refused:
            raise CapabilityError(NAME, "; ".join(f"{path}: {why}" for path, why in refused))
        return TorchReplica(
            job, device, deterministic=plan.deterministic, compute=plan.precision.compute
        )

    def _check_model(self, job: Job, place: Place) -> None:
        from unified_ipu_torch.model_checks import check_model

        if not self.accepts(job.model):
            raise ConfigError(f"model is a {type(job.model).__qualname__}, no torch.nn.Module")
        check_model(job.model, place.num_replicas)

    def eject(self, request: EjectRequest) -> NativeText:
        """Write the lowering of a job as a plain PopTorch script.

        Raises:
            CapabilityError: If something of the job cannot be written.
        """
        from unified_ipu_torch.eject import eject

        return eject(request)

    def denominator(self, loss: Any) -> Optional[str]:
        """How torch's own ``loss`` divides its mean, or None if it is not torch's."""
        if "torch" not in sys.modules:
            return None
        from unified_ipu_torch.losses import as_module, denominator

        return denominator(as_module(loss))


def choose_device(model: Any, plan: Plan, place: Place) -> torch_device:
    """Where a model runs.

    ``auto`` takes the device of this process if it has one, else the one the model is on.

    Args:
        model: A torch module.
        plan: Its ``target`` decides.
        place: Its ``device_index`` is this process's accelerator.

    Returns:
        A device of type ``cpu`` or ``cuda``.

    Raises:
        CapabilityError: If the target is not written, or its device is absent.
    """
    torch = _import_torch()
    index: Optional[int] = place.device_index
    if plan.target not in {"auto", "cpu", "cuda"}:
        raise CapabilityError(
            NAME, f'target "{plan.target}" is not written; set target = "cpu", "cuda" or "auto"'
        )
    has_cuda = torch.cuda.is_available()
    if plan.target == "cuda" and not has_cuda:
        raise CapabilityError(NAME, 'no CUDA device is usable here; set target = "cpu" or "auto"')
    if plan.target == "auto" and has_cuda and index is None:
        on_cuda = [p.device.index for p in model.parameters() if p.device.type == "cuda"]
        index = on_cuda[0] if on_cuda else None
    if plan.target == "cuda" or (plan.target == "auto" and has_cuda and index is not None):
        device: torch_device = torch.device("cuda", index or 0)
    else:
        device = torch.device("cpu")
    return device


def _import_torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise AdapterLoadError(
            NAME, "torch cannot be imported; install it with: pip install 'unified-ipu[torch]'"
        ) from error
    return torch
