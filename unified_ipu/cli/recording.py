"""A session that trains nothing: it takes down what a script compiles, loads and fits, and ends it.

The script runs as it does otherwise, in this process, until its first ``fit``. Whatever it asks a
session before that, and that is not known without devices, is refused by name.
"""

from __future__ import annotations

import runpy
import sys
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Callable, Iterator, List, Mapping, Optional, Sequence

from unified_ipu.adapter import Adapter, Job, available_adapters, load_adapter, losses
from unified_ipu.cli.recorded import Recorded, RecordedLoader, RecordedProgram, ScriptEnds
from unified_ipu.cli.traced_calls import CallTracer
from unified_ipu.data import as_source
from unified_ipu.errors import AdapterLoadError, ConfigError
from unified_ipu.plan import BatchPlan, DeviceBatch, device_batch, merge_plan
from unified_ipu.world import Place

FRONTS = ("unified_ipu", "unified_ipu.session")  # where scripts take Session from


class RecordingSession:
    """Stands for ``ui.Session`` while a script is lowered.

    Args:
        base: The script's own plan.
        folder: Of the script, where ``plan.toml`` is looked for.
        plan_path: Of ``--plan``.
        settings: Of ``--set``.
        calls: Those that the script makes.
    """

    rank = 0
    is_first = True

    def __init__(
        self,
        base: Any,
        *,
        folder: Path,
        plan_path: Optional[str],
        settings: Sequence[str],
        calls: CallTracer,
    ) -> None:
        if base is None and (folder / "plan.toml").is_file():
            base = folder / "plan.toml"
        merged = merge_plan(base, plan_path=plan_path, settings=settings)
        device: DeviceBatch = device_batch(merged)[0]
        self.num_replicas = device.local_replicas * device.processes
        self.world_size = device.processes
        self.plan = merged.replace({"mesh.data": self.num_replicas})
        self.place = Place(replicas=range(device.local_replicas), num_replicas=self.num_replicas)
        self.batch = BatchPlan.from_plan(self.plan, self.num_replicas)
        self.calls = calls
        self._programs = 0

    def __enter__(self) -> RecordingSession:  # noqa: PYI034 - typing.Self is 3.11
        for adapter in _adapters():
            adapter.seed(self.plan.seed)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """There is nothing to close."""

    def print(self, *values: Any) -> None:
        """Write to standard error: standard output is the command's."""
        sys.stderr.write(" ".join(map(str, values)) + "\n")

    @contextmanager
    def scope(self) -> Iterator[None]:
        """As ``Session.scope`` on a host: there is no device to build models on."""
        plan = self.plan.replace({"target": "cpu"})
        with ExitStack() as stack:
            for adapter in _adapters():
                stack.enter_context(adapter.scope(plan, self.place))
            yield

    @contextmanager
    def first_on_host(self) -> Iterator[None]:
        """This process is."""
        yield

    def compile(
        self,
        model: Any,
        *,
        loss: Any = None,
        objective: Any = None,
        optimizer: Any = None,
        schedule: Any = None,
        weight: Any = None,
        loss_reduction: Optional[str] = None,
        trainable: Any = None,
        names: Optional[Mapping[str, Any]] = None,
        adapter: Optional[str] = None,
    ) -> RecordedProgram:
        """Take down what would be compiled."""
        job = Job(
            model=model,
            optimizer=optimizer,
            loss=losses.described(loss),
            objective=objective,
            loss_reduction=loss_reduction,
            weight=weight,
            trainable=trainable,
            names=names,
            seed=self.plan.seed,
            program=self._programs,
        )
        self._programs += 1
        return RecordedProgram(self.plan, self.batch, self.calls, job, schedule, adapter)

    def loader(
        self,
        source: Any,
        *,
        train: bool = True,
        micro_batch_size: Optional[int] = None,
        collate: Optional[Callable[[List[Any]], Any]] = None,
        name: Optional[str] = None,
    ) -> RecordedLoader:
        """Take down what would be read."""
        del micro_batch_size  # of evaluation
        if not train:
            return RecordedLoader(source, train, collate, self.batch, name or "loader")
        made = as_source(source, collate)
        return RecordedLoader(made, train, collate, self.batch, name or "loader")

    def __getattr__(self, name: str) -> Any:
        raise ConfigError(
            f"session.{name} before the first fit is not known while a script is lowered: there "
            "are no ranks and no devices; leave it out, or move it behind fit"
        )


def record(
    script: Path, arguments: Sequence[str], *, plan_path: Optional[str], settings: Sequence[str]
) -> Recorded:
    """Run a script until its first ``fit``.

    Args:
        script: An existing file.
        arguments: The script's own.
        plan_path: Of ``--plan``.
        settings: Of ``--set``.

    Returns:
        What it compiled, loaded and fitted.

    Raises:
        ConfigError: If it never calls ``fit``, or asks what is not known without devices.
    """
    calls = CallTracer(script)

    def session(plan: Any = None, **_: Any) -> RecordingSession:
        return RecordingSession(
            plan, folder=script.parent, plan_path=plan_path, settings=settings, calls=calls
        )

    try:
        with _as_main(script, arguments), _replaced("Session", session), calls:
            runpy.run_path(str(script), run_name="__main__")
    except ScriptEnds as ended:
        return ended.recorded
    except SystemExit as error:
        raise ConfigError(
            f"{script.name} ended with status {error.code} before it called program.fit; what is "
            "written is its first fit"
        ) from error
    raise ConfigError(f"{script.name} did not call program.fit; what is written is its first fit")


def _adapters() -> List[Adapter]:
    return [each for each in map(_loaded, available_adapters()) if each is not None]


def _loaded(name: str) -> Optional[Adapter]:
    try:
        return load_adapter(name)
    except AdapterLoadError:
        return None  # its package is absent, so there is nothing to seed


@contextmanager
def _as_main(script: Path, arguments: Sequence[str]) -> Iterator[None]:
    before = sys.argv
    sys.argv = [str(script), *arguments]
    try:
        yield
    finally:
        sys.argv = before


@contextmanager
def _replaced(name: str, value: Any) -> Iterator[None]:
    rooms = [import_module(room) for room in FRONTS]
    before = [getattr(room, name) for room in rooms]
    for room in rooms:
        setattr(room, name, value)
    try:
        yield
    finally:
        for room, old in zip(rooms, before):
            setattr(room, name, old)
