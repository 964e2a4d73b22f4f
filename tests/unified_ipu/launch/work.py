"""Functions that the tests run on ranks."""

from __future__ import annotations

import os
import time
from pathlib import Path


def place(*args):
    from unified_ipu.world import current_environment, read_world

    world = read_world(current_environment())
    return [world.rank, world.world_size, os.getpid(), list(args)]


def fail(folder, how):
    from unified_ipu.world import current_environment, read_world

    rank = read_world(current_environment()).rank
    Path(folder, str(os.getpid())).touch()
    if rank == 1:
        while len(list(Path(folder).iterdir())) < 3:
            time.sleep(0.01)
        if how == "raise":
            raise ValueError("bad sample 7")
        if how == "exit":
            os._exit(3)
        os.kill(os.getpid(), 9)
    time.sleep(99)


def handed_over():
    from unified_ipu.world import current_environment, read_world

    handover = read_world(current_environment()).handover
    if handover.plan is None:
        return None, handover.settings
    return Path(handover.plan).read_text(encoding="utf-8"), handover.settings


def array(size):
    import numpy as np

    return np.arange(size, dtype=np.float64)


def unpicklable():
    return (number for number in range(3))


def say(text):
    print(text)


class Steps:
    @staticmethod
    def double(number):
        return 2 * number


def matmul():
    import torch

    return float((torch.ones(600, 600) @ torch.ones(600, 600)).sum())


def one_of_each():
    """One rank uses TensorFlow, the other torch."""
    from unified_ipu.world import current_environment, read_world

    if read_world(current_environment()).rank == 1:
        return matmul()
    import tensorflow as tf

    numbers = tf.data.Dataset.range(100).map(lambda x: x + 1, num_parallel_calls=2).prefetch(2)
    return int(sum(int(number) for number in numbers))
