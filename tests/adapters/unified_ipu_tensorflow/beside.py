"""TensorFlow beside a torch model in one process; run in processes of their own, named on argv.

Each check raises if something is wrong. Prints ``{name: null or the error}`` as JSON.
"""

from __future__ import annotations

import json
import logging
import sys
import tempfile
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Dict, List, Optional

import numpy as np
import tensorflow as tf

import unified_ipu as ui
from unified_ipu.comms import connect, local_group
from unified_ipu.data import Loader, stream, tensorflow
from unified_ipu.errors import ConfigError, DataError
from unified_ipu.events import Counters
from unified_ipu.plan import BatchPlan, DataSettings
from unified_ipu_tensorflow import runtime
from unified_ipu_tensorflow.live import adopt, is_batched
from unified_ipu_tensorflow.stream import graph_of

HERE = str(Path(__file__).parent)
Dataset = tf.data.Dataset


class Said(logging.Handler):
    """Keeps what is logged for the data room."""

    def __init__(self):
        super().__init__()
        self.lines: List[str] = []
        logging.getLogger("unified_ipu.data").addHandler(self)

    def emit(self, record):
        self.lines.append(record.getMessage())


def loader_of(source, batch, *, communicator=None, **changes):
    options = {"seed": 3, "shuffle": True, "train": True, "isolate": "auto", **changes}
    communicator = communicator or connect(rank=0, size=1, job="")
    return Loader(
        source,
        batch=batch,
        replica=communicator.rank,
        communicator=communicator,
        settings=DataSettings(isolate=options.pop("isolate")),
        search_path=[HERE],
        **options,
    )


def micro_batches(loader):
    if not loader.train:
        return list(loader)
    return [micro for call in loader for update in call.updates for micro in update.micro_batches]


def trees(loader):
    return [micro.tree.tolist() for micro in micro_batches(loader)]


def on_ranks(size, function):
    group = local_group(size)
    try:
        with ThreadPoolExecutor(size) as pool:
            return list(pool.map(function, group, timeout=60))
    finally:
        for communicator in group:
            communicator.close()


def refusal(kind, function, *values, **options):
    try:
        function(*values, **options)
    except kind as error:
        return str(error)
    raise AssertionError("nothing was refused")


def check_what_torch_writes_never_reaches_the_dataset():
    import torch

    constant = tf.constant([0.0, 1.0, 2.0, 3.0])
    seen: List[List[float]] = []

    def objective(model, batch):
        seen.append(batch.flatten().tolist())
        batch.add_(10)
        return ui.Loss(model(batch).sum(), 2)

    for dataset in (
        Dataset.from_tensor_slices(constant),
        Dataset.from_tensor_slices(constant).cache(),
        Dataset.from_tensor_slices(constant).batch(2),
        Dataset.from_tensor_slices(constant).batch(2).cache().map(lambda x: x),
    ):
        seen.clear()
        plan = ui.Plan().replace(batch={"global_batch_size": 2, "micro_batch_size": 2})
        with ui.Session(plan, argv=["script.py"]) as session:
            model = torch.nn.Sequential(torch.nn.Unflatten(0, (-1, 1)), torch.nn.Linear(1, 1))
            sgd = torch.optim.SGD(model.parameters(), lr=0.0)
            program = session.compile(model, objective=objective, optimizer=sgd)
            loader = session.loader(dataset)
            for _ in range(2):
                for call in loader:
                    program.step(call)
                assert str(loader.certificate()) == "4 of 4 samples, each once"
            assert session.counters["bytes_copied"] == 0
        assert seen == [[0, 1], [2, 3], [0, 1], [2, 3]]
    assert constant.numpy().tolist() == [0, 1, 2, 3]


def torch_program(session, seen):
    import torch

    def objective(model, batch):
        x, y = batch
        seen.append(x.flatten().tolist())
        x.add_(10)
        return ui.Loss(model(x).sum() + y.sum(), len(x))

    model = torch.nn.Linear(1, 1)
    sgd = torch.optim.SGD(model.parameters(), lr=0.0)
    return session.compile(model, objective=objective, optimizer=sgd)


def check_tensors_and_their_views_can_be_stepped_with():
    dataset = Dataset.from_tensors((tf.constant([[1.0], [2.0]]), tf.constant([0.0, 1.0])))
    plan = ui.Plan().replace(batch={"global_batch_size": 2, "micro_batch_size": 2})
    for batches in (dataset, dataset.as_numpy_iterator()):
        seen: List[List[float]] = []
        with ui.Session(plan, argv=["script.py"]) as session:
            program = torch_program(session, seen)
            for batch in batches:
                program.step(batch)
                program.step(batch)
            assert session.counters["bytes_copied"] == 2 * (8 + 8)
        assert seen == [[1, 2], [1, 2]]


def check_text_in_a_step_is_refused_by_the_name_of_its_column():
    plan = ui.Plan().replace(batch={"global_batch_size": 2, "micro_batch_size": 2})
    with ui.Session(plan, argv=["script.py"]) as session:
        program = torch_program(session, [])
        batch = ({"x": tf.ones([2, 1]), "name": tf.constant(["a", "b"])}, tf.ones([2]))
        text = refusal(DataError, program.step, batch)
    assert "leaf [0]['name'] is a TensorFlow tensor of string" in text


def check_each_rank_takes_its_own_samples_by_position():
    def rank(communicator):
        dataset = Dataset.range(14).map(lambda x: x * 2)
        with loader_of(dataset, BatchPlan(6, 2, 3), communicator=communicator) as loader:
            epochs = []
            for _ in range(2):
                epochs.append([(m.ids.tolist(), m.tree.tolist()) for m in micro_batches(loader)])
                assert str(loader.certificate()) == "14 of 14 samples, each once"
            return epochs

    first, second, third = on_ranks(3, rank)
    assert first == [[([0, 1], [0, 2]), ([6, 7], [12, 14]), ([12, 13], [24, 26])]] * 2
    assert second == [[([2, 3], [4, 6]), ([8, 9], [16, 18])]] * 2
    assert third == [[([4, 5], [8, 10]), ([10, 11], [20, 22])]] * 2


def check_evaluation_deals_in_turn():
    def rank(communicator):
        options: Dict[str, Any] = {"communicator": communicator, "train": False}
        with loader_of(Dataset.range(5), BatchPlan(6, 2, 3), **options) as loader:
            return trees(loader), loader.certificate().ok

    assert on_ranks(3, rank) == [([[0, 1]], True), ([[2, 3]], True), ([[4]], True)]


def check_a_run_goes_on_where_it_was():
    with loader_of(Dataset.range(10), BatchPlan(4, 2)) as loader:
        loader.seek(1, 4)
        assert trees(loader) == [[4, 5], [6, 7], [8, 9]]
        assert trees(loader)[0] == [0, 1]


def check_a_fit_is_resumed_in_the_middle_of_an_epoch():
    import torch

    table = np.arange(40, dtype=np.float32).reshape(20, 2) / 40
    plan = ui.Plan().replace(batch={"global_batch_size": 8, "micro_batch_size": 4})

    def weights(folder, **options):
        with ui.Session(plan, argv=["script.py"]) as session:
            model = torch.nn.Linear(2, 1)
            sgd = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
            program = session.compile(model, loss=torch.nn.MSELoss(), optimizer=sgd)
            dataset = Dataset.from_tensor_slices((table, table.sum(1, keepdims=True)))
            program.fit(session.loader(dataset), epochs=3, checkpoint=folder, **options)
            return {name: value.tolist() for name, value in program.weights().items()}

    with tempfile.TemporaryDirectory() as whole, tempfile.TemporaryDirectory() as broken:
        expected = weights(whole)
        assert weights(broken, every=2, max_updates=4) != expected
        assert weights(broken, resume="auto") == expected


def check_batches_are_taken_apart():
    table = Dataset.from_tensor_slices({"x": np.arange(7.0), "y": np.arange(7)})
    with loader_of(table.batch(3).prefetch(1), BatchPlan(4, 4)) as loader:
        rows = [(m.tree["x"].tolist(), m.tree["y"].tolist()) for m in micro_batches(loader)]
    assert rows == [([0, 1, 2, 3], [0, 1, 2, 3]), ([4, 5, 6], [4, 5, 6])]


def check_batched_datasets_are_told_from_others():
    base = Dataset.range(8)
    batched = [
        base.batch(2),
        base.batch(2, num_parallel_calls=2).map(lambda x: x),
        base.batch(2).prefetch(1).cache().take(3),
        base.padded_batch(2),
        Dataset.zip((base.batch(2), base.batch(2))),
    ]
    single = [
        base,
        base.batch(2).unbatch(),
        Dataset.zip((base, base.batch(2))),
        base.batch(2).flat_map(Dataset.from_tensor_slices),
    ]
    assert all(is_batched(graph_of(each)) for each in batched)
    assert not any(is_batched(graph_of(each)) for each in single)


def check_datasets_that_may_differ_between_ranks_are_refused():
    base = Dataset.range(8)
    relaxed = base.map(lambda x: x, num_parallel_calls=2, deterministic=False)
    chosen = base.map(lambda x: (x, tf.random.uniform([]))).filter(lambda _, y: y > 0.5)
    refused = {
        "shuffle without both": base.shuffle(8),
        "without both seed= and": base.shuffle(8, seed=1),
        "reshuffle_each_iteration=False": base.shuffle(8, reshuffle_each_iteration=False),
        "deterministic=False": relaxed,
        "random numbers": Dataset.random(seed=1).take(3),
        "from_generator": Dataset.from_generator(lambda: iter([1]), output_types=tf.int32),
        "a filter beside RandomUniform": chosen,
    }
    for words, dataset in refused.items():
        text = refusal(DataError, adopt, dataset)
        assert words in text, text
        assert "ui.data.tensorflow" in text
    assert "leave .repeat() out" in refusal(DataError, adopt, base.repeat())
    for dataset in (
        base.shuffle(8, seed=1, reshuffle_each_iteration=False),
        base.map(lambda x: x, num_parallel_calls=2).filter(lambda x: x > 2).cache(),
        base.repeat(2).interleave(Dataset.from_tensors, cycle_length=2),
    ):
        adopt(dataset)
    text = refusal(DataError, loader_of, base.shuffle(8), BatchPlan(4, 4))
    assert "loader: the pipeline 'tensorflow:ShuffleDataset' failed: the dataset has" in text


def check_shuffles_with_other_seeds_on_another_rank_are_refused():
    def make(communicator):
        seed = 1 + communicator.rank
        dataset = Dataset.range(8).shuffle(8, seed=seed, reshuffle_each_iteration=False)
        return refusal(DataError, loader_of, dataset, BatchPlan(4, 2, 2), communicator=communicator)

    for text in on_ranks(2, make):
        assert "seeds [[" in text, text
        assert "on rank 0 and [[" in text, text
        assert "pass the same seed= to each shuffle" in text, text


def check_a_fixed_shuffle_repeats():
    dataset = Dataset.range(8).shuffle(8, seed=1, reshuffle_each_iteration=False)
    with loader_of(dataset, BatchPlan(8, 8)) as loader:
        first, second = trees(loader), trees(loader)
    assert first == second
    assert sorted(first[0]) == list(range(8))
    assert first[0] != list(range(8))


def check_text_in_a_dataset_is_refused_by_the_name_of_its_column():
    dataset = Dataset.from_tensor_slices({"x": [[1.0, 2.0]], "name": ["one"]})
    with loader_of(dataset, BatchPlan(1, 1)) as loader:
        text = refusal(DataError, micro_batches, loader)
    assert "['name']" in text
    assert "string" in text


def check_a_dataset_cannot_go_to_another_process():
    text = refusal(ConfigError, loader_of, Dataset.range(4), BatchPlan(4, 4), isolate="always")
    assert 'data.isolate = "always"' in text
    assert "ui.data.stream" in text


def check_padding_and_dropping():
    with loader_of(Dataset.range(5), BatchPlan(4, 2, remainder="pad")) as loader:
        got = [(m.ids.tolist(), m.rows) for m in micro_batches(loader)]
        assert got == [([0, 1], 2), ([2, 3], 2), ([4, -1], 2), ([-1, -1], 2)]
        assert "5 of 5 samples" in str(loader.certificate())
    with loader_of(Dataset.range(5), BatchPlan(4, 2, remainder="drop")) as loader:
        assert trees(loader) == [[0, 1], [2, 3]]


def check_a_pipeline_by_index_runs_beside_the_model_without_a_copy():
    counters = Counters()
    options: Dict[str, Any] = {"isolate": "never", "counters": counters, "shuffle": False}
    source = tensorflow("tf_pipelines:train", size=40)
    with loader_of(source, BatchPlan(16, 4), **options) as loader:
        for _ in range(2):
            got = micro_batches(loader)
            assert [m.rows for m in got] == [4] * 10
            for micro in got:
                own, (_, noise) = micro.tree["id"]
                assert own.tolist() == micro.ids.tolist()
                assert np.array_equal(micro.tree["x"][:, 1, 2], micro.ids * 6.0 + 5)
                assert micro.tree["x"].flags.writeable
                assert noise.shape == (4, 3)
                micro.tree["x"] += 1
            assert str(loader.certificate()) == "40 of 40 samples, each once"
    assert counters.as_dict() == {}


def check_rows_of_two_batches_are_copied_and_counted():
    counters = Counters()
    options: Dict[str, Any] = {"isolate": "never", "counters": counters}
    with loader_of(tensorflow("tf_pipelines:evaluate", size=70), BatchPlan(7, 4), **options) as one:
        got = [(m.ids * 2).tolist() == m.tree.tolist() for m in micro_batches(one)]
    assert got == [True] * 20
    # The pipeline makes 32 rows at once, so the 64th and 65th lie in two results.
    assert counters.as_dict() == {"copied_because_split_over_batches": 1, "bytes_copied": 32}


def check_rows_that_the_users_map_may_keep_are_copied():
    counters = Counters()
    options: Dict[str, Any] = {"isolate": "never", "counters": counters}
    source = tensorflow("beside:kept_rows", size=4, batched=True)
    with loader_of(source, BatchPlan(4, 4), **options) as loader:
        for _ in range(2):
            for micro in micro_batches(loader):
                rows = micro.tree
                assert rows.tolist() == [1, 1, 1, 1]
                rows += 10
    assert counters.as_dict() == {"copied_because_aliased": 2, "bytes_copied": 32}


def kept_rows():
    constant = tf.constant([1.0, 1.0, 1.0, 1.0])
    return lambda _: constant


def check_ranks_with_pipelines_of_their_own_deal_exactly_once():
    def rank(communicator):
        source = tensorflow("tf_pipelines:evaluate", size=20)
        options: Dict[str, Any] = {"communicator": communicator, "isolate": "never"}
        with loader_of(source, BatchPlan(6, 3, 2), **options) as loader:
            got = [m.ids.tolist() for m in micro_batches(loader)]
            return got, str(loader.certificate())

    source = tensorflow("tf_pipelines:evaluate", size=20)
    with loader_of(source, BatchPlan(6, 3), isolate="never") as alone:
        order = [m.ids.tolist() for m in micro_batches(alone)]
    (first, said), (second, _) = on_ranks(2, rank)
    assert said == "20 of 20 samples, each once"
    assert first == order[0::2]
    assert second == order[1::2]


def check_a_stream_runs_beside_the_model():
    with loader_of(stream("beside:counted"), BatchPlan(4, 2), isolate="never") as loader:
        assert trees(loader) == [[0, 1], [2, 3], [4]]
        assert trees(loader) == [[100, 101], [102, 103], [104]]
        assert loader.size == 5


def counted(epoch):
    return Dataset.range(5).map(lambda x: x + 100 * epoch)


def check_an_error_of_the_users_function_names_the_sample():
    source = tensorflow("tf_pipelines:bad_row", size=40)
    options: Dict[str, Any] = {"isolate": "never", "shuffle": False}
    with loader_of(source, BatchPlan(8, 4), **options) as loader:
        text = refusal(DataError, micro_batches, loader)
    assert "'tf_pipelines:bad_row' failed in epoch 0, at sample 17 (" in text
    assert "KeyError: 'seventeen is bad'" in text
    source = tensorflow("tf_pipelines:no", size=4)
    text = refusal(DataError, loader_of, source, BatchPlan(4, 4), isolate="never")
    assert "has no function 'no'" in text


class Gpus:
    """Two devices that are not there, and what is set on them."""

    def __init__(self, *, is_late=False):
        config: Any = tf.config
        self.grown: List[str] = []
        self.devices = [config.PhysicalDevice(f"/physical_device:GPU:{k}", "GPU") for k in (0, 1)]
        self.is_late = is_late
        config.list_physical_devices = lambda kind=None: self.devices if kind == "GPU" else []
        config.experimental.get_memory_growth = lambda device: device.name in self.grown
        config.experimental.set_memory_growth = self.grow

    def grow(self, device, enable):
        from tensorflow.python.eager import context

        if context.context()._initialized:
            raise RuntimeError("Physical devices cannot be modified after being initialized")
        assert enable
        self.grown.append(device.name)


def check_growth_is_set_on_every_gpu_before_the_first_operation():
    gpus, said = Gpus(), Said()
    source = tensorflow("tf_pipelines:evaluate", size=4)
    with loader_of(source, BatchPlan(4, 4), isolate="never") as loader:
        assert len(trees(loader)) == 1
    assert gpus.grown == ["/physical_device:GPU:0", "/physical_device:GPU:1"]
    assert said.lines == []


def check_settings_that_come_too_late_are_a_warning():
    tf.constant(1.0) + 1.0
    gpus, said = Gpus(), Said()
    with loader_of(Dataset.range(4), BatchPlan(4, 4)) as loader:
        assert len(trees(loader)) == 1
    assert gpus.grown == []
    (line,) = said.lines
    assert "cannot be set any more: memory growth of /physical_device:GPU:0, memory" in line
    gpus.grown += ["/physical_device:GPU:0", "/physical_device:GPU:1"]
    runtime.share_process(3)  # TensorFlow itself refuses this one
    assert "any more: intra-op threads, inter-op threads; make" in said.lines[1]


def check_threads_are_shared_between_ranks_before_the_first_operation():
    runtime.share_process(3)
    runtime.share_process(0)
    assert tf.config.threading.get_intra_op_parallelism_threads() == 3
    assert tf.config.threading.get_inter_op_parallelism_threads() == 3


def outcome(check) -> Optional[str]:
    try:
        check()
    except Exception:  # noqa: BLE001 - the test shows whatever came
        return traceback.format_exc()
    return None


def main(names):
    checks = {key[6:]: value for key, value in globals().items() if key.startswith("check_")}
    results: Dict[str, Any] = {name: outcome(checks[name]) for name in names}
    sys.stdout.write("\n" + json.dumps(results))


if __name__ == "__main__":
    main(sys.argv[1:])
