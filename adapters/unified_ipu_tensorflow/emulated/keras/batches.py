"""The data of ``fit``, ``evaluate`` and ``predict``: what is refused, and how many steps it makes.

All counts are batches of one replica, except ``steps_per_epoch`` and ``steps``: Graphcore's Keras
divides them by the replicas of the process, though its documentation says otherwise.

Source: Graphcore's Keras of SDK 3.4, ``keras/ipu/extensions/data_adapter.py``; its test
``model_replication_test.py`` predicts 4 rows with ``batch_size=2, steps=2`` on two replicas.
"""

from __future__ import annotations

import logging
from typing import Any, Iterator, List, NamedTuple, Optional

import numpy as np
import tensorflow as tf

from unified_ipu_tensorflow.emulated.notes import warn_once

_log = logging.getLogger("unified_ipu.emulated.tensorflow")
_BATCH_SIZE = 32
_DEVICE_TYPES = (tf.float32, tf.float16, tf.int32, tf.bool)


class Feed(NamedTuple):
    """A data set of batches with static shapes, of a known number or without an end."""

    dataset: Any
    batches: Optional[int]
    steps: Optional[int]

    @property
    def begins_anew(self) -> bool:
        """Whether each epoch begins the data set anew."""
        return self.steps is None or self.steps == self.batches


class Steps(NamedTuple):
    """Counts of one epoch, of one replica."""

    per_epoch: int
    per_execution: int


def read_feed(
    x: Any, y: Any, sample_weight: Any, *, batch_size: Any, steps: Any, shuffle: bool
) -> Feed:
    """Bring what ``fit`` was given into batches.

    Args:
        x: Arrays or a ``tf.data.Dataset`` of batches.
        y: Targets, or None.
        sample_weight: Or None.
        batch_size: For arrays; None for 32.
        steps: As the user says, over all replicas, or None.
        shuffle: Whether arrays are shuffled.

    Raises:
        ValueError: If the data has no static shapes, a partial batch, or no known size.
    """
    if isinstance(x, tf.data.Dataset):
        if y is not None or sample_weight is not None or batch_size is not None:
            raise ValueError("a data set brings its own targets, weights and batches")
        dataset = x
    elif isinstance(x, Iterator) or callable(x) or hasattr(x, "__next__"):
        raise ValueError(
            f"The provided set of data is of type `{type(x).__name__}` which is not compatible "
            "with the IPU's requirement to know the data shape ahead of time."
        )
    else:
        dataset = _from_arrays(x, y, sample_weight, batch_size or _BATCH_SIZE, shuffle=shuffle)
    if any(spec.dtype == tf.float64 for spec in tf.nest.flatten(dataset.element_spec)):
        dataset = dataset.map(_without_doubles)
    for spec in tf.nest.flatten(dataset.element_spec):
        if not spec.shape.is_fully_defined():
            raise ValueError(
                f"The provided set of data contains a shape {spec.shape} which is not fully "
                "defined. If using batch() make sure to set `drop_remainder=True`."
            )
        if spec.dtype not in _DEVICE_TYPES:
            names = ", ".join(kind.name for kind in _DEVICE_TYPES)
            raise ValueError(f"the data has {spec.dtype.name}; on the device there are {names}")
    size = int(tf.data.experimental.cardinality(dataset).numpy())
    return Feed(dataset, size if size >= 0 else None, steps)


def count_steps(feed: Feed, *, replicas: int, per_execution: int, epochs: int) -> Steps:
    """How many steps each replica makes.

    Raises:
        ValueError: If the number is not known, too large for the data, or no multiple of
            ``steps_per_execution``.
    """
    batches = feed.batches if feed.steps is None else feed.steps
    if batches is None:
        raise ValueError(
            "Could not infer the size of the data. You must specify the number of steps to run."
        )
    dropped = batches % replicas
    if dropped and feed.batches is not None:
        _log.warning(
            "Dataset of length %d is being evenly distributed between %d replicas. The remaining "
            "%d batch(es) will be dropped.",
            feed.batches,
            replicas,
            dropped,
        )
    found = batches // replicas
    needed = found if feed.begins_anew else found * epochs
    if feed.batches is not None and needed * replicas > feed.batches:
        raise ValueError(
            "Your input does not have enough data. Make sure that your dataset can generate at "
            f"least {needed * replicas} batches (currently it can only generate {feed.batches} "
            "batches). You may need to use the repeat() function when building your dataset."
        )
    if found == 0:
        raise ValueError(
            f"The provided dataset contains {batches} items, but there are {replicas} replicas: "
            "each needs one"
        )
    if per_execution > found:
        warn_once(
            f"`steps_per_execution` has been set to {per_execution} but the dataset provided only "
            f"contains {found} batches for a replica. Using {found} as `steps_per_execution`."
        )
        per_execution = found
    if found % per_execution:
        raise ValueError(
            f"`steps_per_execution` ({per_execution}) must be a divisor of the number of batches "
            f"({found}) in the dataset provided to this replica."
        )
    return Steps(found, per_execution)


def _from_arrays(x: Any, y: Any, sample_weight: Any, size: int, *, shuffle: bool) -> Any:
    parts = (x,) if y is None else (x, y) if sample_weight is None else (x, y, sample_weight)
    leaves: List[Any] = tf.nest.flatten(parts)
    rows = len(leaves[0])
    if any(len(leaf) != rows for leaf in leaves):
        raise ValueError(f"arrays of different lengths: {[len(leaf) for leaf in leaves]}")
    if rows % size:
        raise ValueError(
            "The provided set of data has a partial batch, which could result in data being "
            f"dropped. Either adjust the `batch_size` of your model (currently set to {size}) or "
            "pad your dataset to ensure there are no partial batches."
        )
    dataset = tf.data.Dataset.from_tensor_slices(tf.nest.map_structure(np.asarray, parts))
    if shuffle:
        dataset = dataset.shuffle(rows)
    return dataset.batch(size, drop_remainder=True)


def _without_doubles(*element: Any) -> Any:
    """float64 becomes float32, silently."""
    mapped = tf.nest.map_structure(
        lambda leaf: tf.cast(leaf, tf.float32) if leaf.dtype == tf.float64 else leaf, element
    )
    return mapped if len(mapped) > 1 else mapped[0]
