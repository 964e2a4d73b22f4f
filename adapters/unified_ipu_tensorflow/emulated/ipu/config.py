"""``tensorflow.python.ipu.config``: the configuration of a process, and what it is checked for.

Source: Graphcore's TensorFlow of SDK 3.4, ``python/ipu/config.py``, ``ipu/utils.py`` and
``compiler/plugin/poplar/driver/poplar_compiler.cc``.
"""

from __future__ import annotations

import warnings
from typing import Any, Dict, List, Optional

from unified_ipu.device import power_of_two
from unified_ipu.world import current_environment
from unified_ipu_tensorflow.emulated.ipu.config_tree import (
    ATTRIBUTES,
    DeviceConnectionType as DeviceConnectionType,
    Group,
    MergeRemoteBuffersBehaviour as MergeRemoteBuffersBehaviour,
    SchedulingAlgorithm as SchedulingAlgorithm,
    SelectionOrder as SelectionOrder,
    StochasticRoundingBehaviour as StochasticRoundingBehaviour,
    defaults,
)
from unified_ipu_tensorflow.emulated.ipu.flags import check_flags
from unified_ipu_tensorflow.emulated.notes import note_once, refuse_others

_VERSIONS = ("", "ipu1", "ipu2", "ipu21")
_MEANT_HERE = {
    "auto_select_ipus",
    "select_ipus",
    "device_connection.type",
    "device_connection.version",
    "experimental.multi_replica_distribution.process_count",
    "experimental.multi_replica_distribution.process_index",
}


class IPUConfig(Group):
    """All settings of the IPU system; none has an effect before ``configure_ipu_system``."""

    def __init__(self) -> None:
        super().__init__("", defaults())

    def configure_ipu_system(self, device: str = "cpu") -> None:
        """Make this the configuration of the process."""
        configure_ipu_system(self, device)

    def to_dict(self) -> Dict[str, Any]:
        """All values by dotted name."""
        return dict(self._values)


_configured: List[Dict[str, Any]] = []


def configure_ipu_system(
    config: IPUConfig, device: str = "cpu", reset_configuration: bool = True
) -> None:
    """Make a configuration that of the process; another one before it is reset with a warning.

    Args:
        config: Checked as a whole.
        device: Host device that configures.
        reset_configuration: Whether a different configuration may take the place of one.

    Raises:
        TypeError: If it is no ``IPUConfig``.
        ValueError: If its settings contradict each other, or ask for what an emulation lacks;
            so do the flags of the environment.
        RuntimeError: If there is a different one, and it may not be replaced.
    """
    del device
    if not isinstance(config, IPUConfig):
        raise TypeError(f"config has to be an IPUConfig, got {type(config).__name__}")
    check_flags(current_environment())
    values = config.to_dict()
    _check(values)
    if _configured and _configured[0] != values:
        if not reset_configuration:
            raise RuntimeError(
                "the IPU system of this process is configured otherwise, and reset_configuration "
                "is False"
            )
        warnings.warn(
            "the IPU system was configured otherwise before; it is reset, and what was on the "
            "devices is lost",
            UserWarning,
            stacklevel=2,
        )
    _say_what_has_no_effect(values)
    _configured[:] = [values]


def get_ipu_config() -> IPUConfig:
    """A copy of the configuration of the process.

    Raises:
        RuntimeError: If there is none.
    """
    if not _configured:
        raise RuntimeError("the IPU system of this process is not configured")
    found = IPUConfig()
    found._values.update(_configured[0])
    return found


def reset_ipu_configuration() -> None:
    """Forget the configuration of the process."""
    _configured.clear()


def configured() -> Optional[Dict[str, Any]]:
    """Values of the configuration of the process, or None; not part of the SDK."""
    return _configured[0] if _configured else None


def ipus_of_device(values: Dict[str, Any], ordinal: int) -> int:
    """How many IPUs ``/device:IPU:<ordinal>`` has in this process; not part of the SDK.

    Args:
        values: A configuration.
        ordinal: From 0.

    Raises:
        ValueError: If there is no such device.
    """
    chosen = values["auto_select_ipus"]
    counts = [chosen] if isinstance(chosen, int) else list(chosen)
    if ordinal >= len(counts):
        raise ValueError(
            f"there is no /device:IPU:{ordinal}: auto_select_ipus = {chosen!r} makes "
            f"{len(counts)} device(s)"
        )
    return int(counts[ordinal])


def _check(values: Dict[str, Any]) -> None:
    selected, by_id = values["auto_select_ipus"], values["select_ipus"]
    if selected not in ([], ()) and by_id not in ([], ()):
        raise ValueError("only one of auto_select_ipus and select_ipus can be set")
    if by_id not in ([], ()):
        raise ValueError(
            "select_ipus chooses hardware by its number, and an emulation has none; set "
            "auto_select_ipus to the number of IPUs"
        )
    counts = [selected] if isinstance(selected, int) else list(selected)
    if not counts:
        raise ValueError("no IPUs are configured; set auto_select_ipus")
    for count in counts:
        if count < 1 or power_of_two(count) != count:
            raise ValueError(f"auto_select_ipus: got {count}; devices have a power of two of IPUs")
    _check_connection(values)
    _check_distribution(values)
    group = values["norms.experimental.distributed_batch_norm_replica_group_size"]
    if group > 1 and values["io_tiles.num_io_tiles"]:
        raise ValueError("I/O tiles cannot be combined with a distributed batch normalisation")
    if group != 1:
        raise ValueError(
            "norms.experimental.distributed_batch_norm_replica_group_size: statistics over "
            "replicas are not emulated; set it to 1"
        )


def _check_connection(values: Dict[str, Any]) -> None:
    kind, version = values["device_connection.type"], values["device_connection.version"]
    if version not in _VERSIONS:
        raise ValueError(f"device_connection.version has to be one of {_VERSIONS}, got {version!r}")
    if kind in {DeviceConnectionType.NEVER, DeviceConnectionType.PRE_COMPILE}:
        if not version:
            raise ValueError(f"device_connection.type = {kind.name} needs a version")
        raise ValueError(
            f"device_connection.type = {kind.name} compiles for hardware and runs nothing; there "
            "is nothing to compile for here, set ALWAYS or ON_DEMAND"
        )


def _check_distribution(values: Dict[str, Any]) -> None:
    count = values["experimental.multi_replica_distribution.process_count"]
    index = values["experimental.multi_replica_distribution.process_index"]
    if count < 0 or (count and not 0 <= index < count):
        raise ValueError(f"process_index has to be in [0, {count}), got {index}")


def _say_what_has_no_effect(values: Dict[str, Any]) -> None:
    plain = defaults()
    for path in ATTRIBUTES:
        if path in _MEANT_HERE or values[path] == plain[path]:
            continue
        why = "it changes where and how hardware computes, not what"
        if path.startswith("floating_point_behaviour"):
            why = "the host rounds to nearest and stops at no exception"
        note_once(path, why)


__getattr__ = refuse_others("tensorflow.python.ipu.config")
