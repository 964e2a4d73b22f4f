"""Our lowering as a plain PopTorch script: the model with its loss, options, and one call."""

from __future__ import annotations

from dataclasses import replace
from typing import Tuple

import torch

from unified_ipu.adapter import (
    EjectRequest,
    NativeCall,
    NativeText,
    expression_text,
    setting_text,
)
from unified_ipu.errors import CapabilityError
from unified_ipu_torch.eject_loss import loss_text
from unified_ipu_torch.eject_optimizer import optimizer_text
from unified_ipu_torch.errors import NAME

_TRAINED = '''\
class Trained(torch.nn.Module):
    """The model and its loss, multiplied with coefficients: the division is done already."""

    def __init__(self, model):
        super().__init__()
        self.model = model
{loss}

    def forward(self, inputs, targets, coefficients):
        """Return the sum over the rows of a micro-batch."""
        losses = self.loss(self.model(inputs), targets)
        losses = losses.reshape(len(coefficients), -1).sum(dim=1)
        return poptorch.identity_loss((losses * coefficients).sum(), reduction="sum")
'''

_OPTIONS = '''\
def options_of(updates):
    """Return the options of a program of so many updates a call."""
    options = poptorch.Options()
{settings}
    return options
'''

_DEVICE = '''\
class Device:
    """The model on IPUs; a call of another length gets a program of its own."""

    def __init__(self):
        torch.manual_seed(SEED)  # as session.scope() does
{model}
        self.model.train()
{optimizer}
        self.rates = [group["lr"] for group in self.optimizer.param_groups]
        self.program, self.updates = None, 0

    def run(self, factor, inputs, targets, coefficients):
        """Run one call; return the sum of its updates' losses."""
        updates = len(coefficients) // GLOBAL_BATCH
        if updates != self.updates:
            if self.program is not None:
                self.program.destroy()  # weights and the optimizer's state come back first
                # Without its rates, which would win over those that are set below.
                state = {{**self.optimizer.state_dict(), "ipu_param": {{}}}}
                self.optimizer.load_state_dict(state)
            self.program = poptorch.trainingModel(
                self.model,
                options_of(updates),
                self.optimizer,
            )
            self.updates = updates
        for group, rate in zip(self.optimizer.param_groups, self.rates):
            group["lr"] = rate * factor
        # {rates}: a rate that only changes in param_groups is never sent.
        self.program.setOptimizer(self.optimizer)
        losses = self.program(
            torch.from_numpy(np.ascontiguousarray(inputs)),
            torch.from_numpy({targets}),
            torch.from_numpy(coefficients),
        )
        return float(losses.sum())

    def save(self, path):
        """Write the weights as torch does."""
        self.program.destroy()
        torch.save(self.model.model.state_dict(), path)
'''


def eject(request: EjectRequest) -> NativeText:
    """Write what trains the model in one process of PopTorch.

    Args:
        request: What was compiled, and its lowering.

    Returns:
        The functions and classes of the script.

    Raises:
        CapabilityError: If the model was changed after it was made, or the loss, the optimizer
            or a setting is not written.
    """
    job, lowering, plan = request.job, request.lowering, request.plan
    if plan.precision.compute != "float32":
        raise CapabilityError(
            NAME, f'precision.compute = "{plan.precision.compute}" is not written; "float32" is'
        )
    if job.schedule is not None:
        raise CapabilityError(NAME, "a scheduler of torch is not written; pass a callable")
    _check_rebuilt(request)
    loss, units, takes_indices = loss_text(job.loss, request.write)
    settings = [
        setting_text(_of_any_length(call), indent=4)
        for call in lowering.calls
        if call.program == "training" and call.name.startswith("options.")
    ]
    rates = [call.field for call in lowering.calls if call.name == "poptorch_model.setOptimizer"]
    trained = _TRAINED.format(loss=expression_text("self.loss = ", loss, indent=8))
    device = _DEVICE.format(
        model=expression_text("self.model = ", f"Trained({request.model})", indent=8),
        optimizer=optimizer_text(job, plan, lowering),
        rates=rates[0],
        targets="targets.astype(np.int64)" if takes_indices else "np.ascontiguousarray(targets)",
    )
    options = _OPTIONS.format(settings="\n".join(settings))
    return NativeText(
        sdk="PopTorch",
        imports=("import poptorch", "import torch"),
        definitions="\n\n".join([units, trained, options, device]),
        suffix=".pt",
        notes=_notes(job.model),
    )


def _of_any_length(call: NativeCall) -> NativeCall:
    """The program of the last updates of an epoch has the same settings, but for their number."""
    if call.name != "options.deviceIterations":
        return call
    return replace(call, value="=updates")


def _check_rebuilt(request: EjectRequest) -> None:
    """Refuse a model that was changed after the call that made it.

    Raises:
        CapabilityError: If the two differ in a tensor.
    """
    torch.manual_seed(request.plan.seed)
    again, given = request.rebuilt(), request.job.model
    mine, other = given.state_dict(), again.state_dict()
    if list(mine) != list(other) or any(
        left.shape != right.shape or not torch.equal(left, right)
        for left, right in zip(mine.values(), other.values())
    ):
        raise CapabilityError(
            NAME,
            f"`{request.model}` with torch.manual_seed({request.plan.seed}) does not make the "
            "model that was compiled: it was changed afterwards, or made after other random "
            "numbers were drawn; make it whole in that one call, first in session.scope()",
        )


def _notes(model: torch.nn.Module) -> Tuple[str, ...]:
    names = {
        type(each).__name__
        for each in model.modules()
        if "Dropout" in type(each).__name__ and getattr(each, "p", None)
    }
    if not names:
        return ()
    return (f"{', '.join(sorted(names))} draws other masks on a device than on hosts",)
