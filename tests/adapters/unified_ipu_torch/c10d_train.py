"""Trains a little over whatever world there is; prints how it sums, samples and weights."""

from __future__ import annotations

import numpy as np
import torch

import unified_ipu as ui


def main():
    with ui.Session() as session:
        torch.manual_seed(session.rank)  # the ranks' models differ until compile
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        if session.world_size == 1:
            torch.manual_seed(0)
            model = torch.nn.Sequential(
                torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)
            )
        program = session.compile(
            model,
            loss=torch.nn.MSELoss(),
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        )
        rng = np.random.default_rng(5)
        x = rng.normal(size=(250, 4)).astype(np.float32)
        train = session.loader(ui.data.arrays(x, x.sum(axis=1, keepdims=True)))
        program.fit(train, epochs=2, callbacks=[])
        total = sum(float(np.abs(value).sum()) for value in program.weights().values())
        communicator = session.communicator("data")
        name = getattr(communicator, "algorithm", type(communicator).__name__)
        session.print("RESULT", name, session.world_size, train.certificate(), f"{total:.5f}")


if __name__ == "__main__":
    main()
