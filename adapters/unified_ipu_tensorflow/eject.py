"""Our lowering as a plain script of Keras for IPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, List, Tuple, Union

import numpy as np

from unified_ipu.adapter import (
    EjectRequest,
    NativeCall,
    NativeText,
    assignment_text,
    expression_text,
    native_code,
    setting_text,
)
from unified_ipu.errors import CapabilityError
from unified_ipu_tensorflow.building import seeded
from unified_ipu_tensorflow.eject_parts import loss_text, optimizer_text
from unified_ipu_tensorflow.errors import NAME

_UNITS = '''\
def units_of(targets):
    """Return each row's weight in W: Keras' losses have one value a row."""
    if targets.ndim > 2:
        raise ValueError(f"targets are {targets.shape}; expected [rows] or [rows, n]")
    return np.ones(len(targets))
'''

_DEVICE = '''\
class Device:
    """The model on IPUs; Keras adds gradients over steps and replicas."""

    def __init__(self):
        config = ipu.config.IPUConfig()
{config}
{strategy}
        with self.strategy.scope():
            random.seed(SEED)  # Keras 3 draws initial weights from it
{seeds}
{model}
{loss}
{optimizer}
{settings}
{compile}
        self.model, self.optimizer = model, optimizer
{rate}
        self.happened = 0

    def run(self, factor, inputs, targets, coefficients):
        """Run one call; return the sum of its updates' losses."""
        arrays = (inputs, targets{targets}, {weights})
        dataset = tf.data.Dataset.from_tensor_slices(arrays)
{batch}
        rate = {now} * factor
        with self.strategy.scope():
            self.optimizer.learning_rate.assign(rate)  # {rate_field}
            history = {fit}
        updates = len(coefficients) // GLOBAL_BATCH
        self.happened += updates
        # Keras says the mean over the steps of a replica.
        return history.history["loss"][-1] * updates * ACCUMULATION

    def save(self, path):
        """Write the weights as Keras does."""
        with self.strategy.scope():
            self.model.save_weights(path)
'''

_UNWRITTEN = {
    "os.environ.update": "compile.cache_dir and ipu.synthetic_data are read when TensorFlow starts",
    "optimizer.gradient_transformers": "precision.loss_scale needs a transformer of gradients",
    "keras.mixed_precision.set_global_policy": 'precision.compute is written for "float32"',
    "model.set_pipeline_stage_assignment": "mesh.stage needs to be told the stages of layers",
}


def eject(request: EjectRequest) -> NativeText:
    """Write what trains the model in one process of Keras for IPU.

    Args:
        request: What was compiled, and its lowering.

    Returns:
        The functions and classes of the script.

    Raises:
        CapabilityError: If the model was changed after it was made, or the loss, the optimizer
            or a setting is not written.
    """
    job, lowering = request.job, request.lowering
    calls = [call for call in lowering.calls if call.program == "training"]
    for call in calls:
        if call.name in _UNWRITTEN:
            raise CapabilityError(NAME, f"{_UNWRITTEN[call.name]}, which is not written")
    _check_model(request)
    loss = loss_text(job.loss, lowering, request.write)
    optimizer, rate = optimizer_text(job.optimizer, lowering, rate_changes=request.changes_rate)
    by_name = {call.name: call for call in calls}
    fit = native_code(by_name["model.fit"].value)
    device = _DEVICE.format(
        config=_settings(calls, "config.", indent=8),
        strategy=_settings(calls, "ipu.ipu_strategy.", indent=8, owner="self.strategy = "),
        seeds=_settings(calls, ("tf.random.", "ipu.utils."), indent=12),
        model=expression_text("model = ", request.model, indent=12),
        loss=expression_text("loss = ", loss, indent=12),
        optimizer=expression_text("optimizer = ", optimizer, indent=12),
        settings=_settings(calls, "model.set_", indent=12),
        compile=_settings(calls, "model.compile", indent=12),
        rate=expression_text("self.rate = ", rate, indent=8),
        targets=".astype(np.int32)" if "Sparse" in loss else "",
        weights=native_code(by_name["sample_weight"].value),
        batch=_settings(calls, "dataset.batch", indent=8, owner="dataset = "),
        now="float(self.rate(self.happened))" if "schedules." in rate else "self.rate",
        rate_field=by_name["optimizer.learning_rate.assign"].field,
        fit=f"self.model.fit({fit}, verbose=0)",
    )
    return NativeText(
        sdk="IPU Keras",
        imports=("import random", "import tensorflow as tf", "from tensorflow.python import ipu"),
        definitions="\n\n".join([_UNITS, device]),
        suffix=".weights.h5",
    )


def _settings(
    calls: List[NativeCall], start: Union[str, Tuple[str, ...]], *, indent: int, owner: str = ""
) -> str:
    """The calls on one object; a setting of the configuration is an attribute."""
    found = []
    for call in calls:
        if not call.name.startswith(start):
            continue
        is_attribute = call.name.startswith("config.") and call.value != "="
        write = assignment_text if is_attribute else setting_text
        found.append(write(replace(call, name=owner + call.name), indent=indent))
    return "\n".join(found)


def _check_model(request: EjectRequest) -> None:
    """Refuse a model that its call does not make, or that adds terms to the loss.

    Raises:
        CapabilityError: If so.
    """
    given: Any = request.job.model
    if not getattr(given, "built", False) or not given.get_weights():
        raise CapabilityError(
            NAME, "the model has no weights yet; give it its input shape, with keras.Input"
        )
    if given.losses:
        raise CapabilityError(
            NAME, "Keras for IPU adds model.losses in every micro-batch; they are not written"
        )
    seed = request.plan.seed
    with seeded(seed):
        again: Any = request.rebuilt()
    mine, other = given.get_weights(), again.get_weights()
    if len(mine) != len(other) or any(
        left.shape != right.shape or not np.array_equal(left, right)
        for left, right in zip(mine, other)
    ):
        raise CapabilityError(
            NAME,
            f"`{request.model}` with the seed {seed} does not make the model that was compiled: it "
            "was changed afterwards, or made after other random numbers were drawn; make it whole "
            "in that one call, first in session.scope()",
        )
