"""Starts ranks over c10d as processes, as launchers do; for tests."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import uuid
from pathlib import Path

from unified_ipu.world import World, world_variables

SCRIPT = Path(__file__).parent / "c10d_rank.py"


def environment(**changes):
    kept = {key: value for key, value in os.environ.items() if "UNIFIED_IPU" not in key}
    return {**kept, "OMP_NUM_THREADS": "1", **changes}


def start(command, variables):
    return subprocess.Popen(
        [sys.executable, *map(str, command)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment(**variables),
    )


def start_all(size, what, argument="", *, timeout=30.0, **variables):
    job = uuid.uuid4().hex
    return [
        start(
            [SCRIPT, what, timeout, argument],
            {**world_variables(World(rank, rank, size, size, job=job)), **variables},
        )
        for rank in range(size)
    ]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def start_on_two_hosts(what, argument):
    """Four ranks as two agents of torchrun start them, two a host."""
    places = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "WORLD_SIZE": "4"}
    return [
        start(
            [SCRIPT, what, 30.0, argument],
            {
                **places,
                "RANK": str(rank),
                "LOCAL_RANK": str(rank % 2),
                "LOCAL_WORLD_SIZE": "2",
                "GROUP_RANK": str(rank // 2),
            },
        )
        for rank in range(4)
    ]


def finish(processes, seconds=60):
    """Output and exit status of each; whatever happens, none is left."""
    try:
        return [
            (process.communicate(timeout=seconds)[0], process.returncode) for process in processes
        ]
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.communicate()


def await_line(process, line):
    for text in process.stdout:
        if text.strip() == line:
            return
    raise AssertionError(f"{line!r} was never printed")
