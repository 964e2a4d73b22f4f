"""The TensorFlow adapter: what it supports, and how its parts come together."""

from __future__ import annotations

import sys
from contextlib import ExitStack, contextmanager
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
from unified_ipu_tensorflow.errors import NAME
from unified_ipu_tensorflow.lower import lower

if TYPE_CHECKING:
    from unified_ipu_tensorflow.replica import TensorflowReplica

_SEEDS = (1 << 31) - 1


class TensorflowAdapter:
    """Keras and plain TensorFlow models on ``cpu`` and ``cuda``, Keras models on ``ipu``."""

    def __init__(self) -> None:
        self.name = NAME
        self.support: Mapping[Capability, Support] = {
            Capability.NATIVE_OPTIMIZERS: Support.FULL,
            Capability.PARAMETER_GROUPS: Support.IMPOSSIBLE,
            Capability.NATIVE_SCHEDULES: Support.FULL,
            Capability.RANDOM_LAYERS: Support.FULL,
            Capability.BUFFERS: Support.FULL,
            Capability.SHARED_PARAMETERS: Support.FULL,
            Capability.MIXED_PRECISION: Support.FULL,
            Capability.ONNX_EXPORT: Support.NOT_WRITTEN,
        }

    def accepts(self, model: Any) -> bool:
        """Whether it is a Keras layer, a ``tf.Module`` or a callable with trainable variables.

        Who has one has imported TensorFlow.
        """
        tensorflow = sys.modules.get("tensorflow")
        if tensorflow is None or isinstance(model, type) or not callable(model):
            return False
        from unified_ipu_tensorflow.keras_generation import is_keras, is_keras3

        # Asked of the class first: what has no variables yet may refuse to list them.
        if not hasattr(type(model), "trainable_variables"):
            return not is_keras(model) and hasattr(model, "trainable_variables")
        return not is_keras3(model) or _runs_on_tensorflow()

    def targets(self) -> Tuple[str, ...]:
        """``cuda`` and ``ipu`` where they are, ``cpu``, ``ipu-emulated``; none without TensorFlow.

        Raises:
            AdapterLoadError: If TensorFlow is not installed.
        """
        tensorflow = _import_tensorflow()
        from unified_ipu_tensorflow.ipu.sdk import has_sdk

        cuda = ("cuda",) if tensorflow.config.list_physical_devices("GPU") else ()
        return (*cuda, *(("ipu",) if has_sdk() else ()), "cpu", "ipu-emulated")

    def facts(self) -> Mapping[str, str]:
        """Which TensorFlow this is and what it was built with, for the doctor.

        Raises:
            AdapterLoadError: If TensorFlow is not installed.
        """
        tensorflow = _import_tensorflow()
        built = tensorflow.sysconfig.get_build_info()
        facts = {"tensorflow": tensorflow.__version__, "keras": tensorflow.keras.__version__}
        if built.get("is_cuda_build"):
            facts["built for"] = f"CUDA {built.get('cuda_version', 'of unknown version')}"
        elif built.get("is_rocm_build"):
            facts["built for"] = "ROCm"
        return facts

    def seed(self, seed: int) -> None:
        """Seed TensorFlow's generators, if it is imported already."""
        tensorflow = sys.modules.get("tensorflow")
        if tensorflow is not None:
            tensorflow.random.set_seed(seed & _SEEDS)

    def lower(self, plan: Plan, target: str) -> Lowering:
        """Map every plan field to TensorFlow's settings or refuse it."""
        return lower(plan, target, can_repeat=_can_repeat())

    @contextmanager
    def scope(self, plan: Plan, place: Place) -> Iterator[None]:
        """Seed the generators, share the host, set Keras' policy; on devices, open the strategy."""
        if "tensorflow" not in sys.modules:
            yield
            return
        from unified_ipu_tensorflow.building import seeded
        from unified_ipu_tensorflow.half_precision import dtype_policy
        from unified_ipu_tensorflow.runtime import take_rank

        take_rank(plan, place, warns=False)
        with ExitStack() as stack:
            stack.enter_context(seeded(plan.seed))
            if runs_whole_calls(plan.target):
                from unified_ipu_tensorflow.ipu.building import device_scope

                stack.enter_context(device_scope(plan, place, self.lower(plan, plan.target)))
            else:
                stack.enter_context(dtype_policy(plan.precision.compute))
            yield

    def build(self, job: Job, plan: Plan, place: Place) -> Union[TensorflowReplica, Device]:
        """Check the job and return what drives the model; runs no forward.

        Raises:
            ConfigError: If something does not fit together.
            CapabilityError: If the plan asks for what is not written.
        """
        _import_tensorflow()
        from unified_ipu_tensorflow.model_checks import check_model
        from unified_ipu_tensorflow.replica import TensorflowReplica
        from unified_ipu_tensorflow.runtime import choose_target, take_rank

        if not self.accepts(job.model):
            raise ConfigError(
                f"model is a {type(job.model).__qualname__}; expected a Keras model, a tf.Module "
                "or a callable that has trainable_variables"
            )
        take_rank(plan, place, warns=True)
        lowering = self.lower(plan, choose_target(plan, place))
        if lowering.refused:
            reasons = "; ".join(f"{path}: {why}" for path, why in lowering.refused)
            raise CapabilityError(NAME, reasons)
        check_model(job.model, place.num_replicas)
        if runs_whole_calls(plan.target):
            from unified_ipu_tensorflow.ipu.building import build_device

            return build_device(job, plan, place, lowering)
        return TensorflowReplica(
            job, deterministic=plan.deterministic, compute=plan.precision.compute
        )

    def eject(self, request: EjectRequest) -> NativeText:
        """Write the lowering of a job as a plain script of Keras for IPU.

        Raises:
            CapabilityError: If something of the job cannot be written.
        """
        from unified_ipu_tensorflow.eject import eject

        return eject(request)

    def denominator(self, loss: Any) -> Optional[str]:
        """How Keras's own ``loss`` divides its mean, or None if it is not Keras's."""
        if "tensorflow" not in sys.modules:
            return None
        from unified_ipu_tensorflow.losses import denominator

        return denominator(loss)

    def owns_schedule(self, schedule: Any) -> bool:
        """Whether a ``schedule=`` is Keras's own, though it can be called."""
        if "tensorflow" not in sys.modules:
            return False
        from unified_ipu_tensorflow.optimizers import is_schedule

        return bool(is_schedule(schedule))


def _runs_on_tensorflow() -> bool:
    keras: Any = sys.modules["keras"]
    return str(keras.config.backend()) == "tensorflow"


def _can_repeat() -> bool:
    """Whether deterministic kernels can be switched on; taken for granted before the import."""
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is None:
        return True
    return hasattr(tensorflow.config.experimental, "enable_op_determinism")


def _import_tensorflow() -> Any:
    try:
        import tensorflow as tf
    except ImportError as error:
        raise AdapterLoadError(
            NAME,
            "TensorFlow cannot be imported; install it with: pip install 'unified-ipu[tensorflow]'",
        ) from error
    return tf
