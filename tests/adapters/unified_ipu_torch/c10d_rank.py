"""One rank over c10d, for tests: ``c10d_rank.py WHAT [SECONDS]``, its place in the environment."""

from __future__ import annotations

import logging
import os
import sys
import time
import warnings

import numpy as np

from unified_ipu.errors import UnifiedIpuError
from unified_ipu.plan import CommsSettings, TensorSpec, plan_buckets
from unified_ipu.world import read_world
from unified_ipu_torch.c10d import connect


def say(text):
    print(text, flush=True)  # the parent reads it


def add_up_five_times(communicator, world):
    """One session after another in the same job."""
    gathered = communicator.all_gather(np.arange(2 * communicator.rank))
    long = communicator.all_reduce(np.full(300_000, communicator.rank + 1.0, np.float32))
    say([[len(part) for part in gathered], float(long[0]), type(communicator).__name__])
    say(communicator.all_reduce(np.array([float(world.rank)])).tolist())
    communicator.close()
    for number in range(1, 5):
        again = connect(world=world, timeout_seconds=30)
        say(again.all_reduce(np.array([float(world.rank + number)])).tolist())
        again.close()


def hang(communicator, world):
    """Meet once; then one rank does something else for long, the others wait for it."""
    communicator.barrier("start")
    if world.rank == int(sys.argv[3]):
        say("hanging")
        time.sleep(60)
    communicator.all_reduce(np.zeros(4, np.float32), name="grads")


def sum_and_hang(communicator, world):
    """Sum gradients by host; then one rank does something else for long, the others wait for it."""
    comms = CommsSettings(algorithm="hierarchical", timeout_seconds=float(sys.argv[2]))
    communicator.arrange(comms, node_rank=world.node_rank, deterministic=False)
    plan = plan_buckets([TensorSpec("w", (1000,), "float32")], 2**20)
    reducer = communicator.reducer(plan, 1)
    reducer.gradients[0][:1000] = world.rank + 1
    done = reducer.reduce(contributes=True, divide=lambda header: 0.1)
    say([done.squared_norm, float(reducer.gradients[0][999])])
    if world.rank == int(sys.argv[3]):
        say("hanging")
        time.sleep(60)
    reducer.reduce(contributes=True, divide=lambda header: 0.1)


def leave(communicator, world):
    communicator.barrier("start")
    if world.rank == 1:
        communicator.close()
    else:
        communicator.barrier("end")


def main():
    logging.basicConfig(level=logging.WARNING, stream=sys.stdout, format="%(message)s")
    warnings.simplefilter("error")
    world = read_world(os.environ)
    try:
        communicator = connect(
            world=world, timeout_seconds=float(sys.argv[2]), stall_report_seconds=1.0
        )
        globals()[sys.argv[1]](communicator, world)
        communicator.close()
    except UnifiedIpuError as error:
        say(f"{type(error).__name__}: {error}")
        sys.exit(3)


if __name__ == "__main__":
    main()
