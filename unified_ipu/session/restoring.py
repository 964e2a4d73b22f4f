"""Programs and loaders from a checkpoint: everything is read and compared before one is changed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

import msgspec
import numpy as np

from unified_ipu.adapter import TensorSpec
from unified_ipu.checkpoint import Manifest, ProgramEntry, Saved, TensorEntry, open_checkpoint
from unified_ipu.comms import Communicator
from unified_ipu.errors import CheckpointError, ConfigError
from unified_ipu.session.late_build import build_from_loader
from unified_ipu.session.own_buffers import load_own
from unified_ipu.session.program import Program
from unified_ipu.session.saving import (
    Named,
    check_not_mixed,
    raise_together,
    sorted_out,
    tensors_of,
)
from unified_ipu.session.transports import prefer_algorithm

if TYPE_CHECKING:
    from unified_ipu.session.session import Session

Tensors = Dict[str, np.ndarray]

_SHOWN = 5


def restore(
    session: Session,
    folder: Union[str, Path],
    what: Mapping[str, Any],
    *,
    same_seed: bool = False,
) -> Tuple[Path, Manifest]:
    """Load a checkpoint into programs and loaders; collective.

    Args:
        session: Of everything in ``what``.
        folder: Of the run, for its latest checkpoint, or of one checkpoint.
        what: Programs and train loaders by the names they were saved under.
        same_seed: Whether another seed of the plan is a difference.

    Returns:
        The folder of the checkpoint, and its manifest.

    Raises:
        ConfigError: If ``what`` is impossible.
        CheckpointError: On all ranks, if it is missing, damaged, foreign, too new, or does not
            fit; nothing is changed then.
    """
    named = sorted_out(what, "restore")
    check_not_mixed(named)
    communicator = session.communicator("data")
    communicator.barrier(name="session.restore, which every rank must call")
    if len(named.loaders) == 1:
        for program in named.programs.values():
            build_from_loader(program.executor, *named.loaders.values())
    with communicator.phase("loading"):
        saved, path, manifest = _open(communicator, Path(folder))
        found = _differences(session, named, manifest, same_seed=same_seed)
        text = "; ".join(found) or None
        raise_together(communicator, text, f"the checkpoint {path} does not fit")
        values = _read(communicator, saved, manifest, named, path)
        own_buffers = {
            name: _own_buffers(communicator, saved, manifest.programs[name])
            for name in named.programs
        }
        problem = _load_programs(named, manifest, values)
        raise_together(communicator, problem, f"the checkpoint {path} does not fit")
        for name, own in own_buffers.items():
            if own:
                load_own(
                    named.programs[name].executor,
                    own,
                    has_trained=manifest.programs[name].trained[communicator.rank],
                )
        for name, loader in named.loaders.items():
            loader.load_state(manifest.loaders[name].state)
        prefer_algorithm(communicator, manifest.algorithm)
    return path, manifest


def _open(communicator: Communicator, folder: Path) -> Tuple[Optional[Saved], Path, Manifest]:
    saved, head = None, None
    if communicator.rank == 0:
        try:
            saved = open_checkpoint(folder)
            head = [str(saved.folder), msgspec.to_builtins(saved.manifest)]
        except (OSError, CheckpointError) as error:
            head = [str(error)]
    head = communicator.broadcast_value(head)
    if len(head) == 1:
        raise CheckpointError(head[0])
    return saved, Path(head[0]), msgspec.convert(head[1], Manifest)


def _differences(
    session: Session, named: Named, manifest: Manifest, *, same_seed: bool
) -> List[str]:
    found = []
    seed = manifest.plan.get("seed")
    if same_seed and seed != session.plan.seed:
        found.append(f"seed is {session.plan.seed}, saved with {seed}")
    for name, program in named.programs.items():
        entry = manifest.programs.get(name)
        if entry is None:
            found.append(f"it has no program {name!r}, but {sorted(manifest.programs)}")
        else:
            found += [f"program {name!r}: {text}" for text in _program_differences(program, entry)]
    for name, loader in named.loaders.items():
        position = manifest.loaders.get(name)
        if position is None:
            found.append(f"it has no loader {name!r}, but {sorted(manifest.loaders)}")
        else:
            found += [f"loader {name!r}: {text}" for text in loader.differences(position.state)]
    return found


def _program_differences(program: Program, entry: ProgramEntry) -> List[str]:
    if program.adapter != entry.adapter:
        return [f"adapter is {program.adapter!r}, saved with {entry.adapter!r}"]
    specs = program.executor.tensors()
    now = {tensor.name: tensor for tensor in tensors_of(specs) if tensor.role != "slot"}
    before = {tensor.name: tensor for tensor in entry.tensors if tensor.role != "slot"}
    found = [
        f"{name!r} is {_form(now[name])}, saved as {_form(before[name])}"
        for name in now
        if name in before and now[name] != before[name]
    ]
    found += [f"{name!r} is not in the checkpoint" for name in now if name not in before]
    found += [f"{name!r} is not in this model" for name in before if name not in now]
    if len(found) > _SHOWN:
        found = [*found[:_SHOWN], f"and {len(found) - _SHOWN} more tensors"]
    return found


def _form(tensor: TensorEntry) -> str:
    return f"{tensor.role} {tensor.dtype} {tensor.shape}"


def _read(
    communicator: Communicator,
    saved: Optional[Saved],
    manifest: Manifest,
    named: Named,
    path: Path,
) -> Dict[str, Tensors]:
    """Values of every tensor, read and checked by rank 0, on every rank."""
    values: Dict[str, Tensors] = {}
    problem = None
    if saved is not None:
        try:
            values = {name: _own_values(saved, manifest.programs[name]) for name in named.programs}
            _check_ranks(saved, named, manifest)
        except (OSError, CheckpointError) as error:
            problem = str(error)
    raise_together(communicator, problem, f"the checkpoint {path} is damaged")
    for name in named.programs:
        own = values.setdefault(name, {})
        for tensor in manifest.programs[name].tensors:
            if saved is None:
                own[tensor.name] = np.empty(tensor.shape, _host_dtype(tensor.dtype))
            communicate = own[tensor.name].reshape(-1).view(np.uint8)
            communicator.broadcast(communicate, root=0, out=communicate, name=tensor.name)
    return values


def _own_buffers(
    communicator: Communicator, saved: Optional[Saved], entry: ProgramEntry
) -> Tensors:
    """This rank's own buffers, if the checkpoint is of a world of this size; collective."""
    if entry.ranks is None or len(entry.trained) != communicator.size:
        return {}
    stored = {} if saved is None else saved.tensors(entry.ranks)
    forms = {tensor.name: tensor for tensor in entry.tensors}
    own: Tensors = {}
    for key in communicator.broadcast_value(sorted(stored)):
        rank, _, name = key.partition("/")
        value = np.empty(forms[name].shape, _host_dtype(forms[name].dtype))
        if saved is not None:
            value = np.array(stored[key].array, order="C")
        flat = value.reshape(-1).view(np.uint8)
        communicator.broadcast(flat, root=0, out=flat, name=key)
        if int(rank) == communicator.rank:
            own[name] = value
    return own


def _own_values(saved: Saved, entry: ProgramEntry) -> Tensors:
    stored = {**saved.tensors(entry.weights), **saved.tensors(entry.slots)}
    values: Tensors = {}
    for tensor in entry.tensors:
        one = stored.get(tensor.name)
        if one is None or one.dtype != tensor.dtype or list(one.array.shape) != tensor.shape:
            raise CheckpointError(f"tensor {tensor.name!r} is not in its file as the manifest says")
        values[tensor.name] = np.array(one.array, order="C")  # aligned and writable
    return values


def _check_ranks(saved: Saved, named: Named, manifest: Manifest) -> None:
    for name in named.programs:
        file = manifest.programs[name].ranks
        if file is not None:
            saved.tensors(file)


def _load_programs(
    named: Named, manifest: Manifest, values: Mapping[str, Tensors]
) -> Optional[str]:
    for name, program in named.programs.items():
        entry = manifest.programs[name]
        problem = _load_training(program, entry) if program.can_train else None
        if problem is not None:
            return f"program {name!r}: {problem}"
        left_out = {spec.name for spec in program.executor.tensors() if spec.tied_to is not None}
        if not program.can_train:  # it only evaluates, so the optimizer's part is not for it
            left_out |= {tensor.name for tensor in entry.tensors if tensor.role == "slot"}
        program.executor.write({n: v for n, v in values[name].items() if n not in left_out})
        program.update = entry.update
        program.updates_happened = entry.updates_happened
        lost = _lost_slots(program.executor.tensors(), entry) if program.can_train else []
        if lost:
            return f"program {name!r}: the optimizer did not take over {lost[:_SHOWN]}"
    return None


def _load_training(program: Program, entry: ProgramEntry) -> Optional[str]:
    try:
        program.executor.load_scalars(entry.scalars)
    except ConfigError as error:
        return str(error)
    program.executor.forget_slots()
    return None


def _lost_slots(specs: Sequence[TensorSpec], entry: ProgramEntry) -> List[str]:
    now = tensors_of([spec for spec in specs if spec.role == "slot"])
    return [t.name for t in entry.tensors if t.role == "slot" and t not in now]


def _host_dtype(dtype: str) -> str:
    return "float32" if dtype == "bfloat16" else dtype
