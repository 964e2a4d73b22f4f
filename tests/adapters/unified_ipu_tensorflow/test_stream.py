"""tf.data streams behind loaders; TensorFlow runs in other processes only."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from unified_ipu.comms import connect, local_group
from unified_ipu.data import Loader, stream
from unified_ipu.errors import DataError
from unified_ipu.plan import BatchPlan

pytestmark = [pytest.mark.timeout(120), pytest.mark.slow]

HERE = Path(__file__).parent


def make_loader(communicator, function, batch):
    return Loader(
        stream(f"tf_streams:{function}"),
        batch=batch,
        replica=communicator.rank,
        communicator=communicator,
        search_path=[str(HERE)],
        seed=3,
        shuffle=True,
        train=True,
    )


def on_ranks(size, function):
    group = local_group(size)
    try:
        with ThreadPoolExecutor(size) as pool:
            return [job.result(timeout=100) for job in [pool.submit(function, c) for c in group]]
    finally:
        for communicator in group:
            communicator.close()


def trees_of(loader):
    return [micro.tree for call in loader for micro in call.updates[0].micro_batches]


@pytest.mark.case("O-D1")  # what DATA means holds whatever is set; docs/sources.md says so
@pytest.mark.parametrize("function", ["pairs_by_data", "pairs_by_nothing"])
def test_l2_1_each_element_goes_to_one_replica_whatever_its_shard_policy_says(function):
    def rank(communicator):
        with make_loader(communicator, function, BatchPlan(3, 1, 3)) as loader:
            return [tree.tolist() for tree in trees_of(loader)], str(loader.certificate())

    assert on_ranks(3, rank) == [
        ([[[0, 1]], [[6, 7]]], "4 of 4 samples, each once"),
        ([[[2, 3]]], "4 of 4 samples, each once"),
        ([[[4, 5]]], "4 of 4 samples, each once"),
    ]


def test_l2_l3_an_order_of_the_users_own_is_kept_and_resumed():
    def rank(communicator):
        with make_loader(communicator, "words", BatchPlan(8, 3, 2)) as loader:
            epochs = []
            for _ in range(2):
                trees = trees_of(loader)
                epochs.append([k for tree in trees for k in tree["y"].tolist()])
                assert all((tree["x"][:, 0] == tree["y"]).all() for tree in trees)
                assert all(tree["x"].flags.writeable for tree in trees)
                assert str(loader.certificate()) == "21 of 21 samples, each once"
            loader.seek(0, 8)
            again = [k for tree in trees_of(loader) for k in tree["y"].tolist()]
            return epochs, again

    first, second = on_ranks(2, rank)
    for epoch in (0, 1):
        assert sorted(first[0][epoch] + second[0][epoch]) == [2.0 * k for k in range(21)]
    assert first[0][0] != first[0][1]
    assert first[1] == first[0][0][5:]  # of the update before: 3 and 2 rows
    assert second[1] == second[0][0][3:]


def test_l3_a_shuffle_without_a_seed_cannot_be_resumed():
    communicator = connect(rank=0, size=1, job="")
    with make_loader(communicator, "unseeded", BatchPlan(8, 8)) as loader:
        assert sorted(k for tree in trees_of(loader) for k in tree.tolist()) == list(range(16))
        loader.seek(0, 8)
        with pytest.raises(DataError, match=r"shuffle\(\) without a seed \(give it seed=\)"):
            list(loader)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("ragged", r"stream: samples differ in shape: .*padded_batch\(\.\.\.\)\.unbatch\(\)"),
        ("strings", r"leaf \['name'\] has the element type string"),
    ],
)
def test_what_is_no_batch_of_numbers_is_refused(function, message):
    communicator = connect(rank=0, size=1, job="")
    with make_loader(communicator, function, BatchPlan(8, 8)) as loader:
        with pytest.raises(DataError, match=message):
            list(loader)


def test_what_does_not_repeat_is_warned_of_and_refused_where_it_must():
    done = subprocess.run(
        [sys.executable, str(HERE / "tf_streams.py")],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert {name for name, each in said.items() if each["resumed"]} == {
        "unseeded",
        "inner",
        "unordered",
    }
    assert {name for name, each in said.items() if each["warned"]} == {
        "unseeded",
        "inner",
        "unordered",
        "cached",
        "random",
        "batched",
        "padded",
    }
    assert "deterministic=False (leave that out)" in said["unordered"]["resumed"]
    assert "first epoch's order is repeated for ever" in said["cached"]["warned"]
    assert "each of its batches counts as one sample" in said["batched"]["warned"]
    assert "uses RandomUniform" in said["random"]["warned"]
    assert said["plain"]["rows"] == 6
