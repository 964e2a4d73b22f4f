"""Two processes of two replicas: PopDistStrategy, whose Keras divides and multiplies losses."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Dict, Iterator, Tuple

import numpy as np
import pytest

import unified_ipu as ui
from tests.adapters.unified_ipu_tensorflow.ipu.sessions import (
    HOST,
    Case,
    device,
    distance,
    keras,
    mlp,
    numbers,
)
from unified_ipu.adapter import Place
from unified_ipu_tensorflow.adapter import TensorflowAdapter
from unified_ipu_tensorflow.emulated.ipu.config import configured
from unified_ipu_tensorflow.ipu.building import device_scope

pytestmark = pytest.mark.timeout(300)


def penalised() -> Any:
    return mlp(kernel_regularizer=keras.regularizers.L2(0.1))


CASE = Case(numbers(120), 6, penalised, loss=keras.losses.MeanSquaredError)
PLAN: Dict[str, Any] = device(
    **{"batch.updates_per_call": 2, "batch.global_batch_size": 32, "batch.micro_batch_size": 4}
)


def trained(world: Any) -> Tuple[Any, Any, Any, Any]:
    with ui.Session(ui.Plan().replace(PLAN), world=world, argv=[]) as session:
        with session.scope():
            model = CASE.model()
        if world.rank == 1:  # PopDistStrategy sends those of the first process
            model.set_weights([w + 1.0 for w in model.get_weights()])
        program = session.compile(model, loss=CASE.loss(), optimizer=CASE.optimizer())
        loader = session.loader(ui.data.arrays(*CASE.data))
        records = []
        for _ in range(2):
            records += [program.step(call) for call in loader]
        seen = program.predict(session.loader(numbers(11), train=False), gather="all")
        return (
            model.get_weights(),
            [(r.update, r.samples, r.weight, r.lr, r.updates, r.skipped) for r in records],
            [float(r.loss) for r in records],
            seen,
        )


def test_two_processes_make_the_updates_of_one_host(warm_pool):
    plan = {key: value for key, value in PLAN.items() if not key.startswith("ipu.")}
    host = CASE.train({**plan, **HOST})
    ranks = warm_pool.run(trained, 2, timeout=240.0)
    for weights, exact, losses, _ in ranks:
        assert exact == host.exact
        assert np.allclose(losses, host.losses, rtol=1e-5)
        assert distance(weights, host.weights) < 5e-5
    assert distance(ranks[0][0], ranks[1][0]) == 0.0
    assert np.array_equal(ranks[0][3], ranks[1][3])
    expected = host.model(numbers(11)[0]).numpy()
    assert np.allclose(ranks[0][3], expected, rtol=1e-3, atol=1e-4)


def built_apart(world: Any) -> str:
    with ui.Session(ui.Plan().replace(PLAN), world=world, argv=[]) as session:
        try:
            with session.scope():
                keras.Sequential([keras.Input((3,)), keras.layers.Dense(1 + world.rank)])
        except ui.errors.CollectiveError as error:
            return str(error)
    return ""


def test_l4_2_processes_that_build_other_models_are_told_so_where_variables_are_made(warm_pool):
    for message in warm_pool.run(built_apart, 2, timeout=60.0):
        assert (
            "rank 0: all_reduce sum float32 (3, 1) 'device sum a variable where it is made'"
            in message
        )
        assert "rank 1: all_reduce sum float32 (3, 2)" in message


def test_a_process_with_another_number_of_replicas_is_configured_anew():
    found = []
    for replicas in (2, 1):  # native calls are the same for both: popdist tells the rest
        plan = ui.Plan().replace(
            {**PLAN, "mesh.data": 2 * replicas, "ipu.replicas_per_process": replicas}
        )
        place = Place(replicas=range(replicas), num_replicas=2 * replicas)
        lowering = TensorflowAdapter().lower(plan, plan.target)
        with device_scope(plan, place, lowering):
            values = configured()
            assert values is not None
            found.append(values["auto_select_ipus"])
    assert found == [2, 1]


@pytest.fixture
def fast_switches() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_ranks_that_are_threads_share_the_system_of_their_process(fast_switches):
    del fast_switches
    plan = ui.Plan().replace({**PLAN, "mesh.data": 4, "ipu.replicas_per_process": 2})
    lowering = TensorflowAdapter().lower(plan, plan.target)

    def enter(rank: int) -> None:
        place = Place(rank=rank, replicas=range(2 * rank, 2 * rank + 2), num_replicas=4)
        for _ in range(100):
            with device_scope(plan, place, lowering):
                pass

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(enter, range(2))) == [None, None]
