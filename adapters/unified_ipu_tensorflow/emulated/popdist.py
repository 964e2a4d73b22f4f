"""``popdist`` and ``popdist.tensorflow``: which instance of a job this process is.

The SDK's is not public; the functions are those of its guide, ``set_ipu_config`` as Graphcore's
examples call it. PopRun's variables say which instance this is, or whoever starts processes without
PopRun says it here.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, List

from unified_ipu.world import PopDist, current_environment, read_popdist
from unified_ipu_tensorflow.emulated.notes import refuse_others

__emulated__ = True

_told: List[PopDist] = []
_started: List[bool] = []


def tell(instance: PopDist) -> None:
    """Say which instance this process is; not part of the SDK."""
    _told[:] = [instance]


def _instance() -> PopDist:
    found = read_popdist(current_environment())
    if found is None and _told:
        return _told[0]
    return found or PopDist(0, 1, 1, 1, 1)


def isBackendInitialized() -> bool:
    """Whether ``init`` was called."""
    return bool(_started)


def init() -> None:
    """Start the host's backend; again changes nothing."""
    _started[:] = [True]


def getNumTotalReplicas() -> int:
    """Replicas over all instances."""
    return _instance().total_replicas


def getNumLocalReplicas() -> int:
    """Replicas of this instance."""
    return _instance().local_replicas


def getNumInstances() -> int:
    """Processes of the job."""
    return _instance().instances


def getInstanceIndex() -> int:
    """Index of this process."""
    return _instance().instance


def set_ipu_config(config: Any, ipus_per_replica: int = 1, configure_device: bool = True) -> Any:
    """Give this instance its part of the devices, and return the configuration.

    Args:
        config: An ``IPUConfig``; changed in place.
        ipus_per_replica: Of the model.
        configure_device: Whether the number of IPUs is set too.
    """
    found = _instance()
    if configure_device:
        config.auto_select_ipus = found.local_replicas * ipus_per_replica
    distribution = config.experimental.multi_replica_distribution
    distribution.process_count = found.instances
    distribution.process_index = found.instance
    return config


tensorflow = SimpleNamespace(set_ipu_config=set_ipu_config)

__getattr__ = refuse_others("popdist")
