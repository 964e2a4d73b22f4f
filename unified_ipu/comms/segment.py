"""Shared memory without a name: created sealed and full-size, so touching it never kills.

A memfd does not count against a small /dev/shm, is gone with its last user even after kill -9, and
cannot be shrunk under anyone once sealed.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from pathlib import Path
from typing import List, Optional

import numpy as np

from unified_ipu.comms.futex import check_platform
from unified_ipu.errors import CollectiveError

PAGE_BYTES = 4096
_MAP_POPULATE = 0x8000  # mmap.MAP_POPULATE is 3.10+
_MEBIBYTE = 2**20


def round_up(nbytes: int, unit: int) -> int:
    """Smallest multiple of ``unit`` that is not below ``nbytes``."""
    return -(-nbytes // unit) * unit


class Segment:
    """One mapping of a memfd: bytes, 32-bit and 64-bit words of the same memory.

    The memory is unmapped when the last array or view of it is gone; there is nothing to close but
    the descriptor that is handed on.
    """

    def __init__(self, fd: int, nbytes: int) -> None:
        self.fd = fd
        self.nbytes = nbytes
        self._map = mmap.mmap(fd, nbytes, flags=mmap.MAP_SHARED | _MAP_POPULATE)
        self.view = memoryview(self._map)
        self.ints = self.view.cast("i")
        self.longs = self.view.cast("q")
        self.array = np.frombuffer(self._map, dtype=np.uint8)
        self.address = int(self.array.__array_interface__["data"][0])

    @classmethod
    def create(cls, nbytes: int, name: str) -> Segment:
        """Make a zeroed segment; ``name`` shows in /proc/PID/maps only.

        Raises:
            CollectiveError: If the memory is not there, or the platform is refused.
        """
        check_platform()
        nbytes = round_up(max(nbytes, 1), PAGE_BYTES)
        _check_memory(nbytes, name)
        fd = os.memfd_create(f"unified_ipu:{name}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.posix_fallocate(fd, 0, nbytes)
            fcntl.fcntl(
                fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
            )
            return cls(fd, nbytes)
        except OSError as error:
            os.close(fd)
            raise CollectiveError(
                f"{nbytes / _MEBIBYTE:.1f} MiB of shared memory for {name!r} could not be had "
                f"({error.strerror}); use fewer ranks or a smaller model, or free memory"
            ) from error

    @classmethod
    def open(cls, pid: int, fd: int, nbytes: int) -> Segment:
        """Map a segment that another process of the same user has open.

        Raises:
            CollectiveError: If that process is gone or its descriptors are out of reach.
        """
        path = f"/proc/{pid}/fd/{fd}"
        try:
            mine = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise CollectiveError(
                f"the shared memory of process {pid} cannot be opened ({path}: {error.strerror}); "
                "all ranks of a host need the same user and the same pid namespace"
            ) from error
        try:
            return cls(mine, nbytes)
        except OSError as error:
            os.close(mine)
            raise CollectiveError(
                f"{nbytes / _MEBIBYTE:.1f} MiB of shared memory cannot be mapped "
                f"({error.strerror}); raise the limit of address space (ulimit -v)"
            ) from error

    def close_fd(self) -> None:
        """Close the descriptor; the mapping stays."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def available_bytes() -> Optional[int]:
    """Memory that can be had without an out-of-memory kill, or None if nothing says so."""
    known = [_available_to_host(), _available_to_cgroup()]
    limits = [limit for limit in known if limit is not None]
    return min(limits) if limits else None


def _check_memory(nbytes: int, name: str) -> None:
    # Allocating more than there is would not fail but get a process killed.
    free = available_bytes()
    if free is not None and nbytes > free:
        raise CollectiveError(
            f"{nbytes / _MEBIBYTE:.1f} MiB of shared memory for {name!r} were asked for, "
            f"{free / _MEBIBYTE:.1f} MiB are available; use fewer ranks or a smaller model, "
            "or raise the memory limit of the container"
        )


def _available_to_host() -> Optional[int]:
    for line in _lines("/proc/meminfo"):
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _available_to_cgroup() -> Optional[int]:
    for line in _lines("/proc/self/cgroup"):
        if line.startswith("0::"):
            folder = f"/sys/fs/cgroup{line[3:].strip()}"
            limit = _number(f"{folder}/memory.max")
            used = _number(f"{folder}/memory.current")
            if limit is not None and used is not None:
                return max(limit - used + _reclaimable(folder), 0)
    return None


def _reclaimable(folder: str) -> int:
    for line in _lines(f"{folder}/memory.stat"):
        if line.startswith("inactive_file "):
            return int(line.split()[1])
    return 0


def _lines(path: str) -> List[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []


def _number(path: str) -> Optional[int]:
    lines = _lines(path)
    return int(lines[0]) if lines and lines[0].strip().isdigit() else None
