"""The laws on emulated devices, with the kit's models: literals for every adapter alike."""

from __future__ import annotations

from typing import Any, Dict

import numpy as np
import pytest
from unified_ipu_numpy_conformance import NumpySubject

from unified_ipu import optim
from unified_ipu.testing import PoolRanks, Ranks, ThreadRanks
from unified_ipu.testing.scenarios import Training, batch_plan, halving, make, train
from unified_ipu_onnx.conformance import OnnxSubject
from unified_ipu_torch.conformance import TorchSubject

pytestmark = pytest.mark.timeout(120)

COLUMN = np.arange(1, 17, dtype=np.float32).reshape(-1, 1)


@pytest.fixture(params=[NumpySubject, TorchSubject, OnnxSubject])
def ranks(request: Any) -> Ranks:
    """Ranks whose plans say ``ipu-emulated``: threads where they may be, else warm processes."""
    if request.param is NumpySubject:
        return ThreadRanks(NumpySubject(), "ipu-emulated")
    return PoolRanks(request.param(), request.getfixturevalue("warm_pool"), "ipu-emulated")


def plan(total: int, micro: int, *, replicas: int = 1, local: int = 1, **tables: Any) -> Dict:
    batch = {"remainder": "pad", **tables.pop("batch", {})}
    return batch_plan(
        total,
        micro,
        batch=batch,
        mesh={"data": replicas},
        ipu={"replicas_per_process": local},
        **tables,
    )


# Rows of a micro-batch, replicas, those of a process, updates of a call.
SPLITS = ((16, 1, 1, 1), (4, 1, 1, 2), (2, 2, 2, 1), (2, 4, 2, 1), (1, 2, 1, 3), (4, 4, 4, 1))


@pytest.mark.parametrize(
    ("reduction", "lr", "weight"), [("mean", 0.001, 0.813), ("sum", 0.0001, 0.7008)]
)
def test_l1_3_every_split_over_devices_gives_one_update(ranks, reduction, lr, weight):
    # The gradient is 187, 2992 as a sum; a device that divides by itself would give others.
    for micro, replicas, local, updates in SPLITS:
        run = Training(
            make("linear", weight=[[1.0]], dtype="float32"),
            optim.SGD(lr=lr),
            loss=make("mean_squared_error"),
            data=(COLUMN, np.zeros((16, 1), np.float32)),
            plan=plan(
                16,
                micro,
                replicas=replicas,
                local=local,
                update={"reduction": reduction},
                batch={"updates_per_call": updates},
            ),
        )
        for trained in ranks.run(train, replicas // local, run=run):
            assert trained.weights["weight"].item() == pytest.approx(weight, rel=1e-6)
            (record,) = trained.records
            assert (record.weight, record.samples, record.updates) == (16.0, 16, 1)
            assert record.loss == pytest.approx(93.5, rel=1e-6)


def test_l2_9_padding_counts_nothing_and_adds_no_update(ranks):
    # 1, 2 | 3, 4 | 5: the means of 2 w x^2 are 5 w, 25 w and 50 w, the last over the one real row.
    run = Training(
        make("linear", weight=[[1.0]], dtype="float32"),
        optim.SGD(lr=0.01),
        loss=make("mean_squared_error"),
        data=(COLUMN[:5], np.zeros((5, 1), np.float32)),
        plan=plan(2, 1, replicas=2, local=2, batch={"updates_per_call": 2}),
    )
    (trained,) = ranks.run(train, 1, run=run)
    assert trained.weights["weight"].item() == pytest.approx(0.95 * 0.75 * 0.5, rel=1e-6)
    assert [record.updates for record in trained.records] == [2, 1]
    assert [record.samples for record in trained.records] == [4, 1]
    assert trained.certificates == ["5 of 5 samples, each once, 1 rows of padding"]
    assert trained.counts["samples_padded"] == 1


def test_l1_6_l2_11_a_call_leaves_out_what_weighs_nothing_and_keeps_its_rate(ranks):
    # Six updates of one row, calls of four; the third, fourth and fifth have no counted target.
    targets = np.array([0, 0, -1, -1, -1, 0])
    run = Training(
        make("linear", weight=[[0.0, 0.0]], bias=[0.0, 0.0], dtype="float32"),
        optim.SGD(lr=1.0),
        loss=make("cross_entropy", ignore_index=-1),
        data=(np.zeros((6, 1), np.float32), targets),
        plan=plan(1, 1, batch={"updates_per_call": 4}),
        options={"schedule": halving},
    )
    (trained,) = ranks.run(train, 1, run=run)
    assert [(record.updates, record.skipped) for record in trained.records] == [(2, 2), (1, 1)]
    assert [record.lr for record in trained.records] == [halving(0), halving(2)]
    assert trained.happened == 3
    bias = np.zeros(2)
    for rate in (halving(0), halving(0), halving(2)):
        likelihood = np.exp(bias) / np.exp(bias).sum()
        bias -= rate * (likelihood - np.array([1.0, 0.0]))
    np.testing.assert_allclose(trained.weights["bias"], bias, rtol=1e-6)
    assert trained.certificates == ["6 of 6 samples, each once"]


def evaluated(rank: Any, *, local: int) -> Any:
    """Loss and predictions of seven rows."""
    with rank.session(plan(4 * local, 2, replicas=local, local=local)) as session:
        model = rank.subject.linear([[2.0]], dtype="float32")
        program = session.compile(
            model.native,
            loss=rank.subject.mean_squared_error(),
            optimizer=optim.SGD(lr=1.0),
            adapter=rank.subject.adapter,
        )
        loader = session.loader((COLUMN[:7], np.zeros((7, 1), np.float32)), train=False)
        return program.evaluate(loader)["loss"], program.predict(loader)[:, 0].tolist()


@pytest.mark.parametrize("local", [1, 2])
def test_l6_6_the_end_of_an_evaluation_is_filled_and_cut_off_again(ranks, local):
    ((loss, outputs),) = ranks.run(evaluated, 1, local=local)
    assert loss == pytest.approx(4.0 * 140.0 / 7.0, rel=1e-6)  # 1 + 4 + ... + 49
    assert outputs == [2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 14.0]
