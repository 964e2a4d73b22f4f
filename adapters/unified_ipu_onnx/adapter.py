"""The ONNX adapter: what it supports, and how its parts come together."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, ContextManager, Mapping, Optional, Tuple, Union
from weakref import WeakKeyDictionary, WeakSet

from unified_ipu.adapter import (
    Capability,
    EjectRequest,
    Job,
    Lowering,
    NativeText,
    Place,
    Plan,
    Support,
)
from unified_ipu.errors import AdapterLoadError, CapabilityError
from unified_ipu_onnx.errors import NAME
from unified_ipu_onnx.ipu.sdk import has_popart, import_before_onnx, popdist_of, sdk_of
from unified_ipu_onnx.lower import lower
from unified_ipu_torch.adapter import TorchAdapter, choose_device

if TYPE_CHECKING:
    from unified_ipu_onnx.ipu.device import OnnxDevice
    from unified_ipu_onnx.module import GraphModule
    from unified_ipu_onnx.reading import LoadedModel
    from unified_ipu_onnx.replica import OnnxReplica


_DEVICES = frozenset({"ipu", "ipu-emulated"})


class OnnxAdapter:
    """ONNX models on ``cpu`` and ``cuda`` by torch and onnxruntime, on IPUs by PopART."""

    def __init__(self) -> None:
        self.name = NAME
        self.support: Mapping[Capability, Support] = {
            Capability.NATIVE_OPTIMIZERS: Support.FULL,
            Capability.PARAMETER_GROUPS: Support.FULL,
            Capability.NATIVE_SCHEDULES: Support.NOT_WRITTEN,
            Capability.RANDOM_LAYERS: Support.FULL,
            Capability.BUFFERS: Support.FULL,
            Capability.SHARED_PARAMETERS: Support.FULL,
            Capability.MIXED_PRECISION: Support.FULL,
            Capability.ONNX_EXPORT: Support.FULL,
        }
        self._torch = TorchAdapter()
        self._sources: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
        self._lock = Lock()  # ranks may be threads
        self._programs: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self._on_devices: WeakSet[Any] = WeakSet()

    def accepts(self, model: Any) -> bool:
        """Whether it is the path of a ``.onnx`` file or a ``ModelProto``; imports nothing."""
        if isinstance(model, (str, Path)):
            return str(model).endswith(".onnx")
        onnx = sys.modules.get("onnx")
        return onnx is not None and isinstance(model, onnx.ModelProto)

    def targets(self) -> Tuple[str, ...]:
        """Those of torch on hosts, then ``ipu`` where PopART is, and the emulation of it.

        Raises:
            AdapterLoadError: If torch is not installed.
        """
        hosts = [target for target in self._torch.targets() if target not in _DEVICES]
        return (*hosts, *(["ipu"] if has_popart() else []), "ipu-emulated")

    def facts(self) -> Mapping[str, str]:
        """Which packages read, train and evaluate ONNX files here, for the doctor.

        Raises:
            AdapterLoadError: If onnx or torch is not installed.
        """
        onnx = _import_onnx()
        facts = {"onnx": f"{onnx.__version__} (opset {onnx.defs.onnx_opset_version()})"}
        try:
            import onnxruntime
        except ImportError:
            facts["onnxruntime"] = "not installed, torch evaluates"
        else:
            providers = " ".join(onnxruntime.get_available_providers())
            facts["onnxruntime"] = f"{onnxruntime.__version__} ({providers})"
        return {**facts, "torch": self._torch.facts()["torch"]}

    def seed(self, seed: int) -> None:
        """Seed torch's generators, if torch is imported already."""
        self._torch.seed(seed)

    def lower(self, plan: Plan, target: str) -> Lowering:
        """Map every plan field to torch's and onnxruntime's settings or refuse it."""
        return lower(plan, target)

    def scope(self, plan: Plan, place: Place) -> ContextManager[None]:
        """Torch's scope: seeds its generators."""
        return self._torch.scope(plan, place)

    def prepare(self, model: Any) -> GraphModule:
        """Make the torch module that is trained: what a callable ``optimizer=`` gets.

        While a program trains a model in memory, other programs of that model get the same module.

        Args:
            model: A path or a ``ModelProto``.

        Raises:
            AdapterLoadError: If onnx is not installed.
            ConfigError: If the file cannot be read.
            CapabilityError: If nodes are not supported; all of them are listed.
        """
        _import_onnx()
        from unified_ipu_onnx.module import GraphModule
        from unified_ipu_onnx.reading import read_model

        with self._lock:
            for module, count in self._programs.items():
                if count and self._sources[module].proto is model:
                    found: GraphModule = module
                    return found
        source = read_model(model)
        module = GraphModule.from_model(source.proto, base_dir=source.base_dir)
        with self._lock:
            self._sources[module] = source
        return module

    def build(self, job: Job, plan: Plan, place: Place) -> Union[OnnxReplica, OnnxDevice]:
        """Check the job and return what drives the model; runs no forward on data.

        Args:
            job: Its model is what ``prepare`` returned, or what ``prepare`` takes.
            plan: Checked against the graph: a batch size baked into it must fit.
            place: Where this process stands.

        Raises:
            ConfigError: If something does not fit together.
            CapabilityError: If the plan asks for what is not written.
        """
        from unified_ipu_onnx.batch_checks import check_batch_size
        from unified_ipu_onnx.replica import OnnxReplica

        if self.accepts(job.model):
            job = replace(job, model=self.prepare(job.model))
        source: LoadedModel = self._sources[job.model]
        self._check_alone(job.model, on_device=plan.target in _DEVICES)
        if plan.target in _DEVICES:
            return self._build_device(job, source, plan, place)
        device = choose_device(job.model, plan, place)
        _check_lowered(lower(plan, device.type))
        check_batch_size(job.model, source.proto, plan)
        replica = OnnxReplica(
            job,
            source,
            device,
            deterministic=plan.deterministic,
            compute=plan.precision.compute,
            is_first=place.rank == 0,
            on_close=lambda module: self._count(module, -1),
        )
        self._count(job.model, 1)
        return replica

    def eject(self, request: EjectRequest) -> NativeText:
        """Write the lowering of a job as a plain PopART script.

        Raises:
            CapabilityError: If something of the job cannot be written.
        """
        from unified_ipu_onnx.eject import eject

        module = self.prepare(request.job.model)
        return eject(request, module, self._sources[module])

    def _build_device(self, job: Job, source: LoadedModel, plan: Plan, place: Place) -> OnnxDevice:
        from unified_ipu_onnx.batch_checks import check_batch_size
        from unified_ipu_onnx.ipu.device import OnnxDevice

        lowering = lower(plan, plan.target)
        _check_lowered(lowering)
        check_batch_size(job.model, source.proto, plan)
        device = OnnxDevice(
            job,
            source,
            plan,
            place,
            lowering=lowering,
            sdk=sdk_of(plan.target),
            popdist=popdist_of(plan.target),
            on_close=self._leave_device,
        )
        self._count(job.model, 1)
        self._on_devices.add(job.model)
        return device

    def _check_alone(self, module: GraphModule, *, on_device: bool) -> None:
        if self._programs.get(module) and (on_device or module in self._on_devices):
            raise CapabilityError(
                NAME,
                "this model is open in another program, which would not see what this one trains: "
                "a program of PopART has a copy of the weights, and what it does not train is "
                'compiled in; close the other one first, or use target = "cpu" for both',
            )

    def _leave_device(self, module: GraphModule) -> None:
        self._count(module, -1)
        self._on_devices.discard(module)

    def _count(self, module: GraphModule, change: int) -> None:
        with self._lock:
            self._programs[module] = self._programs.get(module, 0) + change

    def export_torch(
        self, model: Any, args: Tuple[Any, ...], kwargs: Mapping[str, Any], path: Path
    ) -> None:
        """Write a torch model as an ONNX file; the torch adapter's ``export_onnx`` calls it.

        Args:
            model: In its present state, which does not change.
            args: Of its forward, with shape and type for each tensor.
            kwargs: Likewise.
            path: An existing file is replaced.

        Raises:
            AdapterLoadError: If onnx is not installed.
            CapabilityError: If torch cannot export the model.
            ContractError: If what was exported computes something else than the model.
        """
        _import_onnx()
        from unified_ipu_onnx.torch_export import export_torch

        export_torch(model, args, kwargs, path)

    def denominator(self, loss: Any) -> Optional[str]:
        """How torch's own ``loss`` divides its mean, or None if it is not torch's."""
        return self._torch.denominator(loss)


def _check_lowered(lowering: Lowering) -> None:
    if lowering.refused:
        raise CapabilityError(NAME, "; ".join(f"{path}: {why}" for path, why in lowering.refused))


def _import_onnx() -> Any:
    import_before_onnx()
    try:
        import onnx
    except ImportError as error:
        raise AdapterLoadError(
            NAME, "onnx cannot be imported; install it with: pip install 'unified-ipu[onnx]'"
        ) from error
    return onnx
