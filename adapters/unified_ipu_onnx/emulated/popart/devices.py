"""Devices: every way to get one gives the emulated one.

Source: PopART of SDK 3.4, ``willow/src/devicemanager.cpp`` and its binding.
"""

from __future__ import annotations

from typing import Any, List, Mapping, Optional

from unified_ipu.device import power_of_two
from unified_ipu_onnx.emulated.popart.enums import (
    DeviceConnectionType,
    DeviceSelectionCriterion,
    DeviceType,
    SyncPattern,
)
from unified_ipu_onnx.emulated.popart.errors import popart_exception

_MODEL_OPTIONS = frozenset({"compileIPUCode", "ipuVersion", "numIPUs", "tilesPerIPU"})
_OFFLINE_OPTIONS = frozenset({"gatewayMode", "ipuVersion", "numIPUs", "syncPattern", "tilesPerIPU"})


class DeviceInfo:
    """One device of one or several IPUs.

    Args:
        kind: What was asked for.
        num_ipus: How many.
        connection: When a session attaches to it.
        identifier: Its number.
        tiles: Of one IPU.
    """

    def __init__(
        self,
        kind: DeviceType,
        num_ipus: int = 1,
        connection: DeviceConnectionType = DeviceConnectionType.Always,
        identifier: int = 0,
        tiles: int = 1472,
    ) -> None:
        self.type = kind
        self.numIpus = num_ipus
        self.connectionType = connection
        self.id = identifier
        self.tilesPerIPU = self.tilesPerIpu = tiles
        self.driverIds = list(range(identifier, identifier + num_ipus))
        self.version = self.ipuVersion = "ipu2"
        self.numWorkerContexts = 6
        self.loaded: Any = None  # the session whose program and weights it holds
        self._attached = connection is DeviceConnectionType.Always

    @property
    def isAttached(self) -> bool:
        """Whether a session may run on it."""
        return self._attached

    def attach(self) -> bool:
        """Take the device."""
        self._attached = True
        return True

    def tryAttachUntilTimeout(self) -> bool:
        """Take the device; nobody else has it."""
        return self.attach()

    def detach(self) -> None:
        """Let the device go; the host's own is always there."""
        self._attached = self.type is not DeviceType.Ipu

    def __enter__(self) -> DeviceInfo:  # noqa: PYI034  Self is not in Python 3.8
        return self

    def __exit__(self, *exception: object) -> None:
        self.detach()

    def __repr__(self) -> str:
        return f"emulated {self.type.name} device of {self.numIpus} IPUs"


class DeviceManager:
    """Hands out devices."""

    def acquireAvailableDevice(
        self,
        numIpus: int = 1,
        tilesPerIpu: int = 0,
        pattern: SyncPattern = SyncPattern.Full,
        connectionType: DeviceConnectionType = DeviceConnectionType.Always,
        selectionCriterion: DeviceSelectionCriterion = DeviceSelectionCriterion.First,
    ) -> DeviceInfo:
        """Take that many IPUs.

        Raises:
            popart_exception: If they are no power of two, or the connection is Never.
        """
        del pattern, selectionCriterion
        if numIpus < 1 or power_of_two(numIpus) != numIpus:
            raise popart_exception(
                f"You have attempted to acquire {numIpus} IPUs. The number of IPUs requested must "
                "be a power of two"
            )
        _check_connection(connectionType)
        return DeviceInfo(DeviceType.Ipu, numIpus, connectionType, tiles=tilesPerIpu or 1472)

    def tryAcquireAvailableDevice(self, *args: Any, **named: Any) -> Optional[DeviceInfo]:
        """As ``acquireAvailableDevice``; here there is always one."""
        return self.acquireAvailableDevice(*args, **named)

    def acquireDeviceById(
        self,
        id: int,
        pattern: SyncPattern = SyncPattern.Full,
        connectionType: DeviceConnectionType = DeviceConnectionType.Always,
    ) -> DeviceInfo:
        """Take the device of that number.

        Raises:
            popart_exception: If the connection is Never.
        """
        del pattern
        _check_connection(connectionType)
        return DeviceInfo(DeviceType.Ipu, 1, connectionType, id)

    def tryAcquireDeviceById(self, *args: Any, **named: Any) -> Optional[DeviceInfo]:
        """As ``acquireDeviceById``; here there is always one."""
        return self.acquireDeviceById(*args, **named)

    def createCpuDevice(self) -> DeviceInfo:
        """Make a device that computes on the host, as all do here."""
        return DeviceInfo(DeviceType.Cpu)

    def createIpuModelDevice(self, opts: Mapping[str, Any]) -> DeviceInfo:
        """Make a model of IPUs.

        Raises:
            popart_exception: For an unknown option.
        """
        _check_options(opts, _MODEL_OPTIONS)
        tiles = int(opts.get("tilesPerIPU", 4))
        return DeviceInfo(DeviceType.IpuModel, int(opts.get("numIPUs", 1)), tiles=tiles)

    def createSimDevice(self, opts: Mapping[str, Any]) -> DeviceInfo:
        """Make a simulated device.

        Raises:
            popart_exception: For an unknown option.
        """
        _check_options(opts, _MODEL_OPTIONS)
        return DeviceInfo(DeviceType.Sim, int(opts.get("numIPUs", 1)))

    def createOfflineIPUDevice(self, opts: Mapping[str, Any]) -> DeviceInfo:
        """Make a device to compile for, which does not run.

        Raises:
            popart_exception: For an unknown option.
        """
        _check_options(opts, _OFFLINE_OPTIONS)
        never = DeviceConnectionType.Never
        return DeviceInfo(DeviceType.OfflineIpu, int(opts.get("numIPUs", 1)), never)

    def enumerateDevices(
        self,
        pattern: SyncPattern = SyncPattern.Full,
        numIpus: int = 1,
        deviceType: DeviceType = DeviceType.Ipu,
        connectionType: DeviceConnectionType = DeviceConnectionType.Always,
        tilesPerIPU: int = 0,
    ) -> List[DeviceInfo]:
        """Return the one device that there is, of as many IPUs as asked for."""
        del pattern
        return [DeviceInfo(deviceType, numIpus, connectionType, tiles=tilesPerIPU or 1472)]

    def setOnDemandAttachTimeout(self, attachTimeout: int) -> None:
        """Without effect: nobody else has the device."""


def _check_connection(connection: DeviceConnectionType) -> None:
    if connection is DeviceConnectionType.Never:
        raise popart_exception(
            "Trying to acquire a hardware device when connectionType is DeviceConnectionType::Never"
        )


def _check_options(given: Mapping[str, Any], known: Any) -> None:
    for name in given:
        if name not in known:
            raise popart_exception(f"unknown device option {name!r}; choose from {sorted(known)}")
