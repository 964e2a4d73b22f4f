"""Devices and threads of a rank that trains a model."""

from __future__ import annotations

import logging
import subprocess
import sys
from types import SimpleNamespace
from typing import Any, List

import pytest

from unified_ipu.adapter import Place
from unified_ipu.errors import CapabilityError
from unified_ipu.plan import Plan
from unified_ipu_tensorflow import runtime

pytestmark = pytest.mark.timeout(120)

THREADS = """
import logging, sys
logging.basicConfig(stream=sys.stdout, format="%(message)s")
from unified_ipu.adapter import Job, Place, optim
from unified_ipu.plan import Plan
from unified_ipu_tensorflow import create, runtime
import tensorflow as tf
runtime.usable_cores = lambda: 6
adapter, place = create(), Place(local_size=2, cores=4)
def model():
    return tf.keras.Sequential([tf.keras.Input((1,)), tf.keras.layers.Dense(1)])
def build(native, place):
    job = Job(native, loss=tf.keras.losses.MeanSquaredError(), optimizer=optim.SGD(0.1))
    adapter.build(job, Plan(), place)
with adapter.scope(Plan(), place):
    native = model()
build(native, place)
print(tf.config.threading.get_intra_op_parallelism_threads())
print(tf.config.threading.get_inter_op_parallelism_threads())
build(native, Place(local_size=3))  # nothing was worked out: an equal part
"""


@pytest.mark.case("O-P4")
@pytest.mark.slow
def test_ranks_of_a_host_share_its_cores_and_say_what_comes_too_late():
    done = subprocess.run(
        [sys.executable, "-c", THREADS], capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, done.stderr
    intra, inter, *warnings = done.stdout.splitlines()
    assert (intra, inter) == ("4", "4")
    assert len(warnings) == 1
    assert "cannot be set any more: intra-op threads, inter-op threads" in warnings[0]
    assert "session.scope()" in warnings[0]


class Config:
    """Stands in for the devices of TensorFlow on a host with GPUs."""

    def __init__(self, num_gpus: int) -> None:
        self.gpus = [SimpleNamespace(name=f"gpu{index}") for index in range(num_gpus)]
        self.visible = list(self.gpus)
        self.growing: List[str] = []
        self.experimental = SimpleNamespace(
            get_memory_growth=lambda gpu: gpu.name in self.growing,
            set_memory_growth=lambda gpu, on: self.growing.append(gpu.name),
        )

    def list_physical_devices(self, kind: str) -> Any:
        return self.gpus if kind == "GPU" else []

    def get_visible_devices(self, kind: str) -> Any:
        return self.visible if kind == "GPU" else []

    def set_visible_devices(self, gpus: Any, kind: str) -> None:
        assert kind == "GPU"
        self.visible = list(gpus)


@pytest.mark.parametrize(
    ("target", "place", "seen", "runs_on"),
    [
        ("auto", Place(device_index=1, local_size=2), ["gpu1"], "cuda"),
        ("cuda", Place(local_rank=1, local_size=2), ["gpu1"], "cuda"),
        ("auto", Place(), ["gpu0"], "cuda"),
        ("auto", Place(local_rank=1, local_size=2), [], "cpu"),
        ("cpu", Place(device_index=1), [], "cpu"),
    ],
)
def test_a_rank_sees_its_own_gpu_only_and_lets_its_memory_grow(
    monkeypatch, target, place, seen, runs_on
):
    config = Config(2)
    monkeypatch.setattr(runtime, "tf", SimpleNamespace(config=config))
    monkeypatch.setattr(runtime, "_limit_threads", lambda late, threads: None)
    runtime.take_rank(Plan(target=target), place, warns=True)
    assert [gpu.name for gpu in config.visible] == seen
    assert config.growing == ["gpu0", "gpu1"]  # what is hidden late takes no more than it needs
    assert runtime.choose_target(Plan(target=target), place) == runs_on


def test_devices_that_were_used_already_are_reported(monkeypatch, caplog):
    config = Config(2)

    def refuse(*_: Any) -> None:
        raise RuntimeError("devices cannot be modified after being initialized")

    monkeypatch.setattr(config, "set_visible_devices", refuse)
    monkeypatch.setattr(config.experimental, "set_memory_growth", refuse)
    monkeypatch.setattr(runtime, "tf", SimpleNamespace(config=config))
    with caplog.at_level(logging.WARNING):
        runtime.take_rank(Plan(), Place(device_index=0), warns=False)
        assert caplog.text == ""
        runtime.take_rank(Plan(), Place(device_index=0), warns=True)
    assert "which GPUs are seen, memory growth of gpu0, memory growth of gpu1" in caplog.text


def test_a_target_without_its_device_is_refused(monkeypatch):
    monkeypatch.setattr(runtime, "tf", SimpleNamespace(config=Config(0)))
    assert runtime.choose_target(Plan(), Place()) == "cpu"
    with pytest.raises(CapabilityError, match="no GPU is usable"):
        runtime.choose_target(Plan(target="cuda"), Place())
