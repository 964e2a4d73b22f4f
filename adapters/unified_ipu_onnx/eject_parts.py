"""Losses and optimizers of PopART as text."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Sequence, Tuple

import torch

from unified_ipu.adapter import NativeCall, call_text, literal, losses, native_code
from unified_ipu.errors import CapabilityError
from unified_ipu_onnx.errors import NAME
from unified_ipu_onnx.ipu.losses import described_loss

_CLASSES = {
    "softmax_cross_entropy": 'scores = ops.logsoftmax(["{output}"], axis=1)',
    "negative_log_likelihood": 'scores = "{output}"',
}
_NLL = """\
losses = builder.aiGraphcore.nllloss(
    [scores, targets],
    reduction=popart.ReductionType.NoReduction,
    ignoreIndex={ignored},
    inputIsLogProbability=True,
)"""
_ELEMENTS = {
    "mean_squared_error": """\
apart = ops.sub(["{output}", targets])
losses = ops.mul([apart, apart])""",
    "mean_absolute_error": 'losses = ops.abs([ops.sub(["{output}", targets])])',
    "sigmoid_cross_entropy": """\
positive = ops.mul(["{output}", targets])
losses = ops.sub([ops.softplus(["{output}"]), positive])""",
}

CLASS_UNITS = '''\
def units_of(targets):
    """Return each row's weight in W: 1, or 0 where the target is ignored."""
    return (targets != {ignored}).astype(np.float64)
'''
ELEMENT_UNITS = '''\
def units_of(targets):
    """Return each row's weight in W: its number of elements."""
    return np.full(len(targets), {size}.0)
'''


def loss_text(loss: Any, output: str, shape: Sequence[int]) -> Tuple[str, str, str]:
    """Write a loss.

    Args:
        loss: As ``session.compile`` got it.
        output: The graph's only output.
        shape: Of it, for a micro-batch.

    Returns:
        Lines that make ``losses``, one value a row; ``units_of``; the type of the targets.

    Raises:
        CapabilityError: If it is a loss that is not written, with those that are.
    """
    found = described_loss(loss)
    if found is None or found.kind not in {*_CLASSES, *_ELEMENTS} or found.output is not None:
        kind = type(loss).__name__ if found is None else f"ui.losses.{found.kind}"
        names = ", ".join([*_CLASSES, *_ELEMENTS])
        raise CapabilityError(NAME, f"loss= is a {kind}; those of ui.losses written: {names}")
    if found.kind in _CLASSES:
        return _class_text(found, output, shape)
    lines = [_ELEMENTS[found.kind].format(output=output)]
    size = 1
    for length in shape[1:]:
        size *= length
    if len(shape) > 1:
        axes = list(range(1, len(shape)))
        lines.append(f"losses = ops.reducesum([losses], axes={axes}, keepdims=0)")
    return "\n".join(lines), ELEMENT_UNITS.format(size=size), "FLOAT"


def _class_text(loss: losses.OutputLoss, output: str, shape: Sequence[int]) -> Tuple[str, str, str]:
    if len(shape) != 2 or loss.class_weights is not None:  # noqa: PLR2004 - rows and classes
        raise CapabilityError(
            NAME,
            f"{loss.kind} with class weights, or of more than one target a row, is not written",
        )
    ignored = -100 if loss.ignore_index is None else loss.ignore_index
    scores = _CLASSES[loss.kind].format(output=output)
    return f"{scores}\n{_NLL.format(ignored=ignored)}", CLASS_UNITS.format(ignored=ignored), "INT32"


def optimizer_text(optimizer: torch.optim.Optimizer, calls: Sequence[NativeCall]) -> str:
    """Write the statement that makes the optimizer, its rate times ``factor``.

    Args:
        optimizer: SGD, Adam or AdamW, as ``NativeOptimizer`` has checked it.
        calls: The lowering's, for training.

    Raises:
        CapabilityError: If it has several groups.
    """
    if len(optimizer.param_groups) != 1:
        raise CapabilityError(NAME, "several parameter groups are not written; use one")
    group = optimizer.param_groups[0]
    said = {
        call.name.partition(".")[2]: call for call in calls if call.name.startswith("optimizer.")
    }
    is_sgd = isinstance(optimizer, torch.optim.SGD)
    values = _values(group, is_sgd=is_sgd)
    if "lossScaling" in said:
        values["lossScaling"] = native_code(said["lossScaling"].value)
    pairs = "".join(f'        "{name}": {value},\n' for name, value in values.items())
    clip = said.get("clip_norm_settings")
    arguments = ["values"]
    if is_sgd:
        kind = "SGD"
        arguments += [f"{name}={native_code(said[name].value)}" for name in _SGD_SAID]
    else:
        kind, accumulator = "Adam", native_code(said["accumType"].value)
        is_decoupled = isinstance(optimizer, torch.optim.AdamW)
        decay = "Decay" if is_decoupled else "L2Regularization"
        arguments += ["mode=popart.AdamMode.Adam"]
        arguments += [f"weight_decay_mode=popart.WeightDecayMode.{decay}"]
        arguments += [f"accum_type={accumulator}"]
    if clip is not None:
        arguments.append(f"clip_norm_settings=[{native_code(clip.value)}]")
    made = call_text(f"return popart.{kind}", arguments, indent=4)
    return f"    values = {{\n{pairs}    }}\n{made}"


_SGD_SAID = ("accumulatorAndMomentum", "accumType")


def _values(group: Mapping[str, Any], *, is_sgd: bool) -> Dict[str, str]:
    """Every value of PopART's: (value, whether it is constant)."""

    def pair(value: Any, *, is_const: bool = False) -> str:
        return literal((float(value), is_const))

    found = {
        "defaultLearningRate": f"({float(group['lr'])!r} * factor, False)",
        "defaultWeightDecay": pair(group["weight_decay"]),
    }
    if is_sgd:
        momentum = float(group["momentum"])
        found["defaultMomentum"] = pair(momentum, is_const=momentum == 0.0)
        found["defaultDampening"] = pair(group["dampening"], is_const=True)
        found["defaultVelocityScaling"] = pair(1.0, is_const=True)
        found["nesterov"] = pair(group["nesterov"], is_const=True)
        return found
    first, second = group["betas"]
    found.update(defaultBeta1=pair(first), defaultBeta2=pair(second))
    found.update(defaultEps=pair(group["eps"]), defaultMaxWeightNorm=pair(1.0, is_const=True))
    return found


def state_text(names: Mapping[str, Sequence[int]]) -> str:
    """A dict of shapes, one entry a line."""
    lines: List[str] = [f"    {literal(name)}: {list(shape)!r},\n" for name, shape in names.items()]
    return "STATE = {\n" + "".join(lines) + "}"
