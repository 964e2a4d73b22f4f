"""A dataset object of the user, read in the rank's own process, by every rank from its start.

Each rank takes its own samples of it by position. That deals them exactly once only if all ranks
see the same samples in the same order, in every epoch and after a restart: what could differ is
refused by the name of its stage.
"""

from __future__ import annotations

from typing import Any, Dict, Iterator, List

import tensorflow as tf

from unified_ipu.errors import DataError
from unified_ipu_tensorflow.stream import graph_of, random_ops

_BATCHING = ("BatchDataset", "PaddedBatchDataset", "ParallelBatchDataset")
# Stages whose elements stand in the same relation to samples as those of their input.
_TRANSPARENT = (
    *("MapDataset", "ParallelMapDataset", "PrefetchDataset", "OptionsDataset", "CacheDataset"),
    *("AssertCardinalityDataset", "TakeDataset", "SkipDataset", "RepeatDataset", "ModelDataset"),
    *("ShuffleDataset", "FilterDataset", "ParallelFilterDataset", "ZipDataset"),
)
_UNPROVEN = {
    "GeneratorDataset": "from_generator, whose Python code cannot be looked into",
    "RandomDataset": "random numbers as elements",
    "SnapshotDataset": "snapshot, whose files may be of another run",
    "SaveDataset": "save",
}
_CHOOSING = ("FilterDataset", "ParallelFilterDataset", "TakeWhileDataset")


def adopt(dataset: Any) -> Any:
    """Check that a dataset repeats, and take its batches apart.

    Args:
        dataset: A ``tf.data.Dataset``; its elements are samples, or batches if it batches them.

    Returns:
        A dataset whose elements are samples.

    Raises:
        DataError: If it has no end, or may differ from rank to rank or epoch to epoch.
    """
    if int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY:
        raise DataError(
            "the dataset repeats for ever; leave .repeat() out, since fit(epochs=) counts epochs"
        )
    graph = graph_of(dataset)
    found = _unproven(graph)
    if found:
        raise DataError(
            f"the dataset has {' and '.join(found)}, so its samples may differ from rank to rank "
            "and epoch to epoch, and could not be dealt exactly once; use ui.data.tensorflow with "
            "a function of the sample index, which is shuffled for you, or ui.data.stream"
        )
    return dataset.unbatch() if is_batched(graph) else dataset


def seeds_of(dataset: Any) -> List[List[int]]:
    """Seeds of all shuffles of a dataset in order, global seed included.

    A shuffle without a seed of its own gets one from the global seed and a counter of operations,
    which is the same on all ranks only if they did the same before: so seeds are to be compared.
    """
    graph = graph_of(dataset)
    found = []
    for body in [graph.node, *(function.node_def for function in graph.library.function)]:
        constants = _constants(list(body))
        for node in body:
            if _kind(node.op) == "ShuffleDataset":
                names = [name.partition(":")[0] for name in list(node.input)[2:4]]
                seeds = [list(constants[name].int64_val) for name in names if name in constants]
                found.append([each for seed in seeds for each in seed])
    return found


def is_batched(graph: Any) -> bool:
    """Whether the elements are batches: a batch stage, and nothing behind it that undoes it."""
    nodes: Dict[str, Any] = {node.name: node for node in graph.node}

    def look(name: str) -> bool:
        node = nodes[name.partition(":")[0].lstrip("^")]
        kind = _kind(node.op)
        if kind in _BATCHING:
            return True
        inputs = [each for each in node.input if "Dataset" in nodes[each.partition(":")[0]].op]
        if kind not in _TRANSPARENT and node.op != "_Retval":
            return False
        return bool(inputs) and all(look(each) for each in inputs)

    return any(look(node.name) for node in graph.node if node.op == "_Retval")


def _unproven(graph: Any) -> List[str]:
    bodies = [graph.node, *(function.node_def for function in graph.library.function)]
    found = [text for body in bodies for text in _doubts(list(body))]
    drawn = random_ops(graph)
    kinds = {_kind(node.op) for body in bodies for node in body}
    if drawn and not kinds.isdisjoint(_CHOOSING):
        found.append(f"a filter beside {', '.join(drawn)}")
    return list(dict.fromkeys(found))


def _doubts(body: List[Any]) -> Iterator[str]:
    constants = _constants(body)
    for node in body:
        kind = _kind(node.op)
        if kind in _UNPROVEN:
            yield _UNPROVEN[kind]
        if node.attr["deterministic"].s == b"false":
            yield "a stage with deterministic=False"
        if kind == "ShuffleDataset" and not _is_fixed(node, constants):
            yield "a shuffle without both seed= and reshuffle_each_iteration=False"


def _constants(body: List[Any]) -> Dict[str, Any]:
    return {node.name: node.attr["value"].tensor for node in body if node.op == "Const"}


def _is_fixed(node: Any, constants: Dict[str, Any]) -> bool:
    """Whether a shuffle gives the same order in every epoch and every process."""
    seeds = [constants.get(name.partition(":")[0]) for name in list(node.input)[2:4]]
    is_seeded = any(seed is None or any(seed.int64_val) for seed in seeds)
    return is_seeded and not node.attr["reshuffle_each_iteration"].b


def _kind(operation: str) -> str:
    """An operation's name without its version."""
    return operation.rstrip("0123456789").rstrip("V") if "V" in operation else operation
