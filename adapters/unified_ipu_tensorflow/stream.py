"""Datasets of tf.data read from beginning to end, and what in them does not repeat."""

from __future__ import annotations

import logging
from typing import Any, Dict, Iterator, List

import tensorflow as tf

from unified_ipu.data.leaves import map_leaves
from unified_ipu.errors import DataError
from unified_ipu.world import usable_cores
from unified_ipu_tensorflow.dataset_options import in_order
from unified_ipu_tensorflow.leaves import dense, memory_of

Tree = Any

_IGNORE_STATE = 1  # ExternalStatePolicy.POLICY_IGNORE, dataset_options.proto
_RANDOM_PREFIXES = ("Random", "StatefulUniform", "StatefulStandard", "StatefulTruncated")
_RANDOM_OPS = frozenset({"Multinomial", "TruncatedNormal", "ParameterizedTruncatedNormal"})
_PREFETCH = 2
_log = logging.getLogger("unified_ipu.data")


def batches(dataset: Any, *, start: int, rows: int, is_strict: bool) -> Iterator[Tree]:
    """Read a dataset whose elements are samples.

    Its order is made deterministic. What shards it is left out of account: one process reads it
    for all replicas of a host, so an auto-shard policy has nothing to act on.

    Args:
        dataset: A ``tf.data.Dataset``.
        start: Elements to leave out.
        rows: Elements of each result but the last.
        is_strict: Whether it must repeat, since others read it too; also if ``start`` is not 0.

    Yields:
        Trees of arrays, ``[rows, ...]`` each, which own their memory.

    Raises:
        DataError: If it must repeat but does not, or an element is no tree of dense tensors of
            numbers, of the same shapes as the others.
        InvalidArgumentError: Of the user's own functions.
    """
    graph = graph_of(dataset)
    check_repeats(graph, is_needed=is_strict or start > 0)
    if _ends_with_batches(graph):
        _log.warning(
            "the stream ends with batch(): each of its batches counts as one sample; leave batch() "
            "out, micro-batches are made here (or add .unbatch())"
        )
    map_leaves(dataset.element_spec, _checked_spec)
    options = in_order(threads=usable_cores())
    rest = dataset.skip(start) if start else dataset
    try:
        for tree in rest.batch(rows).prefetch(_PREFETCH).with_options(options):
            yield map_leaves(tree, lambda path, leaf: memory_of(dense(path, leaf)))
    except tf.errors.InvalidArgumentError as error:
        if "Cannot add tensor to the batch" not in str(error):
            raise
        raise DataError(
            f"stream: samples differ in shape: {error}; pad them, e.g. with "
            "dataset.padded_batch(...).unbatch()"
        ) from error


def graph_of(dataset: Any) -> Any:
    """The ``GraphDef`` of a dataset."""
    serialized = tf.raw_ops.DatasetToGraphV2(
        input_dataset=dataset._variant_tensor,  # noqa: SLF001 - the raw op takes nothing else
        external_state_policy=_IGNORE_STATE,
    )
    return tf.compat.v1.GraphDef.FromString(serialized.numpy())


def random_ops(graph: Any) -> List[str]:
    """Operations of the user's functions that draw numbers depending on when they run."""
    ops = {node.op for function in graph.library.function for node in function.node_def}
    return sorted(op for op in ops if op.startswith(_RANDOM_PREFIXES) or op in _RANDOM_OPS)


def check_repeats(graph: Any, *, is_needed: bool) -> None:
    """Say what makes a dataset differ from epoch to epoch, or not differ where it should.

    Args:
        graph: Of the dataset.
        is_needed: Whether samples in another order are an error, or a warning.

    Raises:
        DataError: If they are an error, with the stage to change.
    """
    drawn = random_ops(graph)
    if drawn:
        _log.warning(
            "the stream uses %s: its samples will not repeat after a restart; use "
            "tf.random.stateless_* with a seed made of seed, epoch and position",
            ", ".join(drawn),
        )
    if _caches_an_order(graph):
        _log.warning(
            "the stream has a cache() behind a shuffle(): where the cache is kept, the first "
            "epoch's order is repeated for ever; cache before shuffling"
        )
    found = _disorder(graph)
    if not found:
        return
    text = (
        f"the stream has {' and '.join(found)}, so the same epoch would not give the same samples "
        "again: it cannot be resumed or be read on several hosts"
    )
    if is_needed:
        raise DataError(text)
    _log.warning("%s", text)


def _disorder(graph: Any) -> List[str]:
    """Stages whose order is another one each time, with the change to make."""
    bodies = [graph.node, *(function.node_def for function in graph.library.function)]
    nodes = [node for body in bodies for node in body]
    found = []
    if any(node.op.startswith("ShuffleDataset") and _is_unseeded(node, graph) for node in nodes):
        found.append("a shuffle() without a seed (give it seed=)")
    if any(node.attr["deterministic"].s == b"false" for node in nodes):
        found.append("a stage with deterministic=False (leave that out)")
    return found


def _is_unseeded(node: Any, graph: Any) -> bool:
    """Whether both seeds of a shuffle are 0, which stands for: any."""
    bodies = [graph.node, *(function.node_def for function in graph.library.function)]
    body = next(body for body in bodies if any(each is node for each in body))
    constants = {each.name: each.attr["value"].tensor for each in body if each.op == "Const"}
    seeds = [constants.get(name.partition(":")[0]) for name in list(node.input)[2:4]]
    return all(seed is not None and not any(seed.int64_val) for seed in seeds)


def _caches_an_order(graph: Any) -> bool:
    nodes: Dict[str, Any] = {node.name: node for node in graph.node}

    def has_shuffle(name: str) -> bool:
        node = nodes[name.partition(":")[0].lstrip("^")]
        return "Shuffle" in node.op or any(has_shuffle(each) for each in node.input)

    caches = [node for node in graph.node if node.op.startswith("CacheDataset")]
    return any(has_shuffle(name) for node in caches for name in node.input)


def _ends_with_batches(graph: Any) -> bool:
    """Whether the last stage, but for those that change nothing, is a batch."""
    nodes: Dict[str, Any] = {node.name: node for node in graph.node}
    name = next(node.input[0] for node in graph.node if node.op == "_Retval")
    while True:
        node = nodes[name.partition(":")[0]]
        if not node.op.startswith(("PrefetchDataset", "OptionsDataset", "ModelDataset")):
            return bool("BatchDataset" in node.op and "Unbatch" not in node.op)
        name = node.input[0]


def _checked_spec(path: str, spec: Any) -> Any:
    """Refuse what no batch can hold before anything is read.

    Raises:
        DataError: If it is no dense tensor.
    """
    if not isinstance(spec, tf.TensorSpec):
        raise DataError(
            f"stream: leaf {path} is a {type(spec).__name__}; make it dense, e.g. with .to_tensor()"
        )
    return spec
