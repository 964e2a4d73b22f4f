"""The boundary: what the core hands to an adapter, and what it needs back.

Values are frozen dataclasses of ours; trees, arrays and buffers are opaque here. Every method that
computes is called on all ranks of a replica's world in the same order, except ``evaluate`` and
``predict``, which may be called a different number of times on each rank.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    ContextManager,
    Dict,
    Iterable,
    Mapping,
    Optional,
    Protocol,
    Sequence,
    Tuple,
    Union,
    runtime_checkable,
)

from unified_ipu.adapter.capability import Capability, Support
from unified_ipu.comms import Buffer, Kernels
from unified_ipu.plan import Plan, Slot, TensorSpec
from unified_ipu.world import Place

if TYPE_CHECKING:
    from unified_ipu.adapter.device_contract import Device

Tree = Any  # dict, tuple or list of arrays that share axis 0
Array = Any
Metric = Callable[[Any, Any], Tuple[Any, Any]]  # (outputs, targets) -> (sum, weight)


@dataclass(frozen=True)
class MicroBatch:
    """What one replica computes at once.

    Args:
        index: ``m``, its place in the update over all replicas: it keys the random numbers.
        tree: The rows, numpy arrays from our loaders, native tensors if the user passed them.
        rows: Number of rows, padding included; 0 only for a replica that holds collectives.
        sample_weight: ``[rows]`` float32, 0 for padding; None when every row counts.
        ids: ``[rows]`` int64 sample ids, -1 for padding; None when the user passed the batch.
    """

    index: int
    tree: Tree
    rows: int
    sample_weight: Optional[Array] = None
    ids: Optional[Array] = None


@dataclass(frozen=True)
class Update:
    """One change of the weights, as this process sees it.

    Args:
        number: Counts all updates of the program, skipped ones included: keys the random numbers.
        micro_batches: Those of this process, in order; may be lazy and is read once.
        samples: Real samples behind the update over the whole world.
        weight: W over the world when it is known before the call, else None.
    """

    number: int
    micro_batches: Iterable[MicroBatch]
    samples: int
    weight: Optional[float] = None


@dataclass(frozen=True)
class Call:
    """One entry into the device: ``updates_per_call`` updates, fewer at the end of an epoch.

    Args:
        updates: In order.
        epoch: Of the loader.
        lr_factor: Multiplies every learning rate during the whole call (warm-up, scaling,
            ``schedule=`` callables); the framework's own scheduler is the replica's.
        seed: Keys random numbers with (program, update, micro-batch).
    """

    updates: Tuple[Update, ...]
    epoch: int = 0
    lr_factor: float = 1.0
    seed: int = 0

    def held(self) -> Call:
        """Read all micro-batches now, so that the call can be run by more than one program."""
        updates = tuple(
            replace(update, micro_batches=tuple(update.micro_batches)) for update in self.updates
        )
        return replace(self, updates=updates)


@dataclass(frozen=True)
class Loss:
    """The result of an objective on one micro-batch: L1's pair (S, W).

    Args:
        sum: Sum of the loss over the counted units, a native scalar that can be differentiated.
        weight: Number or weight of those units, a number or a native scalar without gradient.
        metrics: ``{name: (sum, weight)}``, numbers or native scalars.
    """

    sum: Any
    weight: Any
    metrics: Mapping[str, Tuple[Any, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Tally:
    """What a replica counted in one update, read back from the device once.

    Args:
        loss_sum: S over this process's micro-batches.
        weight: W over them.
        used: One flag a trainable parameter, in the order of ``tensors()``.
        metrics: ``{name: (sum, weight)}`` over them.
    """

    loss_sum: float
    weight: float
    used: Sequence[bool]
    metrics: Mapping[str, Tuple[float, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Job:
    """All that ``session.compile`` was given, checked as far as the core can.

    Args:
        model: The user's model.
        optimizer: The framework's optimizer, one of ``ui.optim``, or None (evaluation only).
        loss: The framework's loss or a callable ``(outputs, targets)``, or None.
        objective: ``(model, batch) -> Loss``, or None. One of the two is given.
        loss_reduction: ``"mean"``, ``"sum"``, ``"none"``, or None: read it from the loss.
        weight: ``batch -> W`` for losses that return a mean, or None.
        schedule: The framework's scheduler or None; callables are the core's.
        trainable: Names or a predicate over names that ``ui.optim`` trains, or None: all.
        names: This model's names to canonical ones, or None; the core's: adapters keep their own
            names, and ``Slot.permutation`` says where axes differ.
        seed: The plan's seed.
        program: Index of the program in its session: keys random numbers.
    """

    model: Any
    optimizer: Any = None
    loss: Any = None
    objective: Optional[Callable[[Any, Any], Loss]] = None
    loss_reduction: Optional[str] = None
    weight: Optional[Callable[[Any], Any]] = None
    schedule: Any = None
    trainable: Any = None
    names: Optional[Mapping[str, Any]] = None
    seed: int = 0
    program: int = 0


@dataclass(frozen=True)
class NativeCall:
    """One line of a framework's own configuration of a device.

    Args:
        program: ``"training"`` or ``"inference"``: each has options of its own.
        name: Dotted, as it is written: ``"options.deviceIterations"``.
        value: Its argument, a plain value; text that begins with ``=`` is native code.
        field: The plan field that it comes from, or why else it is there.
    """

    program: str
    name: str
    value: Any
    field: str


@dataclass(frozen=True)
class DeviceCall:
    """What goes into a device at once, in one process.

    Args:
        ipus: Devices that the process uses.
        processes: Over the world.
        host_rows: Axis 0 of every array that is handed over.
        order: What a row's place means, slowest first.
        samples: Behind one call, over the world.
    """

    ipus: int
    processes: int
    host_rows: int
    order: str
    samples: int


@dataclass(frozen=True)
class Lowering:
    """A plan turned into one framework's settings.

    Args:
        adapter: Name of the adapter.
        target: The target it was asked for.
        settings: Native settings by name.
        refused: ``(plan field, reason and what to change)``; not empty means it cannot run.
        notes: What a reader should know, one sentence each.
        calls: Native configuration of a device, in the order to be made.
        device_call: What one call takes; None on host targets, or if it cannot run.
    """

    adapter: str
    target: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    refused: Tuple[Tuple[str, str], ...] = ()
    notes: Tuple[str, ...] = ()
    calls: Tuple[NativeCall, ...] = ()
    device_call: Optional[DeviceCall] = None


@runtime_checkable
class Replica(Protocol):
    """One copy of the model on a host target, driven by the core's ``HostExecutor``.

    With one replica nothing is bound: the gradients are the framework's own, ``squared_norm`` and
    the ``scale`` of ``apply`` stand in for the reducer. After ``bind`` the gradients live in the
    reducer's buffers: ``begin_update`` sets them to 0, ``forward_backward`` adds to them.

    ``notes``, if there are any, are sentences that ``compile`` logs on the first rank.

    ``kernels``, if there are any, are what the reducer uses on the buckets instead of numpy's.

    A replica whose model has no tensors before its first batch has ``is_built``, False until then,
    and ``build_from(tree)``: called once on every rank, before the first update, with an empty
    batch (0 rows, numpy arrays) of the structure, dtypes and shapes of the first one. Until then
    ``tensors`` and what needs them raise ``ConfigError``.

    A replica whose model holds collectives of its own has an attribute ``holds_collectives`` that
    is True. It gets as many micro-batches as every other rank, those of 0 rows included, and runs
    forward and backward in each, also where W is 0.
    """

    counts_samples: bool
    """Whether W of a micro-batch is, as a rule, its number of rows with ``sample_weight`` not 0.

    A hint: where it holds backward can divide by itself, where it does not one more pass is made.
    """

    def tensors(self) -> Sequence[TensorSpec]:
        """All parameters, buffers and slots that exist now, in a stable order."""
        ...

    def bind(self, slots: Sequence[Slot], gradients: Sequence[Buffer]) -> None:
        """Keep gradients in ``gradients[slot.bucket]`` from now on; one slot a trained tensor.

        A gradient lies there in ``slot.shape``. With ``slot.permutation`` that is
        ``gradient.transpose(slot.permutation)``, else the gradient as it is.

        A bucket may be in half precision (float16, or the bits of bfloat16 as uint16) where the
        plan asks for it: then sums are made in the parameter's type and rounded once, in
        ``finish_update``.
        """
        ...

    def begin_update(self) -> None:
        """Forget gradients and tally of the update before."""
        ...

    def forward_backward(
        self, micro: MicroBatch, *, scale: float, seed: int, ready: Callable[[int], None]
    ) -> None:
        """Add ``scale * dS`` of one micro-batch to the gradients, and S, W, metrics to the tally.

        A micro-batch whose W is known to be 0 before forward is not run. Random numbers inside
        are a function of ``seed`` only. ``ready(bucket)`` may be called once no micro-batch of
        this update will touch that bucket any more; the core does not rely on it.
        """
        ...

    def finish_update(self) -> Tally:
        """Read the tally back; called once an update, after the last micro-batch."""
        ...

    def squared_norm(self) -> float:
        """Squared norm of the unbound gradients in float64; not finite iff one of them is not."""
        ...

    def non_finite(self) -> Sequence[str]:
        """Names of trained tensors whose unbound gradient is not finite, in order."""
        ...

    def apply(
        self,
        *,
        lr_factor: float,
        used: Sequence[bool],
        scale: float = 1.0,
        owned: Optional[Sequence[bool]] = None,
    ) -> None:
        """Let the optimizer change the weights, with every learning rate times ``lr_factor``.

        ``scale`` multiplies gradients first, in the parameter's type. It is 1.0 where they are
        bound, unless their buckets are in half precision. A tensor whose ``used`` is False has no
        gradient: neither decay nor momentum move it.
        """
        ...

    def end_call(self, num_updates: int) -> None:
        """Step the framework's own scheduler once for each update that happened in the call."""
        ...

    def learning_rates(self) -> Sequence[float]:
        """Base learning rates now, one a parameter group, without ``lr_factor``."""
        ...

    def evaluate(
        self, micro: MicroBatch, metrics: Mapping[str, Metric], *, seed: int
    ) -> Dict[str, Tuple[float, float]]:
        """Forward in evaluation mode; ``"loss"`` and each metric as (sum, weight) on the host.

        Changes no state: buffers, random generators, mode of the model. Rows of padding do not
        count.
        """
        ...

    def predict(self, micro: MicroBatch, *, seed: int) -> Tree:
        """Forward in evaluation mode; the outputs as a tree of numpy arrays."""
        ...

    def read(self, names: Sequence[str]) -> Dict[str, Array]:
        """Copies of the named tensors as numpy arrays."""
        ...

    def write(self, tensors: Mapping[str, Array]) -> None:
        """Overwrite the named tensors in place, from numpy arrays of the same shape.

        A slot of a trained parameter that does not exist yet is made.
        """
        ...

    def scalars(self) -> Dict[str, Any]:
        """State that is no tensor, JSON values only: scheduler, step counters, hyper-parameters.

        What cannot be said in JSON is refused here by name, never left out.
        """
        ...

    def load_scalars(self, scalars: Mapping[str, Any]) -> None:
        """Take over what ``scalars`` returned, there or in another process.

        Another kind of optimizer or scheduler, or other parameters in it, are a ``ConfigError``
        before anything is changed.
        """
        ...

    def forget_slots(self) -> None:
        """Drop every slot of the optimizer; ``write`` makes those of a checkpoint anew."""
        ...

    def close(self) -> None:
        """Let go of the reducer's buffers; the user's model keeps the trained weights."""
        ...


@runtime_checkable
class Executor(Protocol):
    """Runs whole calls; the core has ``HostExecutor``, a device adapter brings its own.

    One that may go without samples has an attribute ``has_trained``, False until it ran some: its
    running statistics do not count until then.
    """

    def run(self, call: Call) -> Any:
        """Run the updates of a call and return its ``Record``."""
        ...

    def evaluate(
        self, micro: MicroBatch, metrics: Mapping[str, Metric]
    ) -> Dict[str, Tuple[float, float]]:
        """As ``Replica.evaluate``."""
        ...

    def predict(self, micro: MicroBatch) -> Tree:
        """As ``Replica.predict``."""
        ...

    def tensors(self) -> Sequence[TensorSpec]:
        """As ``Replica.tensors``."""
        ...

    def read(self, names: Sequence[str]) -> Dict[str, Array]:
        """As ``Replica.read``."""
        ...

    def write(self, tensors: Mapping[str, Array]) -> None:
        """As ``Replica.write``."""
        ...

    def scalars(self) -> Dict[str, Any]:
        """As ``Replica.scalars``, with the executor's own counters."""
        ...

    def load_scalars(self, scalars: Mapping[str, Any]) -> None:
        """As ``Replica.load_scalars``."""
        ...

    def forget_slots(self) -> None:
        """As ``Replica.forget_slots``."""
        ...

    def close(self) -> None:
        """Free what was allocated."""
        ...


@runtime_checkable
class Adapter(Protocol):
    """What the core needs from a framework. Found by entry point, imported when asked for."""

    @property
    def name(self) -> str:
        """The entry-point name, e.g. ``"torch"``."""
        ...

    @property
    def support(self) -> Mapping[Capability, Support]:
        """Support level of every capability; leaving one out is a conformance failure."""
        ...

    def accepts(self, model: Any) -> bool:
        """Whether it can train ``model``; imports nothing."""
        ...

    def targets(self) -> Tuple[str, ...]:
        """Targets usable here and now, best first."""
        ...

    def seed(self, seed: int) -> None:
        """Seed the framework's global generators, if the framework is imported already."""
        ...

    def lower(self, plan: Plan, target: str) -> Lowering:
        """Map every plan field to native settings or refuse it; pure."""
        ...

    def scope(self, plan: Plan, place: Place) -> ContextManager[None]:
        """Where the framework wants its models built; seeds the generators."""
        ...

    def build(self, job: Job, plan: Plan, place: Place) -> Union[Replica, Device, Executor]:
        """Check the job and return what drives the model; runs no forward.

        A ``Replica`` on host targets, a ``Device`` on those that run whole calls.
        """
        ...

    def denominator(self, loss: Any) -> Optional[str]:
        """How the framework's own ``loss`` divides its mean, in words, or None if unknown."""
        ...


__all__ = [
    "Adapter",
    "Array",
    "Buffer",
    "Call",
    "DeviceCall",
    "Executor",
    "Job",
    "Kernels",
    "Loss",
    "Lowering",
    "Metric",
    "MicroBatch",
    "NativeCall",
    "Place",
    "Plan",
    "Replica",
    "Slot",
    "Tally",
    "TensorSpec",
    "Tree",
    "Update",
]
