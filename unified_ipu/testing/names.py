"""Scenarios of ``names=``: tensors under other names, and ranks whose axes differ."""

from __future__ import annotations

from typing import Any, Dict, List

import numpy as np

from unified_ipu.adapter import optim
from unified_ipu.testing import samples
from unified_ipu.testing.ranks import Rank
from unified_ipu.testing.scenarios import batch_plan, make

KERNEL = [[1.0, -2.0, 0.5], [3.0, 0.25, -1.0], [0.0, 2.0, 4.0]]
ROWS = np.array([[1.0, 0.0, 2.0], [0.5, -1.0, 1.0], [3.0, 1.0, 0.0], [-2.0, 0.5, 1.5]])
TARGETS = np.array([[1.0, 2.0, 0.0], [0.0, -1.0, 1.0], [2.0, 0.5, 1.0], [1.0, 0.0, -3.0]])


def train_renamed(rank: Rank) -> Dict[str, Any]:
    """Train the small MLP under names and axes of the kit's for three updates."""
    weights, biases = samples.mlp_values()
    x, y = samples.regression(12)
    with rank.session(batch_plan(4, 1)) as session:
        model = make("mlp", weights=weights, biases=biases).on(rank.subject)
        program = rank.compile(
            session,
            model,
            loss=rank.subject.mean_squared_error(),
            optimizer=optim.SGD(lr=0.1, momentum=0.5),
            names={
                own: ["kit/" + name, "IO->OI"] if "weight" in name else "kit/" + name
                for name, own in model.names.items()
            },
        )
        for call in session.loader(rank.arrays(x, y)):
            program.step(call)
        found = program.weights()
        program.load_weights(found)
        return {
            "program": found,
            "own": model.canonical(rank.subject.read(model)),
            "transposed": sorted(model.transposed),
        }


def train_turned(rank: Rank) -> Dict[str, Any]:
    """Train one matrix that odd ranks keep with its axes the other way round.

    Even ranks compute ``x @ kernel``, odd ones ``x @ kernel.T``. The loss is their product with the
    targets, over two rows a rank, one at a time.
    """
    is_odd = rank.world.rank % 2 == 1
    kernel = np.array(KERNEL)
    rows = slice(2 * rank.world.rank, 2 * rank.world.rank + 2)
    with rank.session(batch_plan(4, 1)) as session:
        model = rank.subject.linear(kernel.T if is_odd else kernel)
        own = model.names["weight"]
        program = rank.compile(
            session,
            model,
            loss=rank.subject.product_loss(),
            optimizer=optim.SGD(lr=0.5, momentum=0.5),
            names={own: ["turned", "AB->BA"] if is_odd else "turned"},
        )
        seen: List[Any] = []
        for _ in range(2):
            program.step(
                rank.floats([(ROWS[[k]], TARGETS[[k]]) for k in range(rows.start, rows.stop)])
            )
            (found,) = program.weights().values()
            seen.append(found.T if "weight" in model.transposed else found)
        names = list(program.weights())
    mine = model.canonical(rank.subject.read(model))["weight"]
    return {"seen": seen, "names": names, "own": mine.T if is_odd else mine}
