"""What Graphcore's PopRun tells a process of IPU replicas, of which one process may drive several.

Source: the PopRun user guide of Poplar SDK 3.3 for the functions of ``popdist``; a log of
``poprun -vv`` for the variables that it sets.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any, Mapping, Optional

from unified_ipu.errors import ConfigError

MARKER = "POPDIST_NUM_TOTAL_REPLICAS"
_LOCAL = "POPDIST_NUM_LOCAL_REPLICAS"
_OFFSET = "POPDIST_REPLICA_INDEX_OFFSET"
_IPUS = "POPDIST_NUM_IPUS_PER_REPLICA"


@dataclass(frozen=True)
class PopDist:
    """One instance of a PopRun job, and the replicas it drives.

    Args:
        instance: Index of this process.
        instances: Number of processes.
        local_replicas: Replicas of this process; all have as many.
        total_replicas: Over all processes.
        ipus_per_replica: As PopRun was told.

    Raises:
        ConfigError: If the numbers contradict each other.
    """

    instance: int
    instances: int
    local_replicas: int
    total_replicas: int
    ipus_per_replica: int

    def __post_init__(self) -> None:
        if min(self.local_replicas, self.ipus_per_replica) < 1:
            raise ConfigError(
                f"PopRun gives this process {self.local_replicas} replicas of "
                f"{self.ipus_per_replica} IPUs; expected at least 1 of each: look at "
                "--num-replicas and --ipus-per-replica"
            )
        if self.instances * self.local_replicas != self.total_replicas:
            raise ConfigError(
                f"PopRun has {self.total_replicas} replicas, this process drives "
                f"{self.local_replicas} of them; every process has to drive as many: choose "
                "--num-instances as a divisor of --num-replicas"
            )
        if not 0 <= self.instance < self.instances:
            raise ConfigError(
                f"PopRun calls this process instance {self.instance} of {self.instances}; "
                "an index is at least 0 and below their number"
            )

    @property
    def first_replica(self) -> int:
        """Index over the world of the first replica of this process."""
        return self.instance * self.local_replicas


def read_popdist(environ: Mapping[str, str], module: Any = None) -> Optional[PopDist]:
    """Read what PopRun says of this process; imports nothing and starts nothing.

    Args:
        environ: The environment, see ``current_environment``.
        module: ``popdist``, if it is imported: then it is asked, the environment otherwise.

    Returns:
        The instance; None where PopRun did not start this process.

    Raises:
        ConfigError: If variables are missing, no integers, or contradict each other.
    """
    if MARKER not in environ:
        return None
    if module is not None:
        return PopDist(
            instance=module.getInstanceIndex(),
            instances=module.getNumInstances(),
            local_replicas=module.getNumLocalReplicas(),
            total_replicas=module.getNumTotalReplicas(),
            ipus_per_replica=module.getNumIpusPerReplica(),
        )
    total, local = _integer(environ, MARKER), _integer(environ, _LOCAL)
    offset = _integer(environ, _OFFSET)
    if local < 1 or offset % local:
        raise ConfigError(
            f"{_OFFSET}={offset} and {_LOCAL}={local}: every process has to drive as many "
            "replicas; choose --num-instances as a divisor of --num-replicas"
        )
    return PopDist(
        instance=offset // local,
        instances=total // local,
        local_replicas=local,
        total_replicas=total,
        ipus_per_replica=_integer(environ, _IPUS),
    )


def join_popdist(environ: Mapping[str, str], module: Any = None) -> Any:
    """Return ``popdist``, its backend started; for devices, before their options are made.

    ``popdist.init()`` may be called once only; what has been started already is left alone.

    Args:
        environ: The environment, see ``current_environment``.
        module: Instead of the SDK's module.

    Returns:
        The module; None where PopRun did not start this process.

    Raises:
        ConfigError: If PopRun started this process and the module cannot be imported.
    """
    if MARKER not in environ:
        return None
    if module is None:
        try:
            module = importlib.import_module("popdist")
        except ImportError as error:
            raise ConfigError(
                f"{MARKER} is set, so PopRun started this process, but popdist cannot be imported "
                f"({error}): install the SDK's wheels, or start without poprun"
            ) from error
    if not module.isBackendInitialized():
        module.init()
    return module


def _integer(environ: Mapping[str, str], name: str) -> int:
    text = environ.get(name)
    if text is None:
        raise ConfigError(
            f"{MARKER} is set but {name} is not; poprun sets both: start with poprun, or unset them"
        )
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"{name}={text!r} is not a whole number; fix or unset it") from None
