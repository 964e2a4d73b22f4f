"""A replica under canonical names: what is turned, what is put in order, and what stays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from unified_ipu.adapter import Job, MicroBatch, TensorSpec, optim
from unified_ipu.engine import RenamedReplica
from unified_ipu.errors import ConfigError
from unified_ipu.plan import Slot
from unified_ipu_numpy import MeanSquaredError, NumpyReplica

NAMES = {"k": ["z.weight", "IO->OI"], "b": "a.bias"}
KERNEL = np.arange(6.0).reshape(2, 3)


class Affine:
    def __init__(self):
        self.parameters = {"k": KERNEL.copy(), "b": np.array([1.0, 2.0, 3.0])}

    def forward(self, x, rng=None):
        p = self.parameters
        return x @ p["k"] + p["b"], lambda d: {"k": x.T @ d, "b": d.sum(axis=0)}


def build(names=NAMES, optimizer=None):
    job = Job(Affine(), optimizer or optim.SGD(lr=1.0, momentum=0.5), MeanSquaredError("sum"))
    return RenamedReplica(NumpyReplica(job), names)


def run(replica):
    replica.begin_update()
    micro = MicroBatch(0, (np.array([[1.0, 10.0]]), np.zeros((1, 3))), 1)
    replica.forward_backward(micro, scale=1.0, seed=0, ready=lambda bucket: None)
    return replica.finish_update()


# x @ k + b = [31, 43, 55]; dS / d(outputs) is twice that.
BIAS_GRADIENT = np.array([62.0, 86.0, 110.0])
KERNEL_GRADIENT = np.array([[62.0, 86.0, 110.0], [620.0, 860.0, 1100.0]])


def test_tensors_have_canonical_names_and_shapes_sorted_by_role_and_name():
    replica = build()
    assert [(s.name, s.shape, s.role) for s in replica.tensors()] == [
        ("a.bias", (3,), "parameter"),
        ("z.weight", (3, 2), "parameter"),
    ]
    run(replica)
    replica.apply(lr_factor=1.0, used=[True, True])
    assert [(s.name, s.shape, s.role) for s in replica.tensors()][2:] == [
        ("a.bias/momentum_buffer", (3,), "slot"),
        ("z.weight/momentum_buffer", (3, 2), "slot"),
    ]


def test_values_come_and_go_with_canonical_axes():
    replica = build()
    assert np.array_equal(replica.read(["z.weight"])["z.weight"], KERNEL.T)
    wanted = np.array([[9.0, 8.0], [7.0, 6.0], [5.0, 4.0]])
    replica.write({"z.weight": wanted, "a.bias": np.zeros(3)})
    found = replica.read(["z.weight", "a.bias"])
    assert np.array_equal(found["z.weight"], wanted)
    assert found["z.weight"].flags.c_contiguous
    assert np.array_equal(found["a.bias"], np.zeros(3))


def test_slots_of_the_optimizer_follow_their_parameter_and_counters_stay():
    replica = build(optimizer=optim.Adam(lr=0.1))
    run(replica)
    replica.apply(lr_factor=1.0, used=[True, True])
    found = replica.read(["z.weight/exp_avg", "z.weight/step", "a.bias/exp_avg"])
    np.testing.assert_allclose(found["z.weight/exp_avg"], 0.1 * KERNEL_GRADIENT.T, rtol=1e-14)
    assert found["z.weight/step"].shape == ()
    assert found["z.weight/step"] == 1.0
    fresh = build(optimizer=optim.Adam(lr=0.1))
    fresh.write(found)  # makes them
    again = fresh.read(list(found))
    assert all(np.array_equal(again[name], found[name]) for name in found)


def test_flags_of_use_go_by_canonical_order():
    class OnlyKernel(Affine):
        def forward(self, x, rng=None):
            return x @ self.parameters["k"], lambda d: {"k": x.T @ d}

    job = Job(OnlyKernel(), optim.SGD(lr=1.0, weight_decay=0.5), MeanSquaredError("sum"))
    replica = RenamedReplica(NumpyReplica(job), NAMES)
    assert list(run(replica).used) == [False, True]  # a.bias, z.weight
    before = replica.read(["a.bias", "z.weight"])
    replica.apply(lr_factor=1.0, used=[False, True])
    after = replica.read(["a.bias", "z.weight"])
    assert np.array_equal(after["a.bias"], before["a.bias"])
    assert not np.array_equal(after["z.weight"], before["z.weight"])


def test_what_a_rank_owns_goes_by_canonical_order():
    replica = build()
    run(replica)
    before = replica.read(["a.bias", "z.weight"])
    replica.apply(lr_factor=1.0, used=[True, True], owned=[True, False])
    after = replica.read(["a.bias", "z.weight"])
    assert np.array_equal(before["a.bias"] - after["a.bias"], BIAS_GRADIENT)
    assert np.array_equal(after["z.weight"], before["z.weight"])


SLOTS = [Slot("a.bias", 0, 0, (3,)), Slot("z.weight", 0, 8, (3, 2))]


def test_gradients_keep_the_adapters_layout_where_all_ranks_have_it():
    replica, bucket = build(), np.zeros(16)
    replica.bind(SLOTS, [bucket])
    run(replica)
    assert np.array_equal(bucket[:3], BIAS_GRADIENT)
    assert np.array_equal(bucket[8:14], KERNEL_GRADIENT.ravel())


def test_gradients_are_turned_where_the_ranks_differ():
    replica, bucket = build(), np.zeros(16)
    replica.is_transposed = True
    replica.bind(SLOTS, [bucket])
    run(replica)
    assert np.array_equal(bucket[:3], BIAS_GRADIENT)
    assert np.array_equal(bucket[8:14], KERNEL_GRADIENT.T.ravel())
    bucket[:3], bucket[8:14] = 1.0, np.arange(6.0)
    before = replica.read(["z.weight"])["z.weight"]
    replica.apply(lr_factor=1.0, used=[True, True])
    moved = before - replica.read(["z.weight"])["z.weight"]
    assert np.array_equal(moved, np.arange(6.0).reshape(3, 2))


def test_the_inner_replica_is_told_its_own_names_and_the_axes():
    bound = []

    class Spy:
        counts_samples = True

        def tensors(self):
            return [TensorSpec("k", (2, 3), "float32"), TensorSpec("b", (3,), "float32")]

        def bind(self, slots, gradients):
            bound.append((slots, gradients))

    spy: Any = Spy()
    replica = RenamedReplica(spy, NAMES)
    replica.bind(SLOTS, ["buffer"])
    replica.is_transposed = True
    replica.bind(SLOTS, ["buffer"])
    assert bound[0] == ([Slot("k", 0, 8, (2, 3)), Slot("b", 0, 0, (3,))], ["buffer"])
    assert bound[1] == ([Slot("k", 0, 8, (3, 2), (1, 0)), Slot("b", 0, 0, (3,))], ["buffer"])
    assert replica.axes == {"z.weight": [1, 0], "a.bias": None}


def test_ties_and_private_buffers_are_told_in_canonical_names():
    class Tied:
        counts_samples = True

        def tensors(self):
            return [
                TensorSpec("k", (2, 3), "float32"),
                TensorSpec("head", (2, 3), "float32", tied_to="k"),
                TensorSpec("count", (), "int64", role="buffer", trainable=False),
                TensorSpec("mean", (3,), "float32", role="buffer", trainable=False, sync="mean"),
            ]

    tied: Any = Tied()
    replica = RenamedReplica(tied, {"k": "weight", "count": "n"})
    replica.keep_private(["n"])
    assert [(s.name, s.tied_to, s.sync) for s in replica.tensors()] == [
        ("head", "weight", "first"),
        ("weight", None, "first"),
        ("mean", None, "mean"),
        ("n", None, "none"),
    ]
    assert replica.axes == {"weight": None}


def test_a_gradient_that_is_not_finite_has_its_canonical_name():
    replica = build()
    replica.begin_update()
    micro = MicroBatch(0, (np.array([[1.0, 0.0]]), np.array([[0.0, np.inf, 0.0]])), 1)
    replica.forward_backward(micro, scale=1.0, seed=0, ready=lambda bucket: None)
    assert replica.non_finite() == ["z.weight", "a.bias"]


def test_unknown_names_and_models_without_tensors_are_refused():
    replica = build()
    with pytest.raises(ConfigError, match=r"no tensor 'weight'; known: \['a.bias', 'z.weight'\]"):
        replica.read(["weight"])

    class Unbuilt:
        def tensors(self):
            return []

    unbuilt: Any = Unbuilt()
    with pytest.raises(ConfigError, match="build it, or call it once, before compile"):
        RenamedReplica(unbuilt, {})
