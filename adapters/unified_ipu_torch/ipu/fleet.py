"""All programs of a device: made when they are asked for, and who has the newest weights."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence

from unified_ipu.adapter import NativeCall, Plan, Tree, native_value
from unified_ipu.plan import device_batch
from unified_ipu_torch.ipu.forms import Form
from unified_ipu_torch.ipu.host_half import HostHalf
from unified_ipu_torch.ipu.modules import InferenceModule, TrainingModule
from unified_ipu_torch.ipu.optimizers import (
    check_clipping,
    check_native,
    constants,
    device_optimizer,
)
from unified_ipu_torch.ipu.programs import InferenceProgram, TrainingProgram
from unified_ipu_torch.ipu.sdk import Sdk
from unified_ipu_torch.ipu.sharing import Sharing
from unified_ipu_torch.lower_ipu import INFERENCE, TRAINING


class Programs:
    """Training programs by length, inference programs by the form of their inputs.

    Args:
        host: The user's model and optimizer.
        form: Of the loss.
        sdk: PopTorch.
        calls: Of the lowering.
        plan: What was lowered.
        process: Index of this process.
    """

    def __init__(
        self,
        host: HostHalf,
        form: Form,
        *,
        sdk: Sdk,
        calls: Sequence[NativeCall],
        plan: Plan,
        process: int,
    ) -> None:
        self._host = host
        self._form = form
        self._sdk = sdk
        self._calls = {
            kind: [call for call in calls if call.program == kind] for kind in (TRAINING, INFERENCE)
        }
        self._plan = plan
        self._batch = device_batch(plan)[0]
        self._process = process
        self._training: Dict[int, TrainingProgram] = {}
        self._inference: Dict[Any, InferenceProgram] = {}
        self._constants: List[Any] = []
        self._version = 0
        self._newest: Optional[TrainingProgram] = None
        self._sharing = Sharing(host.model, self._hand_over)

    @property
    def inferences_at_once(self) -> int:
        """Micro-batches that an inference program takes: its executions times replicas."""
        calls, names = self._calls[INFERENCE], self._sdk.names()
        executions = native_value(calls, "options.deviceIterations", names)
        return int(executions) * int(native_value(calls, "options.replicationFactor", names))

    def training(self, length: int, tree: Tree) -> TrainingProgram:
        """The program of so many updates, with the newest weights and the device.

        Args:
            length: Of the call, in updates.
            tree: A micro-batch, of which only the structure counts.
        """
        self._catch_up()
        now = constants(self._host.optimizer)
        if self._training and now != self._constants:
            self.close()  # what is compiled in has changed
        self._constants = now
        program = self._training.get(length)
        if program is None:
            program = self._training[length] = self._made(length, tree)
        if program.version != self._version:
            self.pull()
            program.take(self._host.model, self._host.slots())
            program.version = self._version
        self._leave_device(program)
        return program

    def inference(self, tree: Tree, arguments: Sequence[Any]) -> InferenceProgram:
        """The program for inputs of this form, with the newest weights and the device.

        Args:
            tree: What the model is called with, of which only the structure counts.
            arguments: The leaves of all micro-batches.
        """
        self.pull()
        key = tuple((tuple(leaf.shape), leaf.dtype) for leaf in arguments)
        program = self._inference.get(key)
        if program is None:
            returns_loss = self._host.returns_loss
            model = self._host.copied_model()
            module = InferenceModule(model, tree, returns_loss=returns_loss).eval()
            executor = self._sdk.poptorch.inferenceModel(module, options=self._options(INFERENCE))
            program = self._inference[key] = InferenceProgram(executor, module)
        if program.version != self._version:
            program.take(self._host.model)
            program.version = self._version
        self._leave_device(program)
        return program

    def has_trained(self, program: TrainingProgram) -> None:
        """Note that a program has the newest weights."""
        self._version += 1
        program.version, self._newest = self._version, program

    def have_changed(self) -> None:
        """Note that the host has the newest weights; they were pulled before."""
        self._version += 1
        self._sharing.note()

    def pull(self) -> None:
        """Bring the newest weights and slots to the host, if a program has them."""
        self._catch_up()
        self._hand_over()

    def _catch_up(self) -> None:
        """Take over what others have done to the model, unless a program here is ahead of it."""
        if self._sharing.catch_up() and self._newest is None:
            self.have_changed()

    def _hand_over(self) -> None:
        program, self._newest = self._newest, None
        if program is not None:
            self._host.write_slots(program.give(self._host.model))
            self._sharing.note()

    def close(self) -> None:
        """Give up all programs; the host has the weights."""
        self.pull()
        for training in self._training.values():
            training.close()
        for inference in self._inference.values():
            inference.close()
        self._training, self._inference = {}, {}

    def leave(self) -> None:
        """Close for good."""
        self.close()
        self._sharing.leave()

    def _made(self, length: int, tree: Tree) -> TrainingProgram:
        check_clipping(self._host.optimizer, self._plan)  # momentum may have changed
        poptorch, calls = self._sdk.poptorch, self._calls[TRAINING]
        model = self._host.copied_model()
        module = TrainingModule(model, self._form, tree, poptorch.identity_loss)
        options = self._options(TRAINING)
        if length != self._batch.updates_per_call:
            options.deviceIterations(length)
        mine, trained = dict(model.named_parameters()), self._host.trained()
        optimizer = device_optimizer(
            poptorch,
            self._host.optimizer,
            {id(host): mine[name] for name, host in trained.items()},
            calls,
            self._sdk.names(),
        )
        return TrainingProgram(
            poptorch.trainingModel(module, options=options, optimizer=optimizer),
            module,
            optimizer,
            kind=check_native(self._host.optimizer),
            names={f"model.{name}": name for name in trained},
            sends_rates=any(call.name == "poptorch_model.setOptimizer" for call in calls),
        )

    def _options(self, kind: str) -> Any:
        return self._sdk.options(
            self._calls[kind],
            process=self._process,
            ipus_per_replica=self._batch.ipus_per_replica,
        )

    def _leave_device(self, but: Any) -> None:
        """Detach every other program: there are only so many IPUs."""
        for training in self._training.values():
            if training is not but:
                training.detach()
        for inference in self._inference.values():
            if inference is not but:
                inference.detach()
