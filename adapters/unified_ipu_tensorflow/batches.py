"""A micro-batch as TensorFlow's tensors, and how models are called with it.

Leaves that come as numpy arrays are copied: they lie in memory that the loader fills again, and
TensorFlow takes its tensors for constants, so a variable could become an alias of one.
"""

from __future__ import annotations

import inspect
from typing import Any, Callable, NamedTuple, Optional

import numpy as np
import tensorflow as tf

from unified_ipu.adapter import Copies, CopyReason, MicroBatch, Tree, leaves, map_tree
from unified_ipu.errors import DataError
from unified_ipu_tensorflow.bridge import copied, from_any
from unified_ipu_tensorflow.half_precision import widened
from unified_ipu_tensorflow.keras_generation import is_keras, tf_variable, variables_of


class Feed(NamedTuple):
    """What goes into a traced function: tensors, and nothing that would be a constant there.

    Args:
        tree: All leaves of the batch.
        counted: ``[rows]`` bool, False for padding; None when every row counts.
    """

    tree: Tree
    counted: Optional[Any]


class Batch(NamedTuple):
    """One micro-batch on the host, ready for the model.

    Args:
        tree: All of it, eager tensors.
        rows: Number of rows, padding included.
        counted: ``[rows]`` numpy bool, False for padding; None when every row counts.
        host_tree: As it came, so that targets can be counted without asking the device.
    """

    tree: Tree
    rows: int
    counted: Optional[Any]
    host_tree: Tree

    @property
    def num_counted(self) -> int:
        """Number of rows that are no padding."""
        return self.rows if self.counted is None else int(np.count_nonzero(self.counted))

    def feed(self) -> Feed:
        """The tensors alone, an argument of a traced function."""
        return Feed(self.tree, None if self.counted is None else tf.constant(self.counted))


def read_batch(
    micro: MicroBatch, *, dtype: Optional[str] = None, copies: Optional[Copies] = None
) -> Batch:
    """Bring a micro-batch to TensorFlow.

    Args:
        micro: Its leaves are numpy arrays, tensors of any framework, or what numpy can view.
        dtype: What floats in numpy arrays are cast to, see ``input_dtype``; None leaves them.
        copies: Is told of copies.

    Returns:
        The batch; tensors of TensorFlow are taken as they are, everything else is copied.

    Raises:
        DataError: If a leaf cannot be a tensor; it names the leaf.
    """
    counted = None
    if micro.sample_weight is not None:
        counted = np.asarray(micro.sample_weight) != 0
        counted = None if counted.all() else counted
    try:
        tree = map_tree(micro.tree, lambda leaf: _to_tensor(leaf, "", dtype, copies))
    except DataError:
        for path, leaf in leaves(micro.tree):
            _to_tensor(leaf, path, dtype, copies)  # fails again, by its name
        raise
    return Batch(tree, micro.rows, counted, micro.tree)


def _to_tensor(leaf: Any, path: str, dtype: Optional[str], copies: Optional[Copies]) -> Any:
    if isinstance(leaf, tf.Variable):
        return leaf.read_value()
    if dtype is None or not isinstance(leaf, np.ndarray) or leaf.dtype.kind != "f":
        return from_any(leaf, path=path, copies=copies)
    if leaf.dtype == dtype:
        return from_any(leaf, path=path, copies=copies)
    # Another dtype would be another trace, and a callable loss could not mix the two.
    if copies is not None:
        copies.add(CopyReason.REFUSED, leaf.nbytes)
    return copied(leaf, dtype)


def input_dtype(model: Any) -> Optional[str]:
    """The one element type of a model's floating-point variables, or None if there is not one.

    A Keras model that has none yet says which it will make.
    """
    kinds = {tf.as_dtype(tf_variable(variable).dtype) for variable in variables_of(model)}
    floating = {kind.name for kind in kinds if kind.is_floating}
    if not floating and is_keras(model) and not getattr(model, "built", True):
        floating = {str(model.variable_dtype)}
    found = floating.pop() if len(floating) == 1 else None
    return found if found in {"float32", "float64"} else None


def num_rows(tree: Tree) -> int:
    """Rows of a batch inside a traced function, where shapes are known and values are not."""
    _, leaf = next(leaves(tree))
    return int(leaf.shape[0])


def call_model(model: Any, x: Any, *, training: bool) -> Any:
    """Call a model with the inputs of a batch.

    Keras models and layers get x as one argument, a dict or tuple included, as ``fit`` calls
    them, and ``training=``. Other callables get a dict as keywords and a tuple as positions, and
    ``training=`` if they have such a parameter. Outputs in half precision come as float32.

    Args:
        model: A Keras model or layer, a ``tf.Module`` or any callable.
        x: A tensor, or a dict, tuple or list of tensors.
        training: Whether random layers draw and batch statistics are used.
    """
    if is_keras(model):
        return widened(model(x, training=training))
    keywords = {"training": training} if _takes_training(model) else {}
    if isinstance(x, dict):
        return widened(model(**x, **keywords))
    if isinstance(x, (tuple, list)):
        return widened(model(*x, **keywords))
    return widened(model(x, **keywords))


def _takes_training(function: Callable[..., Any]) -> bool:
    try:
        return "training" in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


def select_rows(tree: Tree, keep: Any) -> Tree:
    """Rows of every tensor that has them where ``keep``, ``[rows]`` bool, is True."""

    def cut(leaf: Any) -> Any:
        if tf.is_tensor(leaf) and leaf.shape.rank and leaf.shape[0] == keep.shape[0]:
            return tf.boolean_mask(leaf, keep)
        return leaf

    return map_tree(tree, cut)


def to_numpy(tree: Tree) -> Tree:
    """Numpy arrays of their own for every tensor of a tree; numbers become 0-d arrays."""

    def convert(leaf: Any) -> Any:
        if leaf is None:
            return None
        if tf.is_tensor(leaf):
            leaf = tf.cast(leaf, tf.float32) if leaf.dtype == tf.bfloat16 else leaf
            return np.asarray(leaf.numpy())  # a copy already
        return np.asarray(leaf)

    return map_tree(tree, convert)
