"""Checks a job for a device, and builds what drives it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Iterator, List

import tensorflow as tf

from unified_ipu.adapter import Job, Lowering, NativeCall, Place, Plan
from unified_ipu.errors import CapabilityError, ConfigError
from unified_ipu_tensorflow.building import ADVICE, is_built
from unified_ipu_tensorflow.errors import NAME
from unified_ipu_tensorflow.functions import runs_eagerly
from unified_ipu_tensorflow.ipu.device import KerasDevice
from unified_ipu_tensorflow.ipu.models import check_variables, named_layers, num_penalties
from unified_ipu_tensorflow.ipu.row_losses import build_row_loss
from unified_ipu_tensorflow.ipu.sdk import has_sdk, load_sdk
from unified_ipu_tensorflow.ipu.system import check_flags, system_of
from unified_ipu_tensorflow.model_checks import is_random


@contextmanager
def device_scope(plan: Plan, place: Place, lowering: Lowering) -> Iterator[None]:
    """Configure the IPU system and open its strategy's scope.

    Args:
        plan: Of the session.
        place: Of this process.
        lowering: Of the plan for its target; one that is refused opens nothing, and neither does
            a machine without the SDK's TensorFlow: the model may be another adapter's.
    """
    if lowering.refused or (plan.target == "ipu" and not has_sdk()):
        yield
        return
    with system_of(load_sdk(plan, place), _of_training(lowering)).strategy.scope():
        yield


def build_device(job: Job, plan: Plan, place: Place, lowering: Lowering) -> KerasDevice:
    """Check a job, and build what drives it.

    Args:
        job: As ``compile`` was given it.
        plan: Of the session.
        place: Of this process.
        lowering: Of the plan for its target, not refused.

    Raises:
        ConfigError: If the model was not built where and as a device wants it.
        CapabilityError: If a device cannot do what job or plan ask for.
    """
    sdk = load_sdk(plan, place)
    _check_plan(plan, lowering)
    _check_model(job, plan)
    loss = build_row_loss(job)
    system = system_of(sdk, _of_training(lowering))
    return KerasDevice(job, plan, calls=lowering.calls, system=system, loss=loss)


def _of_training(lowering: Lowering) -> List[NativeCall]:
    return [call for call in lowering.calls if call.program == "training"]


def _check_plan(plan: Plan, lowering: Lowering) -> None:
    check_flags(lowering.calls)
    if plan.mesh.stage > 1:
        raise CapabilityError(
            NAME,
            "stages of Keras models cannot be given through unified_ipu yet; set mesh.stage to 1",
        )
    if plan.precision.compute != "float32" or plan.precision.loss_scale != "none":
        raise CapabilityError(
            NAME,
            "half precision of Keras models on IPUs is not built yet; set precision.compute = "
            '"float32" and precision.loss_scale = "none"',
        )


def _check_model(job: Job, plan: Plan) -> None:
    model = job.model
    if not isinstance(model, tf.keras.Model):
        raise CapabilityError(
            NAME, f"IPU Keras trains Keras models, got a {type(model).__qualname__}"
        )
    if not hasattr(model, "set_gradient_accumulation_options"):
        raise ConfigError(
            "IPU Keras wants its models made in its scope; build the model inside "
            "`with session.scope():`, or pass a function that builds it to compile"
        )
    if runs_eagerly(model):
        raise CapabilityError(NAME, "a device runs no model eagerly; set run_eagerly = False")
    if not is_built(model):
        raise ConfigError(f"{ADVICE} (on devices it has to be there before compile)")
    check_variables(model)
    drops = named_layers(model, is_random)
    if drops and plan.ipu.random_layers == "refuse":
        raise CapabilityError(
            NAME,
            f"random layers ({', '.join(map(repr, drops))}) draw other numbers on a device than "
            'elsewhere; set their rates to 0, or ipu.random_layers = "native"',
        )
    if num_penalties(model) and plan.update.reduction == "sum":
        raise CapabilityError(
            NAME,
            'penalties on weights count W times where update.reduction is "sum", and IPU Keras '
            'adds them as they are; take them out of the model, or set it to "mean"',
        )
