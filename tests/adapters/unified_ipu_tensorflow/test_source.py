"""The tf.data source, alone and behind loaders; TensorFlow runs in other processes only."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from unified_ipu.comms import connect, local_group
from unified_ipu.data import Loader, tensorflow
from unified_ipu.data.mixing import sample_seeds
from unified_ipu.errors import DataError
from unified_ipu.plan import BatchPlan, DataSettings

pytestmark = [pytest.mark.timeout(120), pytest.mark.slow]

HERE = Path(__file__).parent
IDS = [9, 8, 7, 6], [5, 4, 3, 2], [1, 0]


def make_loader(communicator, function, batch, size=40, **changes):
    options = {"seed": 3, "shuffle": True, "train": True, **changes}
    return Loader(
        tensorflow(f"tf_pipelines:{function}", size=size),
        batch=batch,
        replica=communicator.rank,
        communicator=communicator,
        search_path=[str(HERE)],
        **options,
    )


def read(loader):
    return [micro for call in loader for micro in call.updates[0].micro_batches]


def on_ranks(size, function):
    group = local_group(size)
    try:
        with ThreadPoolExecutor(size) as pool:
            return [job.result(timeout=100) for job in [pool.submit(function, c) for c in group]]
    finally:
        for communicator in group:
            communicator.close()


@pytest.fixture(scope="module")
def probed():
    done = subprocess.run(
        [sys.executable, str(HERE / "tf_pipelines.py")],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return {**json.loads(done.stdout), "stderr": done.stderr}


def test_l2_l3_two_ranks_share_a_pipeline_and_its_augmentation():
    def rank(communicator):
        seen = {}
        with make_loader(communicator, "train", BatchPlan(16, 4, 2)) as loader:
            for epoch in (0, 1):
                for call in loader:
                    for micro in call.updates[0].micro_batches:
                        seen[epoch, call.updates[0].number, micro.index] = (micro.ids, micro.tree)
                assert str(loader.certificate()) == "40 of 40 samples, each once"
            loader.seek(0, 16)
            again = [m.ids.tolist() for c in loader for m in c.updates[0].micro_batches]
        assert again == [ids.tolist() for key, (ids, _) in seen.items() if key[0] == 0 and key[1]]
        return seen

    first, second = on_ranks(2, rank)
    seen = {**first, **second}
    for epoch in (0, 1):
        ids = np.concatenate([seen[key][0] for key in sorted(seen) if key[0] == epoch])
        assert sorted(ids.tolist()) == list(range(40))
    noises = {}
    for (epoch, _, index), (ids, tree) in sorted(seen.items()):
        assert list(tree) == ["x", "id", "torch"]
        assert isinstance(tree["id"], list)
        own, (seeds, noise) = tree["id"]
        assert own.tolist() == ids.tolist()
        assert np.array_equal(tree["x"][:, 1, 2], ids * 6.0 + 5)
        assert np.array_equal(seeds, sample_seeds(3, epoch, ids))
        assert not tree["torch"].any()
        assert tree["x"].flags.writeable
        assert tree["x"].flags.c_contiguous
        assert index % 2 == (0 if (epoch, _, index) in first else 1)
        noises.update({(epoch, k): tuple(row) for k, row in zip(ids.tolist(), noise)})
    assert len(set(noises.values())) == 80


def test_l2_l3_several_processes_make_the_same_epoch_as_one():
    def rank(communicator, workers):
        settings = DataSettings(workers=workers)
        with make_loader(communicator, "train", BatchPlan(16, 4, 2), settings=settings) as loader:
            batches = [(micro.ids.tolist(), micro.tree["id"][1][1]) for micro in read(loader)]
            return batches, str(loader.certificate())

    one, two = (on_ranks(2, lambda c, n=n: rank(c, n)) for n in (1, 2))
    for (expected, text), (batches, seen) in zip(one, two):
        assert seen == text == "40 of 40 samples, each once"
        assert [ids for ids, _ in batches] == [ids for ids, _ in expected]
        for (_, noise), (_, same) in zip(batches, expected):
            assert np.array_equal(noise, same)


def test_l6_batches_are_dealt_in_turn_and_uneven_counts_do_not_hang():
    def rank(communicator):
        with make_loader(
            communicator, "evaluate", BatchPlan(6, 2, 3), size=8, train=False
        ) as loader:
            batches = [micro.tree.tolist() for micro in loader]
            return batches, loader.certificate().ok

    results = on_ranks(3, rank)
    assert results == [
        ([[0, 2], [12, 14]], True),
        ([[4, 6]], True),
        ([[8, 10]], True),
    ]


def test_an_error_of_the_users_function_names_its_line_and_the_sample():
    communicator = connect(rank=0, size=1, job="")
    with make_loader(communicator, "bad_row", BatchPlan(8, 4), shuffle=False) as loader:
        with pytest.raises(DataError) as caught:
            read(loader)
    text = str(caught.value)
    assert "'tf_pipelines:bad_row' failed in epoch 0, at sample 17 (" in text
    assert "KeyError: 'seventeen is bad'" in text
    assert "tf_pipelines.py" in text
    assert "in check" in text


def test_element_types_survive(probed):
    ids, tree = probed["dtypes"]["rows"][0]
    assert ids == IDS[0]
    assert tree == {
        "bool": ["bool", [[True]] * 4],
        "uint8": ["uint8", [[9], [8], [7], [6]]],
        "int64": ["int64", [[9], [8], [7], [6]]],
        "float16": ["float16", [[9], [8], [7], [6]]],
        "float32": ["float32", [[9], [8], [7], [6]]],
        "float64": ["float64", [[9], [8], [7], [6]]],
        "complex64": ["complex64", [[9], [8], [7], [6]]],
    }
    assert probed["dtypes"]["row_bytes"] == 8 + 1 + 1 + 8 + 2 + 4 + 8 + 8


def test_trees_keep_their_form_and_the_order_of_their_keys(probed):
    assert [ids for ids, _ in probed["tree"]["rows"]] == list(IDS)
    _, tree = probed["tree"]["rows"][2]
    assert list(tree) == ["z", "a"]
    assert tree == {
        "z": [["int64", [1, 0]], {"tuple": [["int64", [2, 1]]]}],
        "a": ["float32", [1.5] * 2],
    }


def test_a_batched_function_gets_vectors(probed):
    assert [ids for ids, _ in probed["batched"]["rows"]] == list(IDS)
    _, tree = probed["batched"]["rows"][1]
    assert tree == {
        "tuple": [
            ["int64", [50, 40, 30, 20]],
            ["float64", [[5, -5], [4, -4], [3, -3], [2, -2]]],
        ]
    }


def test_rows_without_elements_are_rows(probed):
    assert probed["empty_rows"]["rows"][2][1] == {
        "tuple": [["int64", [1, 0]], ["float32", [[], []]]]
    }


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("wrong_rows", ["DataError", "(3,) for 4 samples"]),
        ("string", ["DataError", "['name']", "string"]),
        ("ragged", ["DataError", "[1]", "RaggedTensor", "dense"]),
        ("sparse", ["DataError", "SparseTensor", "dense"]),
        ("bfloat16", ["DataError", "['x']", "bfloat16"]),
        ("none", ["DataError", "[1]", "NoneType"]),
        ("unequal", ["DataError", "shape of leaf ['word']", "pad or crop"]),
        ("no_function", ["DataError", "NoneType", "sample(s)"]),
    ],
)
@pytest.mark.case("O-B5")
def test_what_is_no_batch_of_numbers_is_refused_by_the_name_of_its_leaf(probed, case, words):
    assert all(word in probed[case]["error"] for word in words), probed[case]


def test_l3_numbers_that_cannot_be_repeated_are_reported(probed):
    lines = [line for line in probed["stderr"].splitlines() if "augmentation" in line]
    assert len(lines) == 1
    assert lines[0].startswith("the pipeline uses RandomUniform: augmentation will not repeat")
    assert "use tf.random.stateless_* with s.seed" in lines[0]


def test_the_size_of_a_row_is_known_before_the_first_batched_or_not(probed):
    # The id, then the leaves: small rows are made several micro-batches at a time.
    assert probed["batched"]["row_bytes"] == 8 + 8 + 16
    assert probed["tree"]["row_bytes"] == 8 + 8 + 8 + 4


def test_a_pass_may_be_left_and_the_next_begun_on_the_same_graph(probed):
    assert probed["reopened"] == [[0, 1], [[4, 3, 2, 1, 0]], 0]
