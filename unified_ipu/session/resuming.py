"""How ``fit`` saves as it goes, and where a fit that is started again goes on."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, Optional, Sequence, Union

from unified_ipu.checkpoint import has_checkpoints
from unified_ipu.data import Loader
from unified_ipu.errors import ConfigError
from unified_ipu.report import Callback
from unified_ipu.session.mixing import refuse_mixed
from unified_ipu.session.restoring import restore
from unified_ipu.session.saving import raise_together, save

if TYPE_CHECKING:
    from unified_ipu.session.program import Program

logger = logging.getLogger("unified_ipu.session")

Notes = Mapping[str, Any]


class Checkpointing:
    """The checkpoints of one ``fit``; every method is collective.

    Args:
        program: Saved as ``model``.
        train: Saved as ``train``.
        folder: Of the run, or None: nothing is saved.
        resume: ``"auto"``, True, the folder of a run or of one checkpoint, or None.

    Raises:
        ConfigError: If the two arguments do not go together.
    """

    def __init__(
        self,
        program: Program,
        train: Loader,
        folder: Optional[Union[str, Path]],
        resume: Any,
    ) -> None:
        if folder is not None and not isinstance(folder, (str, Path)):
            raise ConfigError(f"checkpoint={folder!r}; expected the folder of the run, or None")
        is_path = isinstance(resume, Path) or (isinstance(resume, str) and resume != "auto")
        if not is_path and resume not in {None, False, True, "auto"}:
            raise ConfigError(
                f'resume={resume!r}; expected "auto", True, the folder of a checkpoint, or None'
            )
        if resume and not is_path and folder is None:
            raise ConfigError(
                f"resume={resume!r} needs checkpoint=, the folder to resume from; or give the "
                "folder itself as resume="
            )
        if folder is not None or resume:  # now, not after the first epoch
            refuse_mixed(program.mix, "fit(checkpoint=) or resume=", "leave them out")
        self._program = program
        self._what: Dict[str, Any] = {"model": program, "train": train}
        self._folder = None if folder is None else Path(folder)
        self._resume = Path(resume) if is_path else resume
        self._saved_update: Optional[int] = None
        self._prepare()

    def _prepare(self) -> None:
        """Make the folder now: that it cannot be made must not come out after an epoch."""
        communicator, problem = self._program.communicator, None
        if self._folder is None:
            return
        if communicator.rank == 0:
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                problem = str(error)
        raise_together(communicator, problem, f"checkpoint={str(self._folder)!r} cannot be made")

    def start(self) -> Notes:
        """Go on from the checkpoint that was asked for, if there is one; its notes, or nothing."""
        source = self._source()
        if source is None:
            return {}
        session = self._program.session
        path, manifest = restore(session, source, self._what, same_seed=True)
        self._saved_update = self._program.update
        loader: Loader = self._what["train"]
        session.print(
            f"resumed from {path}: update {self._program.update}, epoch {loader.epoch + 1}, "
            f"{loader.position} samples of it done"
        )
        before = manifest.plan.get("batch", {}).get("micro_batch_size")
        now = session.plan.batch.micro_batch_size
        if session.is_first and before != now:
            logger.warning(
                "resuming with batch.micro_batch_size %s, saved with %s: samples and updates are "
                "the same, but random layers draw anew",
                now,
                before,
            )
        # Saved by hand, it is taken for the middle of a run that began at the beginning.
        return manifest.notes or {"first_epoch": 0, "first_update": 0}

    def save(self, notes: Callable[[], Dict[str, Any]]) -> None:
        """Write a checkpoint, unless the last one is of this very update."""
        if self._folder is None or self._saved_update == self._program.update:
            return
        save(self._program.session, self._folder, self._what, notes=notes)
        self._saved_update = self._program.update

    def _source(self) -> Optional[Path]:
        if isinstance(self._resume, Path):
            return self._resume
        if self._folder is None:
            return None
        # Whether there is something to resume is decided once, by rank 0.
        found = self._program.communicator.broadcast_value(has_checkpoints(self._folder))
        if found and not self._resume:
            raise ConfigError(
                f"{self._folder} holds the checkpoints of an earlier run; go on from them with "
                'resume="auto", or give another folder as checkpoint='
            )
        return self._folder if found or self._resume is True else None


def callback_states(callbacks: Sequence[Callback]) -> List[Any]:
    """What callbacks that have ``state`` and ``load_state`` want kept, with their kinds."""
    return [
        [type(callback).__qualname__, callback.state()]
        for callback in callbacks
        if hasattr(callback, "state") and hasattr(callback, "load_state")
    ]


def load_callback_states(callbacks: Sequence[Callback], states: Sequence[Any]) -> None:
    """Give each callback the state of the one of its kind in the same place."""
    left = list(states)
    for callback in callbacks:
        if not hasattr(callback, "load_state"):
            continue
        kind = type(callback).__qualname__
        for entry in left:
            if entry[0] == kind:
                callback.load_state(entry[1])
                left.remove(entry)
                break
