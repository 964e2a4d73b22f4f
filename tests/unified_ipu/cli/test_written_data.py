"""The part of a written script that reads rows, run beside the loader that it stands for."""

from __future__ import annotations

import random
import sys

import numpy as np
import pytest

from unified_ipu.cli.recorded import RecordedLoader
from unified_ipu.cli.traced_calls import CallTracer
from unified_ipu.cli.writing import Writer
from unified_ipu.cli.written_data import data_text
from unified_ipu.cli.written_order import order_imports, order_text
from unified_ipu.data import dataset, tensorflow
from unified_ipu.data.sample_randomness import SeededFetching
from unified_ipu.plan import BatchPlan

MODULE = """
import random
import numpy as np

class Noisy:
    def __init__(self, size=20):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return np.array([index, random.random(), np.random.rand()], np.float32), index % 3

def noisy():
    return Noisy()

def pipeline():
    return lambda s: (s.index, s.seed)
"""

SEED = 5


@pytest.fixture
def beside(tmp_path, monkeypatch):
    """A folder with a module of samples; returns its name."""
    name = f"samples_of_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    states = random.getstate(), np.random.get_state()
    yield name
    random.setstate(states[0])
    np.random.set_state(states[1])
    sys.modules.pop(name, None)


def read(source, folder, epoch=1):
    """Inputs, targets and counts of an epoch, by the written text."""
    batch = BatchPlan(8, 2, remainder="pad")
    loader = RecordedLoader(source, True, None, batch, "train")
    writer = Writer(folder / "train.py", CallTracer(folder / "train.py"), set())
    found = data_text(loader, writer, folder / "train.py", "native.npz")
    names: dict = {"np": np, "SEED": SEED, "SAMPLES": 20, "UPDATES": 3}
    names.update(GLOBAL_BATCH=8, MICRO_BATCH=2, UPDATES_PER_CALL=1)
    lines = [*order_imports(20, shuffle=True, seeds=found.seeds), *found.imports, *writer.imports]
    order = order_text(20, shuffle=True, seeds=found.seeds, reduction="mean")
    exec("\n".join([*lines, order, found.text]), names)  # noqa: S102 - the text under test
    parts = list(names["Data"]().updates_of(epoch))
    return names["rows_of"](epoch)[0], [np.concatenate(each) for each in zip(*parts)]


def test_l3_a_named_dataset_draws_for_each_sample_what_the_data_process_draws(tmp_path, beside):
    ids, (inputs, targets, counts) = read(dataset(f"{beside}:noisy", size=20), tmp_path)
    made = sys.modules[beside].noisy()
    expected = SeededFetching(made, None, seed=SEED).fetch(ids.reshape(-1), 1)
    assert inputs.tolist() == expected[0].tolist()
    assert targets.tolist() == expected[1].tolist() == (ids.reshape(-1) % 3).tolist()
    assert counts.sum() == 20.0
    assert len(set(inputs[:, 1])) == 20  # padding repeats rows with their draws


def test_a_dataset_that_the_script_made_is_written_as_the_call(tmp_path, beside):
    __import__(beside)
    script = tmp_path / "train.py"
    script.write_text(f"from {beside} import Noisy\nsamples = Noisy(size=12)\n")
    names: dict = {}
    with CallTracer(script) as calls:
        exec(compile(script.read_text(), str(script), "exec"), names)  # noqa: S102 - a script
    writer = Writer(script, calls, set())
    loader = RecordedLoader(dataset(names["samples"]), True, None, BatchPlan(8, 2), "train")
    text = data_text(loader, writer, script, "native.npz").text
    assert "self.samples = Noisy(size=12)\n" in text
    assert "samples = [self.samples[index] for index in ids.tolist()]" in text


@pytest.mark.parametrize("batched", [False, True])
def test_a_pipeline_is_called_once_and_mapped_before_or_after_batching(tmp_path, beside, batched):
    source = tensorflow(f"{beside}:pipeline", size=20, batched=batched)
    batch = BatchPlan(8, 2, remainder="pad")
    script = tmp_path / "train.py"
    writer = Writer(script, CallTracer(script), {"pipeline"})
    found = data_text(RecordedLoader(source, True, None, batch, "train"), writer, script, "x.npz")
    assert f"self.sample = {beside}_pipeline()" in found.text
    assert writer.imports == (f"from {beside} import pipeline as {beside}_pipeline",)
    lines = [line.strip() for line in found.text.splitlines()]
    mapped = lines.index("rows = rows.map(lambda index, seed: self.sample(Sample(index, seed)))")
    assert (lines.index("rows = rows.batch(GLOBAL_BATCH)") < mapped) is batched
