"""The lowering as a plain script of Keras for IPU: it trains as the host does; refusals by name."""

from __future__ import annotations

import ast
import importlib.util
import runpy
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import unified_ipu as ui
from unified_ipu.cli.main import main
from unified_ipu_tensorflow.emulated import ipu

pytestmark = pytest.mark.timeout(120)

keras: Any = tf.keras

MODULE = """
from tensorflow import keras

def network(width, penalty=None):
    dense = keras.layers.Dense(width, activation="tanh", kernel_regularizer=penalty)
    return keras.Sequential([keras.Input((3,)), dense, keras.layers.Dense(2)])

def shapeless():
    return keras.Sequential([keras.layers.Dense(2)])

def draw(s, seed):
    import tensorflow as tf
    noise = tf.random.stateless_uniform([3], seed)
    return noise + tf.cast(s, tf.float32), s % 2

def each():
    return lambda s: draw(s.index, s.seed)

def batched():
    import tensorflow as tf
    kinds = (tf.float32, tf.int64)
    made = lambda pair: draw(*pair)
    return lambda s: tf.map_fn(made, (s.index, s.seed), fn_output_signature=kinds)
"""

SCRIPT = """
import numpy as np
import unified_ipu as ui
from tensorflow import keras
from net_of_{tag} import network, shapeless

def main():
    with ui.Session() as session:
        with session.scope():
            model = {model}
        rows = np.sin(np.arange(90, dtype=np.float32)).reshape(30, 3)
        train = session.loader({source})
        program = session.compile(
            model, loss={loss}, optimizer={optimizer}, {more}
        )
        program.fit(train, epochs=2)
        np.savez("{folder}/host.npz", *model.get_weights())

main()
"""

HOST = ["batch.global_batch_size=8", "batch.micro_batch_size=2", "batch.updates_per_call=3"]
DEVICE = ["batch.remainder=pad", "ipu.replicas_per_process=2"]
SPARSE = "keras.losses.SparseCategoricalCrossentropy(from_logits=True)"
ONE_HOT = "np.eye(2, dtype=np.float32)[np.arange(30) % 2]"


def words(settings):
    return [word for each in settings for word in ("--set", each)]


@pytest.fixture
def lowered(tmp_path, monkeypatch):
    """Lower a small script; returns the new script, or the status of the command."""
    tag = tmp_path.name.replace("-", "_")
    (tmp_path / f"net_of_{tag}.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def lower(settings=(), **parts):
        given = {"model": "network(5)", "loss": SPARSE, "more": ""}
        given["optimizer"] = "keras.optimizers.SGD(0.1)"
        targets = parts.pop("targets", "np.arange(30) % 2")
        given["source"] = f"ui.data.arrays(rows, {targets})"
        text = SCRIPT.format(tag=tag, folder=tmp_path, **{**given, **parts})
        (tmp_path / "train.py").write_text(text)
        both = words([*HOST, *DEVICE, *settings])
        status = main(["lower", "--write", "native.py", *both, "train.py"])
        return (tmp_path / "native.py") if status == 0 else status

    return lower


def trained_on_the_host(folder, settings, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train.py", *words([*HOST, "mesh.data=1", *settings])])
    runpy.run_path(str(folder / "train.py"), run_name="__main__")
    with np.load(folder / "host.npz") as saved:
        return [saved[name] for name in saved]


def trained_on_the_device(path, monkeypatch):
    """Run a written script as ``run --emulate`` does."""
    script = loaded(path, monkeypatch)
    device = script.Device()
    script.Device = lambda: device
    script.main()
    assert (path.parent / "native.weights.h5").exists()
    found = device.model.get_weights()
    keras.backend.clear_session()
    return found


def loaded(path, monkeypatch) -> Any:
    """Import a written script, with our packages out of its reach."""
    monkeypatch.setattr(sys.modules["tensorflow.python"], "ipu", ipu, raising=False)
    spec = importlib.util.spec_from_file_location(f"{path.parent.name}_native", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with monkeypatch.context() as blocked:
        blocked.setitem(sys.modules, "unified_ipu", None)
        spec.loader.exec_module(module)
    return module


@pytest.mark.filterwarnings(
    "ignore:__array__ implementation:DeprecationWarning"
)  # saving, in Keras
@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        (
            [],
            {
                "optimizer": "keras.optimizers.SGD("
                "keras.optimizers.schedules.CosineDecay(0.2, 20), momentum=0.5)"
            },
        ),
        (
            ["update.clip_norm=0.05", "update.warmup_updates=4"],
            {
                "optimizer": "ui.optim.SGD(lr=0.5)",
                "loss": "ui.losses.mean_squared_error()",
                "targets": ONE_HOT,
                "more": "schedule=lambda update: 1.0 - update / 16",
            },
        ),
        (
            ["update.reduction=sum"],
            {
                "optimizer": "keras.optimizers.Adam(0.01)",
                "loss": "keras.losses.BinaryCrossentropy(from_logits=True)",
                "targets": ONE_HOT,
            },
        ),
    ],
    ids=["sgd-schedule", "clip-warm-up", "adam-sum"],
)
def test_l5_the_written_script_trains_as_the_host_does(
    tmp_path, lowered, monkeypatch, settings, parts
):
    path = lowered(settings, **parts)
    found = trained_on_the_device(path, monkeypatch)
    expected = trained_on_the_host(tmp_path, settings, monkeypatch)
    apart = np.sqrt(sum(float(((a - b) ** 2).sum()) for a, b in zip(found, expected)))
    whole = np.sqrt(sum(float((b**2).sum()) for b in expected))
    assert len(found) == len(expected) == 4
    assert apart < 1e-5 * whole


@pytest.mark.parametrize("function", ["each", "batched"])
def test_l2_a_pipeline_gives_the_samples_that_the_loader_gives(
    tmp_path, lowered, monkeypatch, function
):
    name = f"net_of_{tmp_path.name.replace('-', '_')}"
    source = f'ui.data.tensorflow("{name}:{function}", size=30, batched={function == "batched"})'
    script = loaded(lowered(source=source), monkeypatch)
    calls = list(script.calls_of(script.Data(), 1))
    found = [np.concatenate(part) for part in zip(*calls)]
    ids = script.rows_of(1)[0].reshape(-1)
    plan = ui.Plan().replace({"batch.global_batch_size": 8, "data.isolate": "never"})
    with ui.Session(plan, argv=[str(tmp_path / "train.py")]) as session:
        given = ui.data.tensorflow(f"{name}:{function}", size=30, batched=function == "batched")
        loader = session.loader(given)
        loader.seek(1, 0)
        micros = [micro for call in loader for u in call.updates for micro in u.micro_batches]
        expected = [np.concatenate(part) for part in zip(*(micro.tree for micro in micros))]
        own = np.concatenate([micro.ids for micro in micros])
    assert ids[:30].tolist() == own.tolist()
    assert found[0][:30].tolist() == expected[0].tolist()
    assert found[1][:30].tolist() == expected[1].tolist()


@pytest.mark.skipif(importlib.util.find_spec("ruff") is None, reason="needs ruff")
def test_the_script_is_formatted_and_imports_nothing_of_ours(lowered):
    path = lowered()
    text = path.read_text()
    imported = {
        name
        for node in ast.walk(ast.parse(text))
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for name in [getattr(node, "module", None) or node.names[0].name]
    }
    assert not [name for name in imported if name.startswith("unified_ipu")]
    for line in (
        "config.auto_select_ipus = 2  # ipu.replicas_per_process, ipu.ipus_per_replica",
        "gradient_accumulation_steps_per_replica=2,",
        'gradient_accumulation_reduction_method="sum",',
        "model.compile(optimizer, loss, steps_per_execution=6)",
        "dataset = dataset.batch(2, drop_remainder=True)  # batch.micro_batch_size",
        "self.optimizer.learning_rate.assign(rate)  # update.lr_scaling",
    ):
        assert line in text
    for width in ("88", "100"):
        command = [sys.executable, "-m", "ruff", "format", "--isolated", "--check"]
        done = subprocess.run(
            [*command, "--line-length", width, str(path)], capture_output=True, check=False
        )
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("settings", "parts", "message"),
    [
        ([], {"optimizer": "None"}, "compile got no optimizer"),
        pytest.param(
            [],
            {"optimizer": "keras.optimizers.AdamW(0.1)"},
            "which TensorFlow 2.6 has not",
            marks=pytest.mark.skipif(
                not hasattr(keras.optimizers, "AdamW"), reason="Keras 2.6 has no AdamW"
            ),
        ),
        ([], {"optimizer": "ui.optim.Adam(lr=0.1)"}, "or not with this arithmetic"),
        ([], {"optimizer": "keras.optimizers.SGD(0.1, clipnorm=1.0)"}, "SGD(clipnorm=) is not"),
        (
            ["update.warmup_updates=3"],
            {"optimizer": "ui.optim.SGD(lr=0.1, momentum=0.5)"},
            "has the rate in its velocity",
        ),
        ([], {"loss": "keras.losses.CosineSimilarity()"}, "loss= is a CosineSimilarity; those"),
        ([], {"loss": "lambda outputs, targets: 0.0"}, "loss= is a function"),
        ([], {"model": "shapeless()"}, "the model has no weights yet"),
        ([], {"model": 'network(5, penalty="l2")'}, "adds model.losses in every micro-batch"),
        ([], {"model": "network(5); model.layers[0].bias.assign([1.0] * 5)"}, "it was changed"),
        (["precision.loss_scale=8.0"], {}, "a transformer of gradients, which is not written"),
        (["compile.cache_dir=/x"], {}, "are read when TensorFlow starts, which is not written"),
    ],
)
def test_what_cannot_be_written_is_refused_by_name(lowered, capsys, settings, parts, message):
    assert lowered(settings, **parts) == 1
    assert message in capsys.readouterr().err
