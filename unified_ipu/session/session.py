"""The session: this process in the world, its plan, and what is compiled and loaded in it.

One class, since it is the one list of what users can call. What its methods do lies in the modules
beside this one; longer ones import theirs when they are called.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import (
    Any,
    Callable,
    ContextManager,
    Dict,
    List,
    Mapping,
    Optional,
    Sequence,
    Type,
    Union,
)

from unified_ipu.adapter import (
    CountsCopies,
    Device,
    Executor,
    Job,
    Loss,
    Replica,
    available_adapters,
    find_adapter,
    losses,
)
from unified_ipu.checkpoint import KEEP
from unified_ipu.comms import Communicator
from unified_ipu.data import Loader, isolated_as_needed
from unified_ipu.engine import DeviceExecutor, HostExecutor, LearningRateFactor, UpdateRules
from unified_ipu.errors import AdapterNotFoundError, ConfigError, located
from unified_ipu.events import Counters, PhaseClock
from unified_ipu.plan import BatchPlan, Plan, device_batch, runs_whole_calls
from unified_ipu.session.agreement import agree_on_tensors
from unified_ipu.session.device_targets import choose_target, link_devices, unlink_devices
from unified_ipu.session.first_batches import MixedExecutor
from unified_ipu.session.first_on_host import first_on_host
from unified_ipu.session.joining import Joined, join_plan, share_host
from unified_ipu.session.late_build import LateExecutor, agree_on_build
from unified_ipu.session.mixing import (
    Mix,
    agree_on_mix,
    check_can_rename,
    under_canonical_names,
)
from unified_ipu.session.notes import log_notes, notes_of
from unified_ipu.session.program import Program, can_train
from unified_ipu.session.rank_log import RankLog
from unified_ipu.session.scopes import AdapterScopes
from unified_ipu.session.transports import check_given, join_world
from unified_ipu.world import Mesh, Place, World

REDUCTIONS = ("mean", "sum", "none")


class Session:
    """Join the world as a context manager; compile models and make loaders in it.

    Args:
        plan: A Plan, the path of one, or None: ``plan.toml`` beside the script, else defaults.
            ``--plan`` and ``--set`` of the command line are laid over it.
        world: Instead of what the environment says.
        communicator: Instead of joining the ranks of ``world`` anew.
        argv: Instead of ``sys.argv``.

    Raises:
        PlanError: If a setting is wrong or not built, or the plan does not fit the world.
    """

    def __init__(
        self,
        plan: Union[str, Path, Plan, None] = None,
        *,
        world: Optional[World] = None,
        communicator: Optional[Communicator] = None,
        argv: Optional[Sequence[str]] = None,
    ) -> None:
        self._joined: Joined = join_plan(plan, world=world, argv=argv)
        self.clock = PhaseClock()
        self.counters = Counters()
        self.batch = BatchPlan.from_plan(self.plan, self.num_replicas)
        self._given = communicator
        self._communicator: Optional[Communicator] = None
        self._programs: List[Program] = []
        self._loaders: List[Loader] = []
        self._log = RankLog(rank=self.rank, world_size=self.world_size, update=self._most_updates)

    def __enter__(self) -> Session:  # noqa: PYI034 - typing.Self is 3.11
        if self._communicator is not None:
            raise ConfigError("the session is open already; make a new one")
        if self._given is not None:
            check_given(self._given, self.plan.comms)
            self._communicator = self._given
        else:
            self._communicator = self._connect()
            self._joined = share_host(self._joined, self._communicator)
        link_devices(self.plan, self._communicator)
        self._log.install()
        AdapterScopes(self.plan, self.place).seed()
        return self

    def _connect(self) -> Communicator:
        world = self._joined.world
        with located(world.rank):
            return join_world(
                world,
                self.plan.comms,
                deterministic=self.plan.deterministic,
                sums_gradients=not runs_whole_calls(self.plan.target),
            )

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        del kind, traceback
        if error is not None and self._communicator is not None:
            # The others must not wait for this rank until their time-out.
            self._communicator.abort(f"{type(error).__name__}: {error}")
        self.close()

    def close(self) -> None:
        """Close loaders, programs and the communicator; safe to call twice."""
        for loader in self._loaders:
            loader.close()
        for program in self._programs:
            program.close()
        self._loaders, self._programs = [], []
        unlink_devices(self.plan)
        if self._communicator is not None and self._given is None:
            self._communicator.close()
        self._communicator = None
        self._log.remove()

    def _most_updates(self) -> int:
        return max((program.update for program in self._programs), default=0)

    @property
    def plan(self) -> Plan:
        """The merged plan, ``mesh.data`` resolved: the truth."""
        return self._joined.plan

    @property
    def place(self) -> Place:
        """Where this process stands."""
        return self._joined.place

    @property
    def mesh(self) -> Mesh:
        """Named axes over the world."""
        return self._joined.mesh

    @property
    def rank(self) -> int:
        """Index of this process in the world."""
        return self._joined.world.rank

    @property
    def world_size(self) -> int:
        """Number of processes."""
        return self._joined.world.world_size

    @property
    def num_replicas(self) -> int:
        """Data-parallel copies of the model over the world."""
        return self.place.num_replicas

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, the one that prints."""
        return self.rank == 0

    def communicator(self, axis: str = "data") -> Communicator:
        """Return the communicator of this rank's group along a mesh axis.

        Raises:
            ConfigError: If the session is not open, or the axis is unknown or has one rank only.
        """
        if self._communicator is None:
            raise ConfigError("the session is not open; use `with ui.Session() as session:`")
        if axis != "data":
            raise ConfigError(f"mesh axis {axis!r} has no group of its own yet; expected 'data'")
        return self._communicator

    def scope(self) -> ContextManager[None]:
        """Build models inside it: seeds the frameworks and sets what they want set."""
        return AdapterScopes(self.plan, self.place).scope()

    def compile(
        self,
        model: Any,
        *,
        loss: Any = None,
        objective: Optional[Callable[[Any, Any], Loss]] = None,
        optimizer: Any = None,
        schedule: Any = None,
        weight: Optional[Callable[[Any], Any]] = None,
        loss_reduction: Optional[str] = None,
        trainable: Any = None,
        names: Optional[Mapping[str, Any]] = None,
        adapter: Optional[str] = None,
    ) -> Program:
        """Check a model and what trains it, and return a program; collective, runs no forward.

        Args:
            model: The framework's model, or a callable that makes it.
            loss: The framework's loss, one of ``ui.losses``, or ``callable(outputs, targets)``;
                None if the model returns its loss.
            objective: ``(model, batch) -> ui.Loss``, instead of ``loss``.
            optimizer: The framework's, one of ``ui.optim``, ``callable(model)`` that makes one
                (of an ONNX model it gets the torch module made from it), or None: only to evaluate.
            schedule: The framework's scheduler, or ``callable(update) -> factor``.
            weight: ``batch -> W`` for a loss whose mean is not over samples.
            loss_reduction: ``"mean"``, ``"sum"`` or ``"none"``; None reads it from the loss.
            trainable: Names, or a predicate of a name, for ``ui.optim``; None trains all.
            names: This model's names to canonical ones, ``{"fc/kernel": "fc.weight"}``, with axes
                where they differ: ``{"fc/kernel": ["fc.weight", "IO->OI"]}``. The program then has
                the canonical names and shapes. With it ranks may use several adapters.
            adapter: Name of the adapter; None asks each whether it accepts the model.

        Raises:
            ConfigError: If arguments contradict each other.
            AdapterError: If no adapter takes the model, or it cannot do what is asked.
        """
        with located(self.rank):
            communicator = self.communicator("data")
            _check_compile(loss, objective, loss_reduction)
            chosen, model = self._adapter_for(model, adapter)
            target = choose_target(chosen, self.plan)
            prepare = getattr(chosen, "prepare", None)
            if prepare is not None:
                model = prepare(model)
            if callable(optimizer) and not hasattr(optimizer, "step"):
                optimizer = optimizer(model)
            is_ours = _gives_factors(schedule, chosen)
            job = Job(
                model=model,
                optimizer=optimizer,
                loss=losses.described(loss),
                objective=objective,
                loss_reduction=loss_reduction,
                weight=weight,
                schedule=None if is_ours else schedule,
                trainable=trainable,
                names=names,
                seed=self.plan.seed,
                program=len(self._programs),
            )
            mix = agree_on_mix(job, adapter=chosen.name, communicator=communicator)
            built = chosen.build(job, self.plan, self.place)
            notes = notes_of(chosen.lower(self.plan, target), built)
            log_notes(notes, is_first=self.is_first)
            executor = self._executor(built, job, mix)
            with communicator.phase("compiling"):
                has_tensors = agree_on_build(executor, communicator)
                if has_tensors:
                    agree_on_tensors(executor, communicator, mix)
            update = self.plan.update
            program = Program(
                self,
                executor,
                adapter=chosen.name,
                target=target,
                factor=LearningRateFactor(
                    scale=update.lr_scale(self.batch.global_batch_size),
                    warmup_updates=update.warmup_updates,
                    schedule=schedule if is_ours else None,
                ),
                can_train=can_train(executor, optimizer) if has_tensors else optimizer is not None,
                mix=mix,
            )
            self._programs.append(program)
            return program

    def _adapter_for(self, model: Any, name: Optional[str]) -> Any:
        try:
            return find_adapter(model, name), model
        except AdapterNotFoundError:
            is_known = name is None or name in available_adapters()
            if not is_known or not callable(model):
                raise
        with self.scope():
            built = model()
        return find_adapter(built, name), built

    def _executor(self, built: Union[Replica, Device, Executor], job: Job, mix: Mix) -> Executor:
        communicator = self.communicator("data")
        common: Any = {
            "rules": self._rules(job),
            "clock": self.clock,
            "counters": self.counters,
        }
        if isinstance(built, (Executor, Device)):
            check_can_rename(built, mix)
            if isinstance(built, Executor):
                return built
            return DeviceExecutor(built, communicator, batch=device_batch(self.plan)[0], **common)
        if isinstance(built, CountsCopies):
            built.count_copies(self.counters)
        if mix.is_mixed or mix.is_renamed:
            built = under_canonical_names(built, job.names, mix, communicator)
        kind: Any = HostExecutor
        if mix.is_mixed:
            kind = partial(MixedExecutor, mix=mix)
        elif not getattr(built, "is_built", True):
            kind = partial(LateExecutor, mix=mix)
        executor: Executor = kind(built, communicator, **common)
        return executor

    def _rules(self, job: Job) -> UpdateRules:
        return UpdateRules(
            reduction=self.plan.update.reduction,
            clip_norm=self.plan.update.clip_norm,
            global_batch_size=self.batch.global_batch_size,
            bucket_bytes=self.plan.comms.bucket_bytes,
            seed=self.plan.seed,
            program=job.program,
            compute=self.plan.precision.compute,
            reduce=self.plan.precision.reduce,
            loss_scale=self.plan.precision.loss_scale,
        )

    def loader(
        self,
        source: Any,
        *,
        train: bool = True,
        micro_batch_size: Optional[int] = None,
        collate: Optional[Callable[[List[Any]], Any]] = None,
        name: Optional[str] = None,
    ) -> Loader:
        """Deal the samples of a source to the replicas; collective.

        Args:
            source: From ``ui.data``, or numpy arrays, a map dataset, a torch ``DataLoader`` or a
                ``tf.data.Dataset``, which every rank then reads in its own process.
            train: Whether it is shuffled and dealt by updates; otherwise for evaluation.
            micro_batch_size: Most rows of a micro-batch in evaluation; None takes the plan's.
            collate: ``list of samples -> batch`` for map datasets.
            name: Shown in errors; None numbers them.

        Raises:
            ConfigError: If the source is of a kind that is not supported.
            DataError: If its arrays do not fit together, or its pipeline does not start.
        """
        communicator = self.communicator("data")
        adapters = frozenset(program.adapter for program in self._programs)
        with located(self.rank):
            settings = isolated_as_needed(
                self.plan.data, source, adapters=adapters, communicator=communicator
            )
            loader = Loader(
                source,
                batch=self.batch,
                replica=self.place.replicas[0],
                communicator=communicator,
                seed=self.plan.seed,
                shuffle=self.plan.data.shuffle,
                train=train,
                micro_batch_size=micro_batch_size,
                collate=collate,
                name=name or f"loader-{len(self._loaders)}",
                clock=self.clock,
                counters=self.counters,
                settings=settings,
                search_path=[self._joined.script_folder],
                replicas_per_process=len(self.place.replicas),
            )
            self._loaders.append(loader)
            return loader

    def print(self, *values: Any) -> None:
        """Write to standard output on rank 0 only."""
        if self.is_first:
            sys.stdout.write(" ".join(str(value) for value in values) + "\n")
            sys.stdout.flush()

    def reduce(self, values: Mapping[str, Any]) -> Dict[str, float]:
        """Return sum / weight over all ranks of each ``{name: (sum, weight)}``; collective."""
        mine = {name: [float(pair[0]), float(pair[1])] for name, pair in values.items()}
        totals: Dict[str, List[float]] = {}
        for part in self.communicator("data").all_gather_value(mine):
            for name, pair in part.items():
                known = totals.setdefault(name, [0.0, 0.0])
                known[0] += pair[0]
                known[1] += pair[1]
        return {
            name: pair[0] / pair[1] if pair[1] else float("nan") for name, pair in totals.items()
        }

    def gather(self, array: Any) -> List[Any]:
        """Return every rank's array, in rank order, on all ranks; axis 0 may differ; collective."""
        return self.communicator("data").all_gather(array)

    def first_on_host(self) -> ContextManager[None]:
        """Run a body on the first rank of each host, then on the others; collective.

        ``with session.first_on_host(): path = download()``: the second to come finds the file. The
        others wait without a time-out; if the first fails, they raise ``PeerLostError``.
        """
        return first_on_host(self.communicator("data"), self._joined.world)

    def save(self, folder: Union[str, Path], *, keep: int = KEEP, **what: Any) -> Path:
        """Write a checkpoint of programs and train loaders; collective, between two calls.

        Nothing in them changes. The file of weights has the buffers as all ranks together see
        them, each by its rule; where ranks differ, their own are kept beside it. The checkpoint
        appears in ``folder`` whole or not at all, and becomes its ``latest``.

        Args:
            folder: Of the run, relative to the working directory; made if needed.
            keep: How many checkpoints stay in it, the last written ones.
            what: Programs and train loaders by the names to restore them under.

        Returns:
            The folder of this checkpoint, ``step-00001234`` in ``folder``.

        Raises:
            ConfigError: If something else is passed, or a state that a checkpoint cannot hold.
            CheckpointError: On all ranks, if it was not written; the one before is untouched.
        """
        from unified_ipu.session.saving import save

        with located(self.rank):
            return save(self, folder, what, keep=keep)

    def restore(self, folder: Union[str, Path], **what: Any) -> Path:
        """Load a checkpoint into programs and train loaders; collective.

        Everything is read, verified and compared before anything is changed. The optimizer's
        settings and the scheduler's state are those of the checkpoint afterwards.

        Args:
            folder: Of the run, for its latest checkpoint, or of one checkpoint.
            what: All or some of what was saved, by the same names.

        Returns:
            The folder of the checkpoint.

        Raises:
            ConfigError: If something else than programs and train loaders is passed.
            CheckpointError: On all ranks, if it is missing, damaged, foreign, too new, or of
                other tensors or data.
        """
        from unified_ipu.session.restoring import restore

        with located(self.rank):
            return restore(self, folder, what)[0]


def _gives_factors(schedule: Any, adapter: Any) -> bool:
    """Whether ``schedule=`` is a callable of the user's, not a scheduler of the framework."""
    if not callable(schedule) or hasattr(schedule, "step"):
        return False
    owns = getattr(adapter, "owns_schedule", None)
    return owns is None or not owns(schedule)


def _check_compile(loss: Any, objective: Any, loss_reduction: Optional[str]) -> None:
    if loss is not None and objective is not None:
        raise ConfigError("compile got loss= and objective=; give one of them")
    if objective is not None and not callable(objective):
        raise ConfigError(f"objective={objective!r}; expected callable(model, batch) -> ui.Loss")
    if loss_reduction is not None and loss_reduction not in REDUCTIONS:
        raise ConfigError(
            f"loss_reduction={loss_reduction!r}; expected one of {', '.join(REDUCTIONS)}"
        )
