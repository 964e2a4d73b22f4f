"""Programs and loaders into a checkpoint: rank 0 writes, all ranks agree on how it went."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, Optional, Sequence, Union

from unified_ipu.adapter import TensorSpec
from unified_ipu.checkpoint import (
    KEEP,
    LoaderEntry,
    Manifest,
    ProgramEntry,
    StoredTensor,
    TensorEntry,
    check_storable,
    publish,
    write_checkpoint,
)
from unified_ipu.comms import Communicator
from unified_ipu.data import Loader
from unified_ipu.errors import CheckpointError, ConfigError, ContractError, UnifiedIpuError
from unified_ipu.session.mixing import refuse_mixed
from unified_ipu.session.own_buffers import Buffers
from unified_ipu.session.program import Program
from unified_ipu.session.transports import algorithm_of

if TYPE_CHECKING:
    from unified_ipu.session.session import Session


@dataclass(frozen=True)
class Named:
    """What is saved or restored together.

    Args:
        programs: By name.
        loaders: Train loaders by name.
    """

    programs: Mapping[str, Program]
    loaders: Mapping[str, Loader]

    def files(self, name: str) -> List[str]:
        """Names of the files of one program's weights, slots, and buffers of each rank."""
        # With one program `load_file(".../weights.safetensors")` gives what its model loads.
        prefix = f"{name}." if len(self.programs) > 1 else ""
        return [f"{prefix}{part}.safetensors" for part in ("weights", "slots", "ranks")]


def sorted_out(what: Mapping[str, Any], verb: str) -> Named:
    """Sort the arguments of ``save`` and ``restore`` by what they are.

    Raises:
        ConfigError: If there are none, or one is neither a program nor a train loader.
    """
    programs: Dict[str, Program] = {}
    loaders: Dict[str, Loader] = {}
    for name, value in what.items():
        if isinstance(value, Program):
            programs[name] = value
        elif isinstance(value, Loader) and value.train:
            loaders[name] = value
        else:
            found = "a loader for evaluation" if isinstance(value, Loader) else repr(value)
            raise ConfigError(
                f"{verb} got {name}={found}; expected programs and train loaders: "
                f'session.{verb}("run", model=program, train=loader)'
            )
    if not programs and not loaders:
        raise ConfigError(
            f'{verb} got nothing; name what to {verb}: session.{verb}("run", model=program)'
        )
    return Named(programs, loaders)


def check_not_mixed(named: Named) -> None:
    """Refuse checkpoints of ranks with several adapters, whose optimizers keep other state.

    Raises:
        ConfigError: If a program's ranks have several.
    """
    for program in named.programs.values():
        refuse_mixed(
            program.mix, "a checkpoint", "keep program.weights() of one rank and load_weights them"
        )


def save(
    session: Session,
    folder: Union[str, Path],
    what: Mapping[str, Any],
    *,
    keep: int = KEEP,
    notes: Optional[Callable[[], Dict[str, Any]]] = None,
) -> Path:
    """Write a checkpoint; collective.

    Args:
        session: Of everything in ``what``.
        folder: Of the run.
        what: Programs and train loaders by name.
        keep: How many checkpoints of the run are kept.
        notes: Makes what ``fit`` needs to go on; the same on every rank.

    Returns:
        The folder of this checkpoint.

    Raises:
        ConfigError: If ``what`` or ``keep`` is impossible.
        CheckpointError: On all ranks, if it could not be written; the one before is untouched.
    """
    _check_keep(keep)
    named = sorted_out(what, "save")
    check_not_mixed(named)
    communicator = session.communicator("data")
    communicator.barrier(name="session.save, which every rank must call")
    with communicator.phase("saving"):
        states = {name: loader.state() for name, loader in named.loaders.items()}
        buffers = {
            name: Buffers(program.executor, communicator)
            for name, program in named.programs.items()
        }
        step = _step(session, named, states)
        _check_same(communicator, [str(folder), list(what), step])
        path, problem = "", None
        try:
            manifest = Manifest(
                step=step,
                written_by=_version(),
                plan=session.plan.to_dict(),
                programs={name: _entry(named, name, buffers[name]) for name in named.programs},
                loaders={name: LoaderEntry(state=state) for name, state in states.items()},
                notes=None if notes is None else notes(),
                algorithm=algorithm_of(communicator),
            )
            if communicator.rank == 0:
                path = str(_publish(Path(folder), manifest, named, buffers, keep))
        except (OSError, UnifiedIpuError) as error:
            problem = f"{type(error).__name__}: {error}"
        head = f"the checkpoint of step {step} was not written to {folder}"
        raise_together(communicator, problem, head)
        return Path(communicator.broadcast_value(path))


def raise_together(communicator: Communicator, problem: Optional[str], head: str) -> None:
    """Raise on all ranks if one of them has a problem; collective.

    Raises:
        CheckpointError: With ``head`` and the problem of the lowest rank that has one.
    """
    for rank, text in enumerate(communicator.all_gather_value(problem)):
        if text is not None:
            raise CheckpointError(f"{head}; rank {rank}: {text}")


def tensors_of(specs: Sequence[TensorSpec]) -> List[TensorEntry]:
    """Describe tensors as the manifest does."""
    return [
        TensorEntry(name=spec.name, shape=list(spec.shape), dtype=spec.dtype, role=spec.role)
        for spec in specs
    ]


def _entry(named: Named, name: str, buffers: Buffers) -> ProgramEntry:
    program = named.programs[name]
    specs = program.executor.tensors()
    for spec in specs:
        check_storable(spec.name, spec.dtype)
    scalars = program.executor.scalars()
    try:
        json.dumps(scalars)
    except (TypeError, ValueError) as error:
        raise ContractError(
            program.adapter, f"scalars() is not made of JSON values: {error}"
        ) from error
    weights, slots, ranks = named.files(name)
    return ProgramEntry(
        adapter=program.adapter,
        update=program.update,
        updates_happened=program.updates_happened,
        tensors=tensors_of(specs),
        scalars=scalars,
        weights=weights,
        slots=slots,
        ranks=ranks if buffers.of_ranks else None,
        trained=buffers.trained if buffers.of_ranks else [],
    )


def _publish(
    folder: Path, manifest: Manifest, named: Named, buffers: Mapping[str, Buffers], keep: int
) -> Path:
    files: Dict[str, List[StoredTensor]] = {}
    for name, entry in manifest.programs.items():
        values = named.programs[name].executor.read([tensor.name for tensor in entry.tensors])
        values.update(buffers[name].together)
        files[entry.weights], files[entry.slots] = [], []
        dtypes = {tensor.name: tensor.dtype for tensor in entry.tensors}
        if entry.ranks is not None:
            files[entry.ranks] = [
                StoredTensor(f"{rank}/{buffer}", dtypes[buffer], value)
                for rank, own in enumerate(buffers[name].of_ranks)
                for buffer, value in own.items()
            ]
        for tensor in entry.tensors:
            file = files[entry.slots if tensor.role == "slot" else entry.weights]
            file.append(StoredTensor(tensor.name, tensor.dtype, values[tensor.name]))
    return publish(
        folder,
        manifest.step,
        lambda temporary: write_checkpoint(temporary, manifest, files),
        keep=keep,
    )


def _step(session: Session, named: Named, states: Mapping[str, Mapping[str, Any]]) -> int:
    """Updates behind it: of the program that has most, or without programs of the loaders."""
    if named.programs:
        return max(program.update for program in named.programs.values())
    per_update = session.batch.global_batch_size
    samples = [
        int(state["epoch"]) * int(state["size"] or 0) + int(state["position"])
        for state in states.values()
    ]
    return -(-max(samples) // per_update)


def _check_keep(keep: Any) -> None:
    if isinstance(keep, bool) or not isinstance(keep, int) or keep < 1:
        raise ConfigError(f"keep={keep!r}; expected an integer >= 1")


def _check_same(communicator: Communicator, mine: List[Any]) -> None:
    for rank, theirs in enumerate(communicator.all_gather_value(mine)):
        if theirs != mine:
            raise CheckpointError(
                f"the ranks do not save the same: rank {communicator.rank} saves {mine}, rank "
                f"{rank} {theirs} (folder, names, step); call session.save alike on every rank"
            )


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("unified-ipu")
    except PackageNotFoundError:  # run from its sources
        return "unknown"
