"""Several programs in one session: each as if it were alone, also on one model."""

from __future__ import annotations

from typing import Any, Dict, List, Tuple

import numpy as np
import pytest

from unified_ipu.adapter import optim
from unified_ipu.session import Program, Session
from unified_ipu.testing import samples
from unified_ipu.testing.oracle import gradient_of, outputs_of
from unified_ipu.testing.ranks import Rank, Ranks
from unified_ipu.testing.scenarios import batch_plan
from unified_ipu.testing.subject import Model
from unified_ipu.testing.suite import AdapterSuite, relative_error

KINDS = ("mlp", "linear")
Bits = Dict[str, bytes]


def compile_kind(rank: Rank, session: Session, kind: str) -> Tuple[Model, Program]:
    """One of two small programs that have nothing in common."""
    if kind == "mlp":
        weights, biases = samples.mlp_values()
        model = rank.subject.mlp(weights, biases)
        optimizer: Any = optim.Adam(lr=0.05)
    else:
        model = rank.subject.linear(np.full((3, 2), 0.5), np.zeros(2))
        optimizer = optim.SGD(lr=0.05, momentum=0.9)
    program = rank.compile(
        session,
        model,
        loss=rank.subject.mean_squared_error(),
        optimizer=optimizer,
    )
    return model, program


def bits_of(model: Model, program: Program) -> Bits:
    """Bits of all weights."""
    return {name: value.tobytes() for name, value in model.canonical(program.weights()).items()}


def train_kinds(rank: Rank, *, kinds: Tuple[str, ...], close_after: int = -1) -> Dict[str, Any]:
    """Let programs take turns on the same calls; losses and bits of each.

    Args:
        rank: Of the scenario.
        kinds: Programs, in the order of compiling.
        close_after: Updates after which the last program is closed; -1 for never.
    """
    x, y = samples.regression(14)
    with rank.session(batch_plan(4, 2, data={"shuffle": True})) as session:
        compiled = {kind: compile_kind(rank, session, kind) for kind in kinds}
        losses: Dict[str, List[float]] = {kind: [] for kind in kinds}
        loader = session.loader(rank.arrays(x, y))
        for _ in range(2):
            for call in loader:
                held = call.held()
                for kind, (_, program) in list(compiled.items()):
                    losses[kind].append(program.step(held).loss)
                if len(losses[kinds[0]]) == close_after:
                    compiled.pop(kinds[-1])[1].close()
        bits = {kind: bits_of(*each) for kind, each in compiled.items()}
    return {"losses": losses, "bits": bits}


def save_two(rank: Rank, *, folder: str) -> Dict[str, Any]:
    """Save two programs in one checkpoint, go on, restore both, go on again."""
    x, y = samples.regression(4)
    rows = slice(2 * rank.world.rank, 2 * rank.world.rank + 2)
    with rank.session() as session:
        compiled = {kind: compile_kind(rank, session, kind) for kind in KINDS}

        def step() -> Dict[str, Bits]:
            for _, program in compiled.values():
                program.step(rank.floats((x[rows], y[rows])))
            return {kind: bits_of(*each) for kind, each in compiled.items()}

        programs: Dict[str, Any] = {kind: program for kind, (_, program) in compiled.items()}
        first = step()
        session.save(folder, **programs)
        second = step()
        session.restore(folder, **programs)
        restored = {kind: bits_of(*each) for kind, each in compiled.items()}
        return {"first": first, "second": second, "restored": restored, "again": step()}


def play(rank: Rank, *, rounds: int) -> List[Dict[str, Any]]:
    """Two programs on one model, each with parameters of its own and the opposite loss."""
    x, _ = samples.regression(6)
    weights, biases = samples.mlp_values((3, 4, 1))
    with rank.session(batch_plan(6, 2)) as session:
        model = rank.subject.mlp(weights, biases)
        programs = [
            rank.compile(
                session,
                model,
                loss=rank.subject.product_loss(),
                optimizer=optim.Adam(lr=0.05),
                trainable=[model.names[f"weight.{layer}"], model.names[f"bias.{layer}"]],
            )
            for layer in range(2)
        ]
        lower = session.loader(rank.arrays(x, samples.ones(6)))
        raise_ = session.loader(rank.arrays(x, -samples.ones(6)))
        found = []
        for _ in range(rounds):
            for program, loader in zip(programs, (lower, raise_)):
                for call in loader:
                    program.step(call)
                found.append(model.canonical(program.weights()))
        # Both programs see one set of weights, and so does the user.
        for program in programs:
            assert relative_error(model.canonical(program.weights()), found[-1]) == 0.0
        return found


def played(rounds: int) -> List[Dict[str, Any]]:
    """The game in plain numpy: the first layer lowers the mean output, the second raises it."""
    x, _ = samples.regression(6)
    values = samples.canonical_mlp((3, 4, 1))
    settings, found = optim.Adam(lr=0.05), []
    moments = {name: (np.zeros_like(value), np.zeros_like(value)) for name, value in values.items()}
    for turn in range(rounds):
        for layer, sign in ((0, 1.0), (1, -1.0)):
            by_outputs = np.full_like(outputs_of(values, x), sign / len(x))
            gradients = gradient_of(values, x, by_outputs)
            for name in (f"weight.{layer}", f"bias.{layer}"):
                g, (m, v) = gradients[name], moments[name]
                m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
                moments[name] = (m, v)
                m_hat, v_hat = m / (1.0 - 0.9 ** (turn + 1)), v / (1.0 - 0.999 ** (turn + 1))
                values[name] = values[name] - settings.lr * m_hat / (np.sqrt(v_hat) + 1e-8)
            found.append(dict(values))
    return found


class ConcurrencySuite(AdapterSuite):
    """Required of every adapter: programs of one session do not disturb each other."""

    @pytest.mark.parametrize("size", [1, 2])
    def test_programs_that_take_turns_train_as_each_would_alone(
        self, ranks: Ranks, size: int
    ) -> None:
        together = ranks.run(train_kinds, size, kinds=KINDS)
        for kind in KINDS:
            alone = ranks.run(train_kinds, size, kinds=(kind,))
            for ours, theirs in zip(together, alone):
                assert len(theirs["losses"][kind]) == 8
                assert ours["losses"][kind] == theirs["losses"][kind]
                assert ours["bits"][kind] == theirs["bits"][kind]

    def test_a_program_goes_on_when_another_is_closed(self, ranks: Ranks) -> None:
        alone = ranks.run(train_kinds, 2, kinds=KINDS[:1])
        for ours, theirs in zip(ranks.run(train_kinds, 2, kinds=KINDS, close_after=3), alone):
            assert len(ours["losses"][KINDS[1]]) == 3
            assert ours["bits"] == theirs["bits"]

    @pytest.mark.parametrize("size", [1, 2])
    def test_two_programs_play_against_each_other_on_one_model(
        self, ranks: Ranks, size: int
    ) -> None:
        expected = played(5)
        for found in ranks.run(play, size, rounds=5):
            assert len(found) == len(expected) == 10
            for got, wanted in zip(found, expected):
                assert relative_error(got, wanted) < self.tolerance_of(ranks)

    def test_l3_1_two_programs_come_back_from_one_checkpoint(
        self, ranks: Ranks, tmp_path: Any
    ) -> None:
        for result in ranks.run(save_two, 2, folder=str(tmp_path)):
            assert result["second"] != result["first"]
            assert result["restored"] == result["first"]
            assert result["again"] == result["second"], "the slots came back too"
