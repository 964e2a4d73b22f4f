"""Whether a pipeline runs beside the model, and may."""

from __future__ import annotations

import logging
import sys
from typing import Any, FrozenSet, Optional

import msgspec

from unified_ipu.comms import Communicator
from unified_ipu.data.pipeline_source import PipelineSource
from unified_ipu.errors import ConfigError
from unified_ipu.plan import DataSettings
from unified_ipu.world import Conflict, Packages, conflicts, installed_packages

_log = logging.getLogger("unified_ipu.data")


def isolated_as_needed(
    settings: DataSettings, source: Any, *, adapters: FrozenSet[str], communicator: Communicator
) -> DataSettings:
    """Resolve ``isolate = "auto"`` for a source; collective.

    A pipeline of the framework that the models here are of runs beside them, since the framework
    is in the process anyway. All other pipelines, and all of a world where ranks would decide
    differently, get a process of their own.

    Args:
        settings: The plan's ``[data]`` table.
        source: What a loader was given.
        adapters: Of the programs that this process has compiled so far.
        communicator: Of all replicas.

    Returns:
        The settings, with ``isolate = "never"`` where the pipeline runs beside the model.
    """
    if settings.isolate != "auto" or settings.workers > 1 or settings.python:
        return settings
    if not isinstance(source, PipelineSource):
        return settings
    conflict = None
    is_wanted = adapters == {source.kind}
    if is_wanted:
        conflict = fatal_conflict(source.kind)
    if conflict is not None:
        _log.info(
            "%s runs in a process of its own: %s: %s",
            source.function,
            " + ".join(conflict.packages),
            conflict.problem,
        )
    answers = communicator.all_gather_value(is_wanted and conflict is None)
    if not all(answers):
        return settings
    return msgspec.structs.replace(settings, isolate="never")


def refuse_conflict(source: PipelineSource) -> None:
    """Refuse a pipeline in this process where that may end it by a signal.

    Args:
        source: The plan says that it runs here.

    Raises:
        ConfigError: If so, with the packages and what to change.
    """
    conflict = fatal_conflict(source.kind)
    if conflict is not None:
        raise ConfigError(
            f'data.isolate = "never": {source.function} cannot run in this process, which has '
            f"{' + '.join(conflict.packages)}: {conflict.problem}; {conflict.change}"
        )


def fatal_conflict(framework: str, packages: Optional[Packages] = None) -> Optional[Conflict]:
    """What may end this process by a signal once ``framework`` computes in it.

    Args:
        framework: As its adapter is called.
        packages: Instead of what is installed.

    Returns:
        The known bad pair of which the other half is imported here already; None if there is none.
    """
    for conflict in conflicts(installed_packages() if packages is None else packages):
        names = {name.partition("-")[0] for name in conflict.packages}
        if conflict.is_fatal and framework in names and (names - {framework}) & set(sys.modules):
            return conflict
    return None
