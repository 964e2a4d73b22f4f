"""The SDK's modules: ``tensorflow.python.ipu`` of Graphcore's TensorFlow, or the emulated one."""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple, Tuple

from unified_ipu.adapter import Place, Plan
from unified_ipu.errors import CapabilityError
from unified_ipu.plan import device_batch
from unified_ipu.world import PopDist
from unified_ipu_tensorflow.errors import NAME


class Sdk(NamedTuple):
    """What native calls may name of the SDK.

    Args:
        ipu: ``tensorflow.python.ipu``.
        popdist: Of several processes; None for one.
        counts: How many processes popdist tells of, and how many replicas of this one. The
            configuration takes them from there, not from native calls.
    """

    ipu: Any
    popdist: Any
    counts: Tuple[int, ...] = ()


def has_sdk() -> bool:
    """Whether this TensorFlow is Graphcore's."""
    found = _real_ipu()
    return found is not None and not getattr(found, "__emulated__", False)


def load_sdk(plan: Plan, place: Place) -> Sdk:
    """Return the modules of a plan's target.

    Args:
        plan: Its target is ``"ipu"`` or ``"ipu-emulated"``.
        place: Of this process; emulated processes are told it as PopRun would tell them.

    Raises:
        CapabilityError: If the SDK is not here.
    """
    batch = device_batch(plan)[0]
    if plan.target == "ipu-emulated":
        from unified_ipu_tensorflow.emulated import ipu, popdist

        replicas, processes = batch.local_replicas, batch.processes
        ipus = batch.ipus_per_replica
        popdist.tell(PopDist(place.rank, processes, replicas, replicas * processes, ipus))
        return _sdk(ipu, popdist if processes > 1 else None)
    found = _real_ipu()
    if found is None:
        raise CapabilityError(
            NAME,
            "this TensorFlow has no tensorflow.python.ipu; install the wheel of the Poplar SDK, or "
            'set target = "ipu-emulated"',
        )
    return _sdk(found, _real_popdist() if batch.processes > 1 else None)


def _sdk(ipu: Any, popdist: Any) -> Sdk:
    if popdist is None:
        return Sdk(ipu, None)
    return Sdk(ipu, popdist, (popdist.getNumInstances(), popdist.getNumLocalReplicas()))


def _real_popdist() -> Any:
    try:
        found = importlib.import_module("popdist")
        importlib.import_module("popdist.tensorflow")
    except ImportError as error:
        raise CapabilityError(
            NAME,
            f"several processes of IPUs need the SDK's popdist, which cannot be imported ({error})",
        ) from error
    return found


def _real_ipu() -> Any:
    try:
        return importlib.import_module("tensorflow.python.ipu")
    except ImportError:
        return None
