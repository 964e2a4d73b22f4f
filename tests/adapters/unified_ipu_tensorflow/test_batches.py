"""Micro-batches as tensors: what is copied, cast, taken as it lies and refused."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from unified_ipu.adapter import Copies, MicroBatch, inputs_of, split_batch
from unified_ipu.errors import DataError
from unified_ipu_tensorflow.batches import (
    input_dtype,
    read_batch,
    select_rows,
    to_numpy,
)

pytestmark = pytest.mark.timeout(120)

keras = tf.keras


def micro(tree, rows=2, **options):
    return MicroBatch(0, tree, rows, **options)


def on_a_line(shape):
    """Memory that starts where TensorFlow would share it."""
    whole = np.zeros(int(np.prod(shape)) + 16, np.float32)
    first = (-whole.ctypes.data % 64) // 4
    return whole[first : first + int(np.prod(shape))].reshape(shape)


def test_no_tensor_shares_memory_that_the_loader_fills_again():
    slot = on_a_line((2, 64))
    assert slot.ctypes.data % 64 == 0
    batch = read_batch(micro((slot, slot)))
    slot[:] = 7.0
    assert not np.any(batch.tree[0].numpy())
    assert not np.any(batch.tree[1].numpy())


def test_outputs_as_numpy_are_the_users_own():
    tensor = tf.zeros([2, 3])
    found = to_numpy({"a": tensor, "b": (1.5, None)})
    found["a"][:] = 1.0
    assert not np.any(tensor.numpy())
    assert found["b"][0] == np.array(1.5)
    assert found["b"][1] is None
    assert to_numpy(tf.ones([2], tf.bfloat16)).dtype == np.float32


def test_tensors_of_the_user_are_taken_as_they_lie():
    tensor = tf.ones([2, 3], tf.float64)
    assert read_batch(micro((tensor, tensor)), dtype="float32").tree[0] is tensor
    variable = tf.Variable([[1.0], [2.0]])
    assert read_batch(micro((variable,))).tree[0].numpy().tolist() == [[1.0], [2.0]]


def test_floats_are_cast_at_the_door_and_nothing_else_is():
    tree = {
        "wide": np.ones((2, 3)),
        "half": np.ones(2, np.float16),
        "label": np.ones(2, np.int64),
        "flag": np.ones(2, bool),
    }
    copies = Copies()
    found = read_batch(micro(tree), dtype="float32", copies=copies).tree
    kinds = {name: leaf.dtype.name for name, leaf in found.items()}
    assert kinds == {"wide": "float32", "half": "float32", "label": "int64", "flag": "bool"}
    assert found["wide"].numpy().tolist() == [[1.0] * 3] * 2
    assert copies.counters["bytes_copied"] == 48 + 4 + 16 + 2
    left = read_batch(micro(tree)).tree
    assert left["wide"].dtype == tf.float64


def test_the_type_of_inputs_is_that_of_the_variables_if_there_is_one():
    for kind in ("float32", "float64"):
        layer = keras.layers.Dense(2, dtype=kind)
        layer.build((None, 3))
        assert input_dtype(layer) == kind

    class Mixed(tf.Module):  # type: ignore[misc]  # TensorFlow has no types
        def __init__(self):
            super().__init__()
            self.a = tf.Variable(1.0)
            self.b = tf.Variable(1.0, dtype=tf.float64)

    assert input_dtype(Mixed()) is None
    assert input_dtype(lambda x: x) is None


def test_padding_is_what_has_weight_0():
    batch = read_batch(micro((np.ones((2, 1)),), sample_weight=np.array([1.0, 0.0], np.float32)))
    feed = batch.feed()
    assert batch.counted is not None
    assert feed.counted is not None
    assert batch.counted.tolist() == feed.counted.numpy().tolist() == [True, False]
    assert batch.num_counted == 1
    whole = read_batch(micro((np.ones((2, 1)),), sample_weight=np.ones(2, np.float32)))
    assert whole.counted is None
    assert whole.feed().counted is None
    assert whole.num_counted == 2


def test_a_leaf_that_cannot_be_a_tensor_is_named():
    with pytest.raises(DataError, match=r"\[1\]\['words'\]"):
        read_batch(micro((np.ones(2), {"words": np.array(["a", "b"])})))
    with pytest.raises(DataError, match=r"\[0\]"):
        read_batch(micro((np.array([object(), object()]), np.ones(2))), dtype="float32")


def test_layouts_that_tensorflow_lacks_are_copied():
    array = np.arange(12, dtype=np.float32).reshape(3, 4)[::-1, ::2]
    found = read_batch(micro((array,), 3)).tree[0]
    assert found.numpy().tolist() == array.tolist()
    swapped = np.arange(3, dtype=">f4")
    assert read_batch(micro((swapped,), 3)).tree[0].numpy().tolist() == [0.0, 1.0, 2.0]
    cast = read_batch(micro((np.arange(3, dtype=">f8"),), 3), dtype="float32").tree[0]
    assert cast.numpy().tolist() == [0.0, 1.0, 2.0]


def test_parts_of_a_batch():
    assert split_batch((1, 2)) == (1, 2, None)
    assert split_batch([1, 2, 3]) == (1, 2, 3)
    assert inputs_of((1, 2)) == 1
    assert inputs_of({"x": 1}) == {"x": 1}
    with pytest.raises(DataError, match="objective="):
        split_batch({"x": 1})


def test_rows_are_selected_where_there_are_rows():
    tree = {"a": tf.constant([[1.0], [2.0], [3.0]]), "b": tf.constant(5.0), "c": [tf.ones([2])]}
    found = select_rows(tree, np.array([True, False, True]))
    assert found["a"].numpy().tolist() == [[1.0], [3.0]]
    assert float(found["b"]) == 5.0
    assert found["c"][0].shape == (2,)


@pytest.mark.slow
def test_importing_the_bridge_leaves_threads_and_devices_open():
    code = (
        "import unified_ipu_tensorflow.bridge, unified_ipu_tensorflow.replica\n"
        "import tensorflow as tf\n"
        "tf.config.threading.set_intra_op_parallelism_threads(1)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100)
