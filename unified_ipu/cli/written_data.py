"""The part of a new script that reads rows: its class ``Data``, and what it needs."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Dict, List, Optional, Tuple

import numpy as np

from unified_ipu.cli.recorded import RecordedLoader
from unified_ipu.cli.writing import Writer
from unified_ipu.data import ArraySource, DatasetSource, FunctionDataset, PipelineSource
from unified_ipu.errors import ConfigError

_ARRAYS = '''\
class Data:
    """The rows that {script} had in memory, saved beside this script."""

    def __init__(self):
        with np.load(Path(__file__).with_name({file!r})) as saved:
            self.inputs, self.targets = saved["inputs"], saved["targets"]

    def updates_of(self, epoch):
        """Yield inputs, targets and which rows count, update by update."""
        for ids, counts in zip(*rows_of(epoch)):
            yield self.inputs[ids], self.targets[ids], counts
'''

_PIPELINE = '''\
class Sample(NamedTuple):
    """What the pipeline is given: a sample's index, and the only randomness it may use."""

    index: Any
    seed: Any


class Data:
    """The tf.data pipeline, which runs in this process, beside the model."""

    def __init__(self):
        self.sample = {function}()

    def updates_of(self, epoch):
        """Yield inputs, targets and which rows count, update by update."""
        ids, counts = rows_of(epoch)
        ids = ids.reshape(-1)
        rows = tf.data.Dataset.from_tensor_slices((ids, sample_seeds(epoch, ids)))
        {rows}
        for (inputs, targets), count in zip(rows.as_numpy_iterator(), counts):
            yield inputs, targets, count
'''

_EACH = """\
rows = rows.map(lambda index, seed: self.sample(Sample(index, seed)))
        rows = rows.batch(GLOBAL_BATCH)"""
_BATCHED = """\
rows = rows.batch(GLOBAL_BATCH)
        rows = rows.map(lambda index, seed: self.sample(Sample(index, seed)))"""

_DATASET = '''\
class Data:
    """The samples of a map-style dataset, stacked."""

    def __init__(self):
        self.samples = {dataset}

    def updates_of(self, epoch):
        """Yield inputs, targets and which rows count, update by update."""
        for ids, counts in zip(*rows_of(epoch)):
            {samples}
            inputs = np.stack([np.asarray(sample[0]) for sample in samples])
            targets = np.stack([np.asarray(sample[1]) for sample in samples])
            yield inputs, targets, counts
'''

_SEEDED = '''

def seeded(samples, index, words):
    """Return a sample; what it draws from the global generators depends on ``words`` only."""
    number = int.from_bytes(words.tobytes()[:8], "little")
    random.seed(number)
    np.random.seed(words)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.manual_seed(number)
    return samples[index]
'''

_WITH_SEEDS = """\
seeds = sample_seeds(epoch, ids).view(np.uint32)
            pairs = zip(ids.tolist(), seeds)
            samples = [seeded(self.samples, index, words) for index, words in pairs]"""
_WITHOUT = "samples = [self.samples[index] for index in ids.tolist()]"


@dataclass(frozen=True)
class DataText:
    """Text, and what else it takes.

    Args:
        text: The class ``Data``.
        imports: Lines.
        seeds: Whether it asks for ``sample_seeds``.
        saved: Arrays to be saved beside the script, if any.
    """

    text: str
    imports: Tuple[str, ...]
    seeds: bool = False
    saved: Optional[Dict[str, np.ndarray]] = None


def data_text(loader: RecordedLoader, writer: Writer, script: Path, file: str) -> DataText:
    """Write how the rows of a training loader are read.

    Args:
        loader: The recorded one.
        writer: Keeps the imports of functions.
        script: The script that is lowered.
        file: Where arrays will be saved, beside the new script.

    Raises:
        ConfigError: If the source is of a kind that cannot be written.
    """
    source = loader.source
    if not loader.train:
        raise ConfigError("fit got a loader of train=False; pass one that deals updates")
    if loader.collate is not None:
        raise ConfigError("collate= of the loader is not written; stack the leaves in the dataset")
    if isinstance(source, PipelineSource):
        if source.kind != "tensorflow":
            raise ConfigError(f"a source of kind {source.kind!r} is not written")
        function = _named(source.function, writer)
        rows = _BATCHED if source.batched else _EACH
        text = _PIPELINE.format(function=function, rows=rows)
        imports = ("import tensorflow as tf", "from typing import Any, NamedTuple")
        return DataText(text, imports, seeds=True)
    if isinstance(source, ArraySource):
        return _of_arrays(source, script, file)
    if isinstance(source, DatasetSource):
        return _of_dataset(source, writer)
    raise ConfigError(
        f"the training loader reads a {type(source).__name__}, which cannot be written as text; "
        'use ui.data.arrays, ui.data.dataset or ui.data.tensorflow("module:function", size=)'
    )


def _named(function: str, writer: Writer) -> str:
    module, _, name = function.partition(":")
    try:
        is_there = find_spec(module) is not None
    except ModuleNotFoundError:  # the package around it is not there
        is_there = False
    if not is_there:
        raise ConfigError(f"the source {function!r}: there is no module {module} beside the script")
    return writer.name(module, name, f"the source {function!r}")


def _of_arrays(source: ArraySource, script: Path, file: str) -> DataText:
    tree = source.fetch(np.arange(source.size))
    is_pair = isinstance(tree, (tuple, list)) and len(tree) == 2  # noqa: PLR2004 - (x, y)
    if not is_pair or not all(isinstance(leaf, np.ndarray) for leaf in tree):
        raise ConfigError(
            "ui.data.arrays of the training loader has no plain (inputs, targets), one array "
            "each; what is written has those only"
        )
    saved = {"inputs": tree[0], "targets": tree[1]}
    text = _ARRAYS.format(script=script.name, file=file).replace(repr(file), f'"{file}"')
    return DataText(text, ("from pathlib import Path",), saved=saved)


def _of_dataset(source: DatasetSource, writer: Writer) -> DataText:
    if source.collate is not None:
        raise ConfigError("collate= of the dataset is not written; stack the leaves in the dataset")
    samples = source.samples
    if not isinstance(samples, FunctionDataset):
        made = writer.write(samples, "the dataset of the training loader")
        return DataText(_DATASET.format(dataset=made, samples=_WITHOUT), ())
    made = f"{_named(samples.function, writer)}()"
    text = _DATASET.format(dataset=made, samples=_WITH_SEEDS) + _SEEDED
    imports: List[str] = ["import random", "import sys"]
    return DataText(text, tuple(imports), seeds=True)
