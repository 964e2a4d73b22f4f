"""The tf.data source: a user's sample function mapped over the epoch's ids.

The pipeline is ours from end to end (ids, map, batch, prefetch), one-to-one and in order, so each
row that comes out belongs to the id that went in; the id goes through the map beside its row.
One graph serves all passes: a variable says which pass an iterator belongs to, read at its first
element.
"""

from __future__ import annotations

import logging
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import numpy as np
import tensorflow as tf

from unified_ipu.data import Sample
from unified_ipu.data.layout import form_of, tree_of
from unified_ipu.data.leaves import map_leaves
from unified_ipu.errors import DataError
from unified_ipu_tensorflow.dataset_options import in_order
from unified_ipu_tensorflow.leaves import dense, memory_of
from unified_ipu_tensorflow.live import adopt, seeds_of
from unified_ipu_tensorflow.runtime import share_process, take_process
from unified_ipu_tensorflow.stream import batches, graph_of, random_ops

Tree = Any
Block = Tuple[np.ndarray, np.ndarray]

_NOTHING = (np.empty(0, dtype=np.int64), np.empty((0, 2), dtype=np.int64))
_MANY = 1 << 62
_PREFETCH = 2


class TensorflowSource:
    """Runs one pipeline function; lives in the data process.

    Args:
        function: The user's; called once here, returns ``sample(s)``.
        size: Number of samples.
        batched: Whether ``sample`` takes vectors.
        cores: Threads of the pipeline.

    Raises:
        DataError: If what it returns is no function, or a sample has a leaf that is no tensor of
            numbers.
    """

    def __init__(
        self, function: Callable[[], Any], *, size: int, batched: bool, cores: int
    ) -> None:
        sample = function()
        if not callable(sample):
            raise DataError(
                f"the pipeline function returned a {type(sample).__name__}; expected a function "
                "sample(s) of one sample: s.index and s.seed (for a dataset that is read from "
                'beginning to end use ui.data.stream("module:function"))'
            )
        self._size = size
        self._batched = batched
        self.is_fresh = not batched
        """Whether results are our own batches, or memory that the user's function may keep."""
        self._cores = cores
        self._form: Any = None
        self._paths: List[str] = []
        self._passes: Dict[int, Iterator[Block]] = {}
        self._count = 0
        self._pass = tf.Variable(0, dtype=tf.int64, trainable=False)
        self._datasets: Dict[int, Any] = {}
        self._sample = sample
        ids = tf.data.Dataset.from_tensors(0).map(self._current_pass).flat_map(self._ids)
        if batched:
            self._rows: Optional[Any] = None
            self._ids_dataset = ids
        else:
            self._rows = self._mapped(ids)
        example = self._rows if self._rows is not None else self._mapped(ids.batch(1))
        _warn_of_random_ops(example)
        self._row_bytes = _row_bytes(example.element_spec, batched=batched)

    adopt = staticmethod(adopt)
    """Takes dataset objects, to be read beside the model."""

    seeds_of = staticmethod(seeds_of)
    """Says what decides the order of a dataset object, to be compared over ranks."""

    share_process = staticmethod(share_process)
    """Makes room for a model in the same process."""

    take_process = staticmethod(take_process)
    """Leaves the accelerators to the processes of the model."""

    batches = staticmethod(batches)
    """Reads datasets whose elements are samples, for streams."""

    def row_bytes(self) -> int:
        """Bytes of one row, or 0 if shapes are not known beforehand."""
        return self._row_bytes

    def open(
        self, blocks: Callable[[], Iterator[Block]], *, rows: int
    ) -> Iterator[Tuple[np.ndarray, Tree]]:
        """Run the pipeline over the ids of ``blocks``; see ``unified_ipu.data.producer``."""
        number, self._count = self._count, self._count + 1
        self._passes[number] = blocks()
        try:
            self._pass.assign(number)
            for ids, *leaves in self._dataset(rows):
                arrays = [memory_of(leaf) for leaf in leaves]
                yield memory_of(ids), tree_of(self._form, arrays)
        except tf.errors.InvalidArgumentError as error:
            raise self._explained(error) from error
        finally:
            self._passes.pop(number, None)

    def _dataset(self, rows: int) -> Any:
        if rows not in self._datasets:
            if self._rows is None:
                dataset = self._mapped(self._ids_dataset.batch(rows))
            else:
                dataset = self._rows.batch(rows)
            options = in_order(threads=self._cores)
            options.threading.max_intra_op_parallelism = 1
            self._datasets[rows] = dataset.prefetch(_PREFETCH).with_options(options)
        return self._datasets[rows]

    def _mapped(self, dataset: Any) -> Any:
        calls = self._cores if self._cores > 1 else None
        return dataset.map(self._make, num_parallel_calls=calls)

    def _current_pass(self, _: Any) -> Any:
        return self._pass.read_value()

    def _ids(self, number: Any) -> Any:
        blocks = tf.data.Dataset.range(_MANY).map(
            lambda _: tf.numpy_function(self._next_block, [number], (tf.int64, tf.int64))
        )
        shaped = blocks.take_while(lambda ids, _: tf.size(ids) > 0).map(
            lambda ids, seeds: (tf.ensure_shape(ids, [None]), tf.ensure_shape(seeds, [None, 2]))
        )
        return shaped.unbatch()

    def _next_block(self, number: Any) -> Block:
        blocks = self._passes.get(int(number))
        return _NOTHING if blocks is None else next(blocks, _NOTHING)

    def _make(self, index: Any, seed: Any) -> Tuple[Any, ...]:
        tree = self._sample(Sample(index, seed))
        leaves: List[Any] = []
        self._paths = []

        def checked(path: str, leaf: Any) -> None:
            leaves.append(dense(path, leaf))
            self._paths.append(path)

        map_leaves(tree, checked)
        self._form = form_of(tree)
        return (index, *leaves)

    def _explained(self, error: Exception) -> Exception:
        """Name the leaves that may be to blame when rows cannot be put together."""
        if "Cannot add tensor to the batch" not in str(error) or self._rows is None:
            return error
        specs = list(self._rows.element_spec)[1:]
        ragged = [
            path for path, spec in zip(self._paths, specs) if not spec.shape.is_fully_defined()
        ]
        return DataError(
            f"samples differ in the shape of leaf {' or '.join(ragged)}: {error}; pad or crop "
            "them in the sample function"
        )


def _row_bytes(element_spec: Any, *, batched: bool) -> int:
    total = 0
    for spec in element_spec:
        if spec.shape.rank is None:
            return 0
        shape = spec.shape[1:] if batched else spec.shape
        if not shape.is_fully_defined():
            return 0
        total += int(shape.num_elements()) * int(spec.dtype.size)
    return total


def _warn_of_random_ops(dataset: Any) -> None:
    """Say so when the pipeline draws numbers that depend on when and where it runs."""
    random = random_ops(graph_of(dataset))
    if random:
        logging.getLogger("unified_ipu.data").warning(
            "the pipeline uses %s: augmentation will not repeat after a restart or on another "
            "number of ranks; use tf.random.stateless_* with s.seed",
            ", ".join(random),
        )
