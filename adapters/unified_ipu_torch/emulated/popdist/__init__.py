"""``popdist``: which instance of a PopRun job this process is, read from PopRun's variables.

One instance needs nothing. Between several there are no links here: what needs them is refused.

Source: the PopRun user guide of Poplar SDK 3.3, page of the Python API.
"""

from __future__ import annotations

from typing import Any, Callable, Iterable, Optional

from unified_ipu.world import PopDist, current_environment, read_popdist

__emulated__ = True


class _Backend:
    """Whether ``init`` was called; the SDK keeps the same for the process."""

    is_initialized = False


def _instance() -> PopDist:
    found = read_popdist(current_environment())
    return found or PopDist(0, 1, 1, 1, 1)


def isPopdistEnvSet() -> bool:
    """Whether PopRun started this process."""
    return read_popdist(current_environment()) is not None


def init() -> None:
    """Start the host's backend.

    Raises:
        RuntimeError: If PopRun did not start this process, or it was started already.
    """
    if not isPopdistEnvSet():
        raise RuntimeError(
            "popdist.init() needs PopRun's environment; ask popdist.isPopdistEnvSet() first"
        )
    initializeBackend()


def initializeBackend() -> None:
    """Start the host's backend; only once.

    Raises:
        RuntimeError: If it was started already.
    """
    if _Backend.is_initialized:
        raise RuntimeError("popdist: the backend is initialised already")
    _Backend.is_initialized = True


def finalizeBackend() -> None:
    """End the host's backend."""
    _Backend.is_initialized = False


def isBackendInitialized() -> bool:
    """Whether the host's backend was started."""
    return _Backend.is_initialized


def getInstanceIndex() -> int:
    """Index of this process."""
    return _instance().instance


def getLocalInstanceIndex() -> int:
    """Index of this process on its host; 0 where nothing tells it."""
    return int(current_environment().get("POPDIST_LOCAL_INSTANCE_INDEX", "0"))


def getNumInstances() -> int:
    """Number of processes."""
    return _instance().instances


def getNumTotalReplicas() -> int:
    """Number of replicas over all processes."""
    return _instance().total_replicas


def getNumLocalReplicas() -> int:
    """Number of replicas of this process."""
    return _instance().local_replicas


def getNumIpusPerReplica() -> int:
    """Number of IPUs of a replica, as PopRun was told."""
    return _instance().ipus_per_replica


def getReplicaIndexOffset() -> int:
    """Index, over all processes, of this process's first replica."""
    return _instance().first_replica


def getDeviceId(ipusPerReplica: int = 0) -> int:  # noqa: ARG001  # theirs
    """Id of this process's device; there is one, the emulated."""
    return 0


def checkNumIpusPerReplica(ipusPerReplica: int) -> bool:
    """Whether a model needs as many IPUs as PopRun was told."""
    return ipusPerReplica == getNumIpusPerReplica()


def execute_on_instances(
    instances: Iterable[int], func: Callable[..., Any], *args: Any, **kwargs: Any
) -> Optional[Any]:
    """Call a function on some instances only.

    Args:
        instances: Their indices.
        func: What to call.
        args: For it.
        kwargs: For it.

    Returns:
        What it returned; None on other instances.
    """
    return func(*args, **kwargs) if getInstanceIndex() in set(instances) else None


def synchronize() -> None:
    """Wait for all instances.

    Raises:
        RuntimeError: If there are others: no links lead to them here.
    """
    if getNumInstances() > 1:
        raise RuntimeError(
            f"popdist.synchronize: {getNumInstances()} instances, and the emulation has no links "
            "between processes; run one instance"
        )
