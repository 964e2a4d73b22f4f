"""One rank as a process, for tests: ``rank_process.py RANK SIZE JOB WHAT [SECONDS ...]``."""

from __future__ import annotations

import logging
import os
import sys
import time
import warnings

import numpy as np

from unified_ipu.comms import connect
from unified_ipu.errors import UnifiedIpuError


def say(text):
    print(text, flush=True)  # the parent reads it


def add_up(communicator, argument):
    say(communicator.all_reduce(np.array([float(argument)])).tolist())


def add_up_five_times(communicator, argument):
    """One job after another in the same process, each with a world of its own."""
    name, _, value = argument.partition(":")
    for number in range(5):
        world = connect(rank=communicator.rank, size=2, job=f"{name} {number}", timeout_seconds=30)
        say(world.all_reduce(np.array([float(value) + number])).tolist())
        world.close()


def hang(communicator, argument):
    """Meet once; then the last rank does something else for long, the others wait for it."""
    communicator.barrier("start")
    if communicator.rank == communicator.size - 1:
        communicator.note("sleeping on purpose")
        say("hanging")
        sleep_long(float(argument))
    communicator.all_reduce(np.zeros(4, np.float32), name="grads")
    say("done")


def sleep_long(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:  # a signal ends one sleep early
        time.sleep(0.05)


def leave_early(communicator, argument):
    communicator.barrier("start")
    if communicator.rank == 1:
        if argument == "close":
            communicator.close()
        else:
            os._exit(0)
    else:
        communicator.barrier("end")


def interrupted(communicator, _):
    communicator.barrier("start")
    if communicator.rank == 0:
        try:
            say("waiting")
            communicator.barrier("never")
        except KeyboardInterrupt:
            communicator.abort("KeyboardInterrupt")
            say("interrupted")
    else:
        sleep_long(1.5)
        communicator.barrier("never")


def main():
    rank, size, job, what, argument, timeout, report = sys.argv[1:8]
    logging.basicConfig(level=logging.WARNING, stream=sys.stdout, format="%(message)s")
    warnings.simplefilter("error")
    try:
        communicator = connect(
            rank=int(rank),
            size=int(size),
            job=job,
            timeout_seconds=float(timeout),
            stall_report_seconds=float(report),
        )
        globals()[what](communicator, argument)
        communicator.close()
    except UnifiedIpuError as error:
        say(f"{type(error).__name__}: {error}")
        sys.exit(3)


if __name__ == "__main__":
    main()
