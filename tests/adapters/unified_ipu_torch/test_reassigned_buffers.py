"""Buffers that a model assigns anew in forward are synchronised by their names."""

from __future__ import annotations

import numpy as np
import pytest


def count_updates(world):
    """Train two updates; return the counters that this rank's own model then holds."""
    import torch

    import unified_ipu as ui

    class Counting(torch.nn.Module):
        """Counts its passes in new tensors, and on each rank by another amount."""

        count: torch.Tensor
        seen: torch.Tensor

        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(2, 1)
            self.register_buffer("count", torch.zeros((), dtype=torch.int64))
            self.register_buffer("seen", torch.zeros(3))

        def forward(self, x):
            self.count = self.count + 1 + world.rank
            self.seen = self.seen + float(1 + world.rank)
            return self.linear(x)

    plan = ui.Plan().replace(
        mesh={"data": 2}, batch={"global_batch_size": 4, "micro_batch_size": 2}
    )
    with ui.Session(plan, world=world, argv=[]) as session:
        model = Counting()
        program = session.compile(
            model, loss=torch.nn.MSELoss(), optimizer=torch.optim.SGD(model.parameters(), lr=0.1)
        )
        x = np.arange(16, dtype=np.float32).reshape(8, 2)
        program.fit(session.loader(ui.data.arrays(x, x[:, :1])), epochs=1)
        return model.count.item(), model.seen.tolist(), str(model.count.dtype)


@pytest.mark.case("O-M2")
@pytest.mark.timeout(120)
def test_after_an_epoch_every_rank_holds_the_buffers_of_the_first(warm_pool):
    # Rank 1 counted to 4 by itself.
    expected = (2, [2.0, 2.0, 2.0], "torch.int64")
    assert warm_pool.run(count_updates, size=2, timeout=60) == [expected, expected]
