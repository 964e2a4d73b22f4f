"""The system calls behind waiting: futex, pidfd, and first-come locks.

Called through ctypes, which releases the interpreter lock while a call blocks. Plain stores and
loads order data before flags on x86-64 (total store order); nothing here gives that on other
processors, so the transport is refused there.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys

from unified_ipu.errors import CollectiveError

WAIT_SLICE_SECONDS = 0.1
LONG_WAIT_SLICE_SECONDS = 0.25  # each look of a sleeper costs half a millisecond of CPU

_SYS_FUTEX = 202  # x86-64, linux/arch/x86/entry/syscalls/syscall_64.tbl
_SYS_PIDFD_OPEN = 434  # the same on all architectures
_FUTEX_WAIT = 0  # without FUTEX_PRIVATE_FLAG: the waiters are other processes
_FUTEX_WAKE = 1
_FUTEX_WAKE_OP = 5
_EVERYBODY = 2**31 - 1
_ADD_AND_COMPARE = (1 << 28) | (5 << 24)  # linux/futex.h: FUTEX_OP_ADD, FUTEX_OP_CMP_GE

_LIBC = ctypes.CDLL(None)
_SLICES = [
    (ctypes.c_long * 2)(0, int(seconds * 1e9))  # struct timespec
    for seconds in (WAIT_SLICE_SECONDS, LONG_WAIT_SLICE_SECONDS)
]
_SLICE_ADDRESS, _LONG_SLICE_ADDRESS = map(ctypes.addressof, _SLICES)

# A name looked up by index gives a function object of its own, so each has its argument types.
_futex = _LIBC["syscall"]
_futex.argtypes = (ctypes.c_long, ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_void_p)
_futex.restype = ctypes.c_long
_futex_op = _LIBC["syscall"]
_futex_op.argtypes = (
    *(ctypes.c_long, ctypes.c_void_p, ctypes.c_int, ctypes.c_int),
    *(ctypes.c_long, ctypes.c_void_p, ctypes.c_uint),
)
_futex_op.restype = ctypes.c_long

# It neither blocks nor takes long, so it is called without giving up the interpreter lock.
_try_spinlock = ctypes.PyDLL(None)["pthread_spin_trylock"]
_try_spinlock.argtypes = (ctypes.c_void_p,)
_try_spinlock.restype = ctypes.c_int


def check_platform() -> None:
    """Refuse processors and systems on which flags would not order data.

    Raises:
        CollectiveError: If this is not Linux on x86-64.
    """
    machine = platform.machine()
    if sys.platform != "linux" or machine not in {"x86_64", "AMD64"}:
        raise CollectiveError(
            f'the transport "shm" runs on Linux x86-64, this is {sys.platform} on {machine}; '
            'use one process, or set comms.transport = "c10d" with the torch adapter'
        )


def futex_wait(address: int, seen: int, *, long: bool = False) -> None:
    """Sleep while the 32-bit word still is ``seen``, for at most one slice, short or long.

    Returns for any reason (woken, changed, interrupted, time over): the caller looks again.
    """
    slice_address = _LONG_SLICE_ADDRESS if long else _SLICE_ADDRESS
    _futex(_SYS_FUTEX, address, _FUTEX_WAIT, seen, slice_address)


def futex_wake(address: int) -> None:
    """Wake all who sleep on the word."""
    _futex(_SYS_FUTEX, address, _FUTEX_WAKE, _EVERYBODY, None)


def futex_add(address: int, amount: int, total: int) -> None:
    """Add to the 32-bit word in one step; wake all who sleep on it once it is ``total`` or more.

    Args:
        address: Of the word. On the one behind it nobody may sleep.
        amount: What is added.
        total: What is waited for, at most 2,047: operands have 12 bits and a sign.
    """
    operation = _ADD_AND_COMPARE | amount << 12 | (total - amount)
    _futex_op(_SYS_FUTEX, address + 4, _FUTEX_WAKE_OP, 1, _EVERYBODY, address, operation)


def open_pidfd(pid: int) -> int:
    """Descriptor that becomes readable when the process has ended, zombies included; -1 if none."""
    opener = getattr(os, "pidfd_open", None)  # 3.9
    if opener is not None:
        try:
            return int(opener(pid))
        except OSError:
            return -1
    return int(_LIBC.syscall(ctypes.c_long(_SYS_PIDFD_OPEN), ctypes.c_int(pid), ctypes.c_uint(0)))


def build_lock(address: int) -> None:
    """Make the 32 bytes at ``address`` a lock that is taken once."""
    _LIBC.sem_init(ctypes.c_void_p(address), 1, 1)


def take_lock(address: int) -> bool:
    """Whether the caller is the first, over all processes, to take the lock."""
    return int(_LIBC.sem_trywait(ctypes.c_void_p(address))) == 0


def free_spinlock() -> int:
    """What the word of a spin lock holds while nobody has it, which C libraries differ about."""
    word = ctypes.c_int()
    _LIBC.pthread_spin_init(ctypes.byref(word), 1)
    return word.value


def take_spinlock(address: int) -> bool:
    """Whether the caller is the first, over all processes, since the word was free."""
    return bool(_try_spinlock(address) == 0)
