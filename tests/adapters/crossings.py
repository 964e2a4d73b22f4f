"""Crossings between TensorFlow, torch and numpy; run in processes of their own, named on argv.

Each check raises if something is wrong. Prints ``{name: null or the error}`` as JSON.
"""

from __future__ import annotations

import gc
import json
import sys
import traceback
from pathlib import Path
from typing import Any, Dict, Optional

import numpy as np
import tensorflow as tf
import torch
from torch.utils import dlpack

from unified_ipu.adapter import Copies, CopyReason, crossing_dtypes, owner_of
from unified_ipu.errors import DataError
from unified_ipu_tensorflow import bridge as tf_bridge
from unified_ipu_torch import bridge as torch_bridge


def to_torch(leaf, **options):
    return torch_bridge.from_any(leaf, **options)


def to_tf(leaf, **options):
    return tf_bridge.from_any(leaf, **options)


def refusal(take, leaf, **options):
    try:
        take(leaf, **options)
    except DataError as error:
        return str(error)
    raise AssertionError(f"{leaf!r} was taken")


def counts(take, leaf, **options):
    copies = Copies()
    result = take(leaf, copies=copies, **options)
    return result, copies.counters.as_dict()


def counted(reason, num_bytes):
    return {f"copied_because_{reason.value}": 1, "bytes_copied": num_bytes}


def address_of(tensor):
    return dlpack.from_dlpack(tf.experimental.dlpack.to_dlpack(tensor)).data_ptr()


def check_every_element_type_crosses_both_ways_bit_for_bit():
    for name in sorted(crossing_dtypes()):
        there = tf.cast(tf.constant([[1.5, 0.0], [3.0, 1.0]]), name)
        middle, seen = counts(to_torch, there, is_fresh=True)
        assert str(middle.dtype) == f"torch.{name}", name
        back, seen_back = counts(to_tf, middle, is_fresh=True)
        assert back.dtype.name == name
        assert bytes(memoryview(tf.bitcast(back, tf.uint8) if name == "bfloat16" else back)) == (
            bytes(memoryview(tf.bitcast(there, tf.uint8) if name == "bfloat16" else there))
        )
        assert seen == seen_back == {}, (name, seen, seen_back)
        assert address_of(back) == address_of(there) == middle.data_ptr()


def check_booleans_keep_type_and_values():
    there = to_torch(tf.constant([True, False, True]))
    assert there.dtype == torch.bool
    assert there.tolist() == [True, False, True]
    back = to_tf(there)
    assert back.dtype == tf.bool
    assert back.numpy().tolist() == [True, False, True]


def check_what_a_version_refuses_is_copied():
    taken: Any = dlpack
    original = tf.experimental.dlpack.from_dlpack, taken.from_dlpack, taken.to_dlpack

    def refuse(*_):
        raise RuntimeError("Bool type is not supported by dlpack")

    leaf = tf.constant([True, False])
    try:
        taken.from_dlpack = refuse
        there, seen = counts(to_torch, leaf, is_fresh=True)
        assert (there.dtype, there.tolist()) == (torch.bool, [True, False])
        assert seen["copied_because_refused_by_dlpack"] == 1
        tf.experimental.dlpack.from_dlpack = refuse
        back, seen = counts(to_tf, there, is_fresh=True)
        assert (back.dtype, back.numpy().tolist()) == (tf.bool, [True, False])
        assert seen["copied_because_refused_by_dlpack"] == 1
        taken.to_dlpack = refuse
        again, seen = counts(to_tf, there, is_fresh=True)
        assert again.numpy().tolist() == [True, False]
        assert seen["copied_because_refused_by_dlpack"] == 1
    finally:
        tf.experimental.dlpack.from_dlpack, taken.from_dlpack, taken.to_dlpack = original


def check_narrow_floats_and_integers_are_refused_by_name():
    kinds = tf.dtypes.experimental
    for kind in (kinds.float8_e4m3fn, kinds.int4):
        values = tf.cast(tf.constant([1.0, 2.0] if kind.is_floating else [1, 2]), kind)
        text = refusal(to_torch, values, path="['x']")
        assert text.startswith(f"leaf ['x'] is a TensorFlow tensor of {kind.name}"), text
    text = refusal(to_tf, torch.zeros(2).to(torch.float8_e5m2), path="[0]")
    assert text.startswith("leaf [0] is a torch tensor of float8_e5m2"), text
    text = refusal(to_tf, torch.quantize_per_tensor(torch.zeros(2), 1.0, 0, torch.qint8))
    assert "the tensor is a torch tensor of qint8" in text


def check_text_is_refused_by_name():
    text = refusal(to_torch, tf.constant(["a", "bc"]), path="['name']")
    assert text.startswith("leaf ['name'] is a TensorFlow tensor of string")
    assert "encode" in text
    assert tf_bridge.to_numpy(tf.constant(["a", "bc"])).tolist() == [b"a", b"bc"]
    assert "numpy array of str" in refusal(to_tf, np.array(["a"]))
    assert "<U1" in refusal(to_torch, np.array(["a"]))


def check_handles_and_variants_are_refused():
    variant = tf.data.Dataset.range(3)._variant_tensor
    assert "TensorFlow tensor of variant" in refusal(to_torch, variant)
    handle = tf.Variable([1.0]).handle
    assert "TensorFlow tensor of resource" in refusal(to_torch, handle)


def check_what_is_no_dense_tensor_is_refused_with_advice():
    assert ".to_tensor()" in refusal(to_torch, tf.ragged.constant([[1], [2, 3]]), path="[1]")
    assert "tf.sparse.to_dense" in refusal(to_torch, tf.sparse.from_dense([0, 1]))
    assert ".read_value()" in refusal(to_torch, tf.Variable([1.0]))
    assert ".read_value()" in refusal(tf_bridge.to_numpy, tf.Variable([1.0]))
    assert ".to_dense()" in refusal(to_tf, torch.eye(2).to_sparse(), path="[2]")
    assert "on meta" in refusal(to_tf, torch.zeros(2, device="meta"))

    assert "KerasTensor that numpy cannot read" in refusal(to_torch, tf.keras.Input([2]))
    said = []
    tf.function(lambda x: said.append(refusal(to_torch, x, path="x")))(tf.ones(2))
    assert "SymbolicTensor" in said[0]
    assert "eager tensor" in said[0]


def check_unaligned_memory_is_copied_before_tensorflow_gets_it():
    whole = torch.arange(9.0)
    view = whole[1:]
    assert view.data_ptr() % 64
    there, seen = counts(to_tf, view, is_fresh=True)
    assert seen == counted(CopyReason.NOT_ALIGNED, 32)
    assert tf.reduce_sum(tf.matmul(there[None] + there[None], there[:, None])).numpy() == 408.0
    mapped = tf.data.Dataset.from_tensors(there).map(lambda x: x * 2)
    assert next(iter(mapped)).numpy().tolist() == [2, 4, 6, 8, 10, 12, 14, 16]
    block = np.arange(17.0)
    odd = block[1:] if block.ctypes.data % 64 == 0 else block[:-1]
    there, seen = counts(to_tf, odd[:8], is_fresh=True)
    assert seen == counted(CopyReason.NOT_ALIGNED, 64)
    assert tf.reduce_sum(there + there).numpy() == 2 * odd[:8].sum()


def check_strided_views_are_made_contiguous():
    transposed = torch.arange(6.0).view(2, 3).t()
    there, seen = counts(to_tf, transposed, is_fresh=True)
    assert there.numpy().tolist() == [[0, 3], [1, 4], [2, 5]]
    assert seen == counted(CopyReason.NOT_CONTIGUOUS, 24)
    there, seen = counts(to_tf, torch.arange(6.0).view(3, 2)[:, :1], is_fresh=True)
    assert there.numpy().tolist() == [[0], [2], [4]]
    assert seen == counted(CopyReason.NOT_CONTIGUOUS, 12)
    assert to_tf(torch.zeros(1).expand(3)).numpy().tolist() == [0, 0, 0]
    assert to_tf(np.arange(6.0).reshape(2, 3).T).numpy().tolist() == [[0, 3], [1, 4], [2, 5]]
    for shape in ([0, 3], [], [1, 4]):
        there, seen = counts(to_tf, torch.ones(shape), is_fresh=True)
        assert there.shape.as_list() == shape
        assert seen == {}
        assert list(to_torch(tf.ones(shape), is_fresh=True).shape) == shape
    odd = torch.arange(4.0).as_strided([1, 4], [77, 1])
    there, seen = counts(to_tf, odd, is_fresh=True)
    assert (there.numpy().tolist(), seen) == ([[0, 1, 2, 3]], {})


def check_conjugate_and_negative_views_keep_their_signs():
    values = torch.tensor([1 - 2j, 3 + 4j])
    there, seen = counts(to_tf, values.conj(), is_fresh=True)
    assert there.numpy().tolist() == [1 + 2j, 3 - 4j]
    assert seen == counted(CopyReason.LAZY_VIEW, 16)
    negative = values.conj().imag
    assert negative.is_neg()
    assert to_tf(negative, is_fresh=True).numpy().tolist() == [2, -4]
    assert torch_bridge.to_numpy(negative).tolist() == [2, -4]


def check_tensors_of_a_graph_are_detached():
    leaf = torch.ones(2, requires_grad=True)
    assert to_tf(leaf * 2).numpy().tolist() == [2, 2]
    assert leaf.requires_grad
    assert torch_bridge.to_numpy(leaf).tolist() == [1, 1]
    assert to_tf(torch.nn.Parameter(torch.ones(2))).numpy().tolist() == [1, 1]


def check_memory_outlives_its_first_owner():
    there = to_torch(tf.fill([1 << 16], 3.0), is_fresh=True)
    back = to_tf(torch.full([1 << 16], 4.0), is_fresh=True)
    array = tf_bridge.to_numpy(tf.fill([1 << 16], 5.0))
    gc.collect()
    churn = [torch.rand(1 << 16) for _ in range(20)] + [tf.zeros([1 << 16]) for _ in range(20)]
    assert (float(there.sum()), float(tf.reduce_sum(back))) == (3.0 * 65536, 4.0 * 65536)
    assert array.sum() == 5.0 * 65536
    del churn


def resident_bytes():
    with Path("/proc/self/statm").open(encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096


def check_no_memory_is_lost_in_many_rounds_nor_by_capsules_that_nobody_takes():
    def rounds(count):
        for _ in range(count):
            back = to_tf(to_torch(tf.zeros([1 << 20]), is_fresh=True), is_fresh=True)
            to_tf(to_torch(back))
            for bridge, leaf in ((tf_bridge, back), (torch_bridge, torch.zeros(1 << 20))):
                bridge.export(leaf, path="", is_fresh=True, copies=Copies())

    rounds(20)
    before = resident_bytes()
    rounds(100)  # 4 MiB each time: 400 MiB and more if one of them stayed
    assert resident_bytes() - before < 100 << 20


def check_a_constant_is_not_changed_by_what_torch_does():
    constant = tf.constant([1, 2, 3])
    there, seen = counts(to_torch, constant)
    there.add_(10)
    assert constant.numpy().tolist() == [1, 2, 3]
    assert seen == counted(CopyReason.ALIASED, 12)
    source = torch.tensor([1, 2, 3])
    there, seen = counts(to_tf, source)
    source.add_(10)
    assert there.numpy().tolist() == [1, 2, 3]
    assert seen == counted(CopyReason.ALIASED, 24)
    array = np.arange(3.0)
    there = to_tf(array)
    array += 10
    assert there.numpy().tolist() == [0, 1, 2]


def check_read_only_arrays_are_copied():
    batch = next(tf.data.Dataset.from_tensors([1.0, 2.0]).as_numpy_iterator())
    assert not batch.flags.writeable
    there, seen = counts(to_torch, batch)
    there += 1
    assert batch.tolist() == [1, 2]
    assert seen == counted(CopyReason.READ_ONLY, 8)
    assert not tf_bridge.to_numpy(tf.ones(3)).flags.writeable


def check_writable_arrays_are_shared():
    array = np.arange(4.0)
    there, seen = counts(to_torch, array)
    assert (there.data_ptr(), seen) == (array.ctypes.data, {})
    block = np.zeros(64 + 64, np.uint8)
    start = -block.ctypes.data % 64
    aligned = block[start : start + 64].view(np.float64)
    there, seen = counts(to_tf, aligned, is_fresh=True)
    assert (address_of(there), seen) == (aligned.ctypes.data, {})


def check_odd_arrays_are_copied():
    for array in (np.arange(3.0)[::-1], np.arange(3, dtype=">i4"), np.arange(4.0)[::2]):
        assert to_torch(array).tolist() == array.tolist()
        assert to_tf(array).numpy().tolist() == array.tolist()
    packed = np.zeros(2, dtype=[("a", "u1"), ("b", "<f4")])["b"]
    assert to_torch(packed).tolist() == [0, 0]
    assert to_torch([1.5, 2.5]).tolist() == [1.5, 2.5]
    assert to_tf(np.float32(2)).numpy() == 2


def check_a_tensor_of_a_user_class_belongs_to_its_framework():
    class Own(torch.Tensor):
        pass

    assert owner_of(torch.ones(1).as_subclass(Own)) is torch_bridge
    assert owner_of(np.ones(1)) is None
    assert to_tf(torch.ones(2).as_subclass(Own)).numpy().tolist() == [1, 1]


def outcome(check) -> Optional[str]:
    try:
        check()
    except Exception:  # noqa: BLE001 - the test shows whatever came
        return traceback.format_exc()
    return None


def main(names):
    checks = {key[6:]: value for key, value in globals().items() if key.startswith("check_")}
    results: Dict[str, Any] = {name: outcome(checks[name]) for name in names or sorted(checks)}
    sys.stdout.write(json.dumps(results))


if __name__ == "__main__":
    main(sys.argv[1:])
