"""A compiled model: step, fit, evaluate, predict, weights."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, Mapping, Optional, Sequence, Tuple, Union

from unified_ipu.adapter import Call, Executor, Metric, Record, Update
from unified_ipu.checkpoint import KEEP
from unified_ipu.comms import Communicator
from unified_ipu.engine import LearningRateFactor, trained_tensors
from unified_ipu.errors import ConfigError, UnifiedIpuError, located
from unified_ipu.events import Counters, PhaseClock
from unified_ipu.plan import Plan
from unified_ipu.report import Callback, Summary
from unified_ipu.session.agreement import shared_buffers, synchronised_buffers
from unified_ipu.session.batches import update_of
from unified_ipu.session.evaluation import check_evaluation_loader, evaluate, in_groups
from unified_ipu.session.mixing import Mix
from unified_ipu.session.prediction import Outputs
from unified_ipu.session.same_weights import check_same_weights
from unified_ipu.world import Place

if TYPE_CHECKING:
    from unified_ipu.session.session import Session


class Program:
    """What ``session.compile`` returns. Every method is called on all ranks alike."""

    def __init__(
        self,
        session: Session,
        executor: Executor,
        *,
        adapter: str,
        target: str,
        factor: LearningRateFactor,
        can_train: bool,
        mix: Mix,
    ) -> None:
        self.adapter = adapter
        self.target = target
        self.mix = mix
        """The adapters of all ranks."""
        self.update = 0
        """Updates begun so far, skipped ones included: keys the random numbers."""
        self.updates_happened = 0
        """Updates that changed the weights: what schedules and warm-up count."""
        self._session = session
        self._executor = executor
        self._factor = factor
        self._can_train = can_train
        self._is_closed = False
        self._rank = session.rank
        self._seed = session.plan.seed
        self._micro_batch_size = session.batch.micro_batch_size
        self._replicas = session.place.replicas
        self._num_replicas = session.place.num_replicas

    @property
    def session(self) -> Session:
        """The session that compiled it."""
        return self._session

    @property
    def can_train(self) -> bool:
        """Whether a step would change something; otherwise it only evaluates."""
        return self._can_train

    @property
    def executor(self) -> Executor:
        """What drives the model."""
        self._check_open()
        return self._executor

    @property
    def plan(self) -> Plan:
        """The session's plan."""
        return self._session.plan

    @property
    def place(self) -> Place:
        """Where this process stands."""
        return self._session.place

    @property
    def communicator(self) -> Communicator:
        """Of the data axis."""
        return self._session.communicator("data")

    @property
    def clock(self) -> PhaseClock:
        """The session's clock."""
        return self._session.clock

    @property
    def counters(self) -> Counters:
        """The session's counters."""
        return self._session.counters

    def step(self, call: Any) -> Record:
        """Run one call: a loader's, or one update of batches that this rank passes.

        Args:
            call: What ``for call in loader`` yields; or ``(x, y)``, ``(x, y, sample_weight)``, a
                dict; or a list of those, one a micro-batch (empty on a rank without samples).

        Returns:
            What the call did, the same on every rank.

        Raises:
            ConfigError: If there is nothing to train, or a batch is larger than the plan's
                ``micro_batch_size``.
            NumericsError: On all ranks, if a gradient is not finite; the weights are unchanged.
            UnifiedIpuError: Any other of ours, with this rank.
        """
        try:
            if self._is_closed or not self._can_train:
                self._refuse_to_step()
            updates, epoch = self._numbered(call)
            factor = self._factor(self.updates_happened)
            record: Record = self._executor.run(Call(updates, epoch, factor, self._seed))
            self.update += len(updates)
            self.updates_happened += record.updates
            return record
        except UnifiedIpuError as error:  # as ``located``, which costs three calls a step
            if error.rank is None:
                error.rank = self._rank
            raise

    def _refuse_to_step(self) -> None:
        self._check_open()
        raise ConfigError(
            "this program trains nothing: it was compiled without an optimizer, or none "
            "of the optimizer's parameters needs a gradient"
        )

    def _numbered(self, call: Any) -> Tuple[Tuple[Update, ...], int]:
        first = self.update
        if not isinstance(call, Call):
            update = update_of(
                call,
                first,
                micro_batch_size=self._micro_batch_size,
                replicas=self._replicas,
                num_replicas=self._num_replicas,
            )
            return (update,), 0
        # Made anew, as `replace` costs several times as much.
        updates = [
            Update(first + index, update.micro_batches, update.samples, update.weight)
            for index, update in enumerate(call.updates)
        ]
        return tuple(updates), call.epoch

    def fit(
        self,
        train: Any,
        *,
        epochs: int = 1,
        validation: Any = None,
        every: Union[str, int] = "epoch",
        metrics: Optional[Mapping[str, Metric]] = None,
        callbacks: Sequence[Callback] = (),
        checkpoint: Optional[Union[str, Path]] = None,
        resume: Optional[Union[str, Path, bool]] = None,
        max_updates: Optional[int] = None,
    ) -> Summary:
        """Train for ``epochs`` epochs and print how it went on rank 0.

        Args:
            train: A training loader.
            epochs: How many; what is left of an epoch already begun counts as one.
            validation: A loader made with ``train=False``, or None.
            every: ``"epoch"``, or the number of updates between two evaluations and checkpoints.
            metrics: Of the evaluation, ``{name: callable(outputs, targets) -> (sum, weight)}``.
            callbacks: Called at call boundaries on all ranks; a progress bar is always there.
            checkpoint: Folder of the run, relative to the working directory: written after each
                epoch or each ``every`` updates, and at the end; the last three are kept.
            resume: ``"auto"`` goes on from the latest checkpoint in ``checkpoint`` if there is
                one, True wants one, a path names a run or one checkpoint. ``epochs`` and
                ``max_updates`` then count from the beginning of the resumed run.
            max_updates: Stop after so many updates.

        Returns:
            What was done; its ``str`` has been printed. The user's own model holds the weights.

        Raises:
            ConfigError: If an argument is impossible or not built.
            CheckpointError: On all ranks, if a checkpoint is damaged, does not fit, or cannot be
                written.
            DataError: If a pipeline fails.
            NumericsError: On all ranks, if a gradient is not finite.
        """
        from unified_ipu.session.fit import Fit

        with located(self.place.rank):
            self._check_open()
            run = Fit(
                self,
                train,
                epochs=epochs,
                validation=validation,
                every=every,
                metrics=metrics or {},
                callbacks=callbacks,
                max_updates=max_updates,
                checkpoint=checkpoint,
                resume=resume,
            )
            return run.run()

    def evaluate(
        self, loader: Any, metrics: Optional[Mapping[str, Metric]] = None
    ) -> Dict[str, float]:
        """Return ``"loss"`` and the metrics over every sample once, the same on all ranks.

        Changes no state: weights, buffers, random numbers, training loaders.

        Args:
            loader: Made with ``train=False``.
            metrics: ``{name: callable(outputs, targets) -> (sum, weight)}``.

        Raises:
            ConfigError: If the loader is for training.
            DataError: If not every sample was seen exactly once.
        """
        with located(self.place.rank):
            self._check_open()
            return evaluate(
                self._executor,
                loader,
                metrics or {},
                communicator=self.communicator,
                clock=self.clock,
            )

    def predict(self, loader: Any, *, gather: str = "first") -> Any:
        """Return the model's outputs for every sample, in the order of the samples.

        Args:
            loader: Made with ``train=False``.
            gather: ``"first"``: on rank 0, None elsewhere; ``"all"``: on every rank; ``"none"``:
                each rank its own rows.

        Raises:
            ConfigError: If the loader is for training or ``gather`` is none of these.
            DataError: If an output has no row a sample, or the ranks' outputs differ.
        """
        with located(self.place.rank):
            self._check_open()
            check_evaluation_loader(loader)
            outputs = Outputs(gather)
            # A sample's outputs must not depend on the rank that computes them.
            with shared_buffers(self._executor, self.communicator):
                for micro in in_groups(self._executor, loader):
                    with self.clock.phase("compute"):
                        outputs.add(micro, self._executor.predict(micro))
            return outputs.result(self.communicator)

    def weights(self) -> Dict[str, Any]:
        """Copies of this rank's parameters and buffers, by name, as numpy arrays."""
        self._check_open()
        names = [spec.name for spec in self._executor.tensors() if spec.role != "slot"]
        return self._executor.read(names)

    def load_weights(self, weights: Mapping[str, Any]) -> None:
        """Overwrite parameters and buffers; call it with the same values on all ranks.

        Raises:
            ConfigError: If a name is unknown or a shape differs.
        """
        with located(self.place.rank):
            self._check_open()
            specs = {spec.name: spec for spec in self._executor.tensors() if spec.role != "slot"}
            for name, value in weights.items():
                if name not in specs:
                    raise ConfigError(f"no tensor {name!r}; this model has {sorted(specs)}")
                shape = tuple(getattr(value, "shape", ()))
                if shape != specs[name].shape:
                    raise ConfigError(
                        f"{name!r} has shape {specs[name].shape}, got {shape}; "
                        "load the weights of the same model"
                    )
            self._executor.write(weights)

    def export_onnx(self, path: Union[str, Path]) -> None:
        """Write the model with its weights as an ONNX file; collective, the first rank writes.

        Args:
            path: An existing file is replaced, in one step.

        Raises:
            CapabilityError: If the adapter cannot export, or not this model.
            ConfigError: On all ranks, if the file could not be written.
        """
        from unified_ipu.session.exporting import export_onnx

        with located(self.place.rank):
            self._check_open()
            export_onnx(self._executor, path, adapter=self.adapter, communicator=self.communicator)

    def save(self, folder: Union[str, Path], *, keep: int = KEEP) -> Path:
        """Write a checkpoint of this program alone; ``session.save(folder, model=program)``.

        Raises:
            CheckpointError: On all ranks, if it was not written; the one before is untouched.
        """
        return self._session.save(folder, keep=keep, model=self)

    def restore(self, folder: Union[str, Path]) -> Path:
        """Load what ``save`` or ``fit`` wrote; ``session.restore(folder, model=program)``.

        Raises:
            CheckpointError: On all ranks, if it is missing, damaged, or of another model.
        """
        return self._session.restore(folder, model=self)

    def check_same_weights(self) -> None:
        """Compare all ranks' weights; ``fit`` does it after each epoch.

        Raises:
            NumericsError: On all ranks, if they are not the same.
        """
        check_same_weights(self._executor, self.communicator, self.mix)

    def synchronise_buffers(self) -> None:
        """Make the buffers of all ranks equal, by each one's rule; ``fit`` ends with it."""
        if self.communicator.size > 1:
            specs = self._executor.tensors()
            values = synchronised_buffers(self._executor, self.communicator, specs)
            self._executor.write(values)

    def hand_back(self) -> None:
        """Put the weights into the user's own model where it is a copy; ``fit`` ends with it."""
        hand_back = getattr(self._executor, "hand_back", None)
        if hand_back is not None:
            hand_back()

    def close(self) -> None:
        """Free the gradients' memory; the session does it too. The model keeps its weights."""
        if not self._is_closed:
            self._is_closed = True
            self._executor.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise ConfigError("the program is closed; compile the model again")


def can_train(executor: Executor, optimizer: Optional[object]) -> bool:
    """Whether a step has anything to change."""
    return optimizer is not None and bool(trained_tensors(executor.tensors()))
