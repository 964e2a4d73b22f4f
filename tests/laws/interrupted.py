"""A training that can be killed at any moment and started again; writes down what it does.

interrupted.py FOLDER [--size N] [--epochs E] [--die RANK EPOCH SAMPLES]

``FOLDER/ledger-RANK`` gets a line ``update epoch ids`` after each call, ``FOLDER/weights.npz`` the
final weights. With ``--die`` a rank kills itself when it has read so many samples of that epoch.
"""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path
from typing import Any, List

import numpy as np

import unified_ipu as ui
from unified_ipu_numpy import MeanSquaredError, Mlp


class Samples:
    """A map dataset that notes which samples this rank has read."""

    def __init__(self, size: int) -> None:
        self.x = np.random.default_rng(0).normal(size=(size, 3))
        self.read: List[int] = []
        self.num_read = 0
        self.dies_after = -1

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Any:
        self.read.append(index)
        self.num_read += 1
        if self.num_read == self.dies_after:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.x[index], self.x[index, :1]


class Ledger(ui.Callback):
    """Appends a line a call."""

    def __init__(self, path: Path, samples: Samples, dies_in: int, dies_after: int) -> None:
        self.path, self.samples = path, samples
        self.dies_in, self.dies_after = dies_in, dies_after

    def on_epoch_start(self, context: ui.FitContext, epoch: int) -> None:
        """Count the samples of the epoch in which to die."""
        self.samples.num_read = 0
        self.samples.dies_after = self.dies_after if epoch == self.dies_in else -1

    def on_call_end(self, context: ui.FitContext, record: ui.Record) -> None:
        """Write one line at once."""
        ids = " ".join(map(str, self.samples.read))
        self.samples.read.clear()
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{record.update} {record.epoch} {ids}\n")


def main() -> None:
    """Train, from the latest checkpoint if there is one."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--size", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--die", type=int, nargs=3, default=[-1, -1, -1])
    arguments = parser.parse_args()
    folder, (rank, epoch, count) = arguments.folder, arguments.die
    with ui.Session() as session:
        samples = Samples(arguments.size)
        program = session.compile(
            Mlp((3, 8, 1), seed=1, dropout=0.25),
            loss=MeanSquaredError("mean"),
            optimizer=ui.optim.Adam(lr=0.01),
            schedule=lambda update: 1.0 / (1 + update),
        )
        path = folder / f"ledger-{session.rank}"
        path.touch()
        (folder / f"pid-{session.rank}").write_text(str(os.getpid()))
        dies_in = epoch if rank == session.rank else -1
        program.fit(
            session.loader(samples),
            epochs=arguments.epochs,
            every=1,
            callbacks=[Ledger(path, samples, dies_in, count)],
            checkpoint=folder / "run",
            resume="auto",
        )
        if session.is_first:
            np.savez(folder / "weights.npz", **program.weights())


if __name__ == "__main__":
    main()
