"""Runs that are killed and started again come to what an unbroken run comes to, bit for bit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Dict, List, Tuple

import numpy as np
import pytest

HERE = Path(__file__).parent
PATH = os.pathsep.join([str(HERE.parent / "third_party" / "unified_ipu_numpy_sample"), *sys.path])
SECONDS_TO_END = 60.0


def command(folder, world, plan, options):
    settings = {"mesh.data": world, "seed": 1, **plan}
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    script = [str(HERE / "interrupted.py"), str(folder), *map(str, options)]
    return [sys.executable, "-m", "unified_ipu.cli.main", "run", *words, *script]


@contextmanager
def started(folder, world, plan, *options):
    """Start a run; it is ended at the latest when the block is left."""
    folder.mkdir(exist_ok=True)
    with (folder / "output").open("ab") as output:
        process = subprocess.Popen(
            command(folder, world, plan, options),
            stdout=output,
            stderr=output,
            env={**os.environ, "PYTHONPATH": PATH},
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(SECONDS_TO_END)


def finished(folder, world, plan, *options):
    """Run to the end; whether it was a good one."""
    with started(folder, world, plan, *options) as process:
        return process.wait(SECONDS_TO_END) == 0


def ledger(folder, world):
    """Give ``{update: (epoch, ids of all ranks)}``; an update that ran twice had the same ids."""
    found: Dict[int, Tuple[int, List[int]]] = {}
    for rank in range(world):
        mine: Dict[int, Tuple[int, List[int]]] = {}
        for line in (folder / f"ledger-{rank}").read_text().splitlines():
            update, epoch, *ids = map(int, line.split())
            assert mine.setdefault(update, (epoch, ids)) == (epoch, ids)
        for update, (epoch, ids) in mine.items():
            found.setdefault(update, (epoch, []))[1].extend(ids)
    return found


def weights(folder):
    with np.load(folder / "weights.npz") as file:
        return {name: file[name].tobytes() for name in file.files}


def output(folder):
    return (folder / "output").read_text()


@pytest.mark.case("O-M4")
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("world", "total", "dying_rank", "own_samples"),
    [(1, 1, 0, 4), (1, 2, 0, 3), (2, 2, 0, 2)],
    ids=["one sample an update", "in the middle of an accumulation", "two ranks"],
)
def test_l3_5_a_run_killed_in_its_second_epoch_goes_on_in_the_order_of_that_epoch(
    tmp_path, world, total, dying_rank, own_samples
):
    plan = {"batch.global_batch_size": total, "batch.micro_batch_size": 1}
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert finished(whole, world, plan)
    assert not finished(broken, world, plan, "--die", dying_rank, 1, own_samples)
    assert not (broken / "weights.npz").exists()
    assert finished(broken, world, plan)
    expected = ledger(whole, world)
    assert ledger(broken, world) == expected
    assert weights(broken) == weights(whole)
    per_epoch = 10 // total
    for epoch in range(3):
        updates = range(epoch * per_epoch, (epoch + 1) * per_epoch)
        assert sorted(one for update in updates for one in expected[update][1]) == list(range(10))
    orders = [[expected[u][1] for u in range(e * per_epoch, (e + 1) * per_epoch)] for e in range(3)]
    assert orders[1] != orders[0]
    assert output(broken).count("resumed from") == 1
    assert output(broken).count("epoch 3/3: loss") == 1
    assert output(broken).count("10 of 10 samples, each once") >= 2


@pytest.mark.timeout(120)
@pytest.mark.parametrize("seed", [1, 2])
def test_l3_5_a_run_killed_twice_at_random_moments_equals_an_unbroken_one(tmp_path, seed):
    rng = np.random.default_rng(seed)
    world, size, epochs = 2, 61, 3
    plan = {"batch.global_batch_size": 6, "batch.micro_batch_size": 2}
    options = ("--size", size, "--epochs", epochs)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert finished(whole, world, plan, *options)
    lines = 0
    for _ in range(2):
        lines += int(rng.integers(1, 10))
        victim, delay = int(rng.integers(world)), float(rng.uniform(0.0, 0.02))
        for rank in range(world):
            (broken / f"pid-{rank}").unlink(missing_ok=True)
        with started(broken, world, plan, *options) as process:
            kill_when(broken, lines, victim, delay)
            process.wait(SECONDS_TO_END)
        lines = len((broken / "ledger-0").read_text().splitlines())
    assert finished(broken, world, plan, *options)
    assert ledger(broken, world) == ledger(whole, world)
    assert weights(broken) == weights(whole)
    assert output(broken).count("61 of 61 samples, each once") >= epochs - 1


def kill_when(folder, lines, victim, delay):
    """Kill a rank some time after it has written so many lines."""
    path, pid = folder / f"ledger-{victim}", folder / f"pid-{victim}"
    end = time.monotonic() + SECONDS_TO_END
    while time.monotonic() < end:
        if pid.exists() and path.exists() and path.read_text().count("\n") >= lines:
            break
        time.sleep(0.002)
    time.sleep(delay)
    try:
        os.kill(int(pid.read_text()), signal.SIGKILL)
    except ProcessLookupError:
        pytest.fail(f"the run was over before it could be killed: {output(folder)[-2000:]}")
