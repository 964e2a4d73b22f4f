"""Live values as text: what a script made itself, plain values, and refusals by name."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from unified_ipu.cli.recorded import RecordedLoader
from unified_ipu.cli.recording import record
from unified_ipu.cli.writing import Writer
from unified_ipu.cli.written_data import data_text
from unified_ipu.cli.written_rate import rate_text
from unified_ipu.errors import ConfigError

MODULE = """
from collections import OrderedDict

class Layer:
    def __init__(self, width, *, name="layer", scale=1.0):
        self.width, self.name, self.scale = width, name, scale

class Chain:
    def __init__(self, *layers, bias=True):
        self.layers, self.bias = layers, bias

def network(width, depth=2, *, name=None):
    return Chain(*[Layer(width) for _ in range(depth)])

def half(update):
    return 0.5
"""

SCRIPT = """
import math
import numpy as np
import unified_ipu as ui
from parts_of_{tag} import Chain, Layer, network, half

class Own:
    def __init__(self):
        self.rows = [(1.0, 2)] * 8

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return self.rows[index]

def made_here(width):
    return Layer(width + 1)

def main():
    rows = 8
    with ui.Session() as session:
        train = session.loader(ui.data.arrays(np.ones((8, 1)), np.ones(8)))
        with session.scope():
            model = {model}
        program = session.compile(model, optimizer=None, schedule={schedule})
        program.fit(train, epochs=3)

if __name__ == "__main__":
    main()
"""

PLAN = '[batch]\nglobal_batch_size = 4\nmicro_batch_size = 2\nremainder = "pad"\n'


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    """Run a script with one line of its own until it fits."""
    tag = tmp_path.name.replace("-", "_")
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / f"parts_of_{tag}.py").write_text(MODULE)
    (tmp_path / "plan.toml").write_text(PLAN)
    script = tmp_path / "train.py"

    def run(model="network(4)", schedule="None", text=SCRIPT, **options):
        script.write_text(text.format(tag=tag, model=model, schedule=schedule))
        options.setdefault("plan_path", None)
        options.setdefault("settings", ())
        found = record(script, options.pop("arguments", ()), **options)
        return found, Writer(script, found.calls, {"Data"}), script

    yield run
    sys.modules.pop(f"parts_of_{tag}", None)


@pytest.mark.parametrize(
    ("made", "text"),
    [
        ("network(rows)", "network(8)"),
        ("network(rows, depth=3)", "network(8, depth=3)"),
        ('network(rows, 2, name="a")', 'network(8, name="a")'),
        ("Layer(2 * rows, scale=math.pi)", "Layer(16, scale=3.141592653589793)"),
        ('Chain(Layer(1), Layer(2, name="b"))', 'Chain(Layer(1), Layer(2, name="b"))'),
        ("Chain(bias=False)", "Chain(bias=False)"),
        ("made_here(rows)", "Layer(9)"),
    ],
)
def test_a_model_is_written_as_the_call_that_made_it(recorded, made, text):
    found, writer, script = recorded(made)
    assert writer.write(found.program.job.model, "the model") == text
    (line,) = {each for each in writer.imports if text.partition("(")[0] in each}
    assert line.startswith(f"from parts_of_{script.parent.name.replace('-', '_')} import ")


@pytest.mark.parametrize(
    ("made", "words"),
    [
        ("Own()", r"Own is defined in train.py itself, .*; move Own to a module of its own"),
        ("[network(1) for _ in 'a'][0].layers[0]", "is a Layer that cannot be written as text"),
        ("Layer(Own)", "move Own to a module"),
        ("Layer(open)", None),
        ("Layer(lambda: 1)", "function main.<locals>.<lambda> that cannot be written"),
        ("Layer(ui.optim.SGD(lr=1.0))", "belongs to unified_ipu"),
    ],
)
def test_what_cannot_be_made_from_text_is_refused_by_name(recorded, made, words):
    found, writer, _ = recorded(made)
    if words is None:
        assert writer.write(found.program.job.model, "the model") == "Layer(open)"
        return
    with pytest.raises(ConfigError, match=words):
        writer.write(found.program.job.model, "the model")


def test_a_module_that_comes_to_import_unified_ipu_is_refused_with_the_way(tmp_path, recorded):
    (tmp_path / "deep.py").write_text("def inner():\n    from unified_ipu import plan\n")
    (tmp_path / "through.py").write_text("import deep\nclass Net: pass\n")
    text = SCRIPT.replace("import math", "from through import Net")
    found, writer, _ = recorded("Net()", text=text)
    sys.modules.pop("through"), sys.modules.pop("deep")
    # Net has no __init__ of its own, so nothing says how it was made; its class is enough here.
    with pytest.raises(ConfigError, match=r"through -> deep -> unified_ipu\); move Net"):
        writer.name("through", "Net", "the model")
    assert found.epochs == 3


def test_plain_values_are_written_as_python(recorded):
    _, writer, _ = recorded()
    value = {"a": [1, 2.5, None], "b": (True,), "c": {3}, "d": Path("x/y"), "e": float("inf")}
    assert writer.write(value, "it") == (
        '{"a": [1, 2.5, None], "b": (True,), "c": {3}, "d": Path("x/y"), "e": float("inf")}'
    )
    assert "from pathlib import Path" in writer.imports


def test_the_plan_of_the_command_line_counts_and_the_script_gets_its_arguments(recorded):
    text = SCRIPT.replace("rows = 8", "import sys\n    rows = int(sys.argv[1])")
    found, writer, _ = recorded(
        "network(rows)",
        text=text,
        arguments=["5"],
        settings=["batch.updates_per_call=3", "ipu.replicas_per_process=2"],
    )
    assert writer.write(found.program.job.model, "the model") == "network(5)"
    assert (found.plan.batch.updates_per_call, found.plan.mesh.data) == (3, 2)
    assert (found.batch.global_batch_size, found.batch.num_updates(8)) == (4, 2)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("program.fit(train, epochs=3)", "pass"), "did not call program.fit"),
        (("program.fit(train, epochs=3)", "program.step(None)"), "program.step before fit"),
        (("program.fit(train, epochs=3)", "for call in train: pass"), "a loop of the script's own"),
        (("epochs=3", "max_updates=3"), r"max_updates=\) is not written"),
        (("rows = 8", "raise SystemExit(3)"), "ended with status 3 before it called"),
        (("rows = 8", "ui.Session().gather(1)"), "session.gather before the first fit"),
    ],
)
def test_what_a_script_asks_of_devices_before_fit_is_refused(recorded, change, words):
    with pytest.raises(ConfigError, match=words):
        recorded(text=SCRIPT.replace(*change))


def rate(recorded, schedule, settings=()):
    found, writer, script = recorded(schedule=schedule, settings=settings)
    text = rate_text(found.program.schedule, found.plan, size=4, writer=writer, script=script)
    names: dict = {}
    exec("\n".join([*writer.imports, text]), names)  # noqa: S102 - the text under test
    return names["rate_factor"], text


@pytest.mark.parametrize(
    ("schedule", "body"),
    [
        ("None", "    return 1.0\n"),
        (
            "lambda update: 1.0 - update / rows",
            "    rows = 8  # in train.py\n    return 1.0 - update / rows\n",
        ),
        ("lambda k: math.cos(k)", "    return (lambda k: math.cos(k))(update)\n"),
        ("half", "    return half(update)\n"),
    ],
)
def test_a_schedule_is_written_with_the_numbers_it_uses(recorded, schedule, body):
    _, text = rate(recorded, schedule)
    assert text.endswith(body)


def test_scaling_and_warm_up_come_before_the_schedule(recorded):
    settings = ["update.warmup_updates=4", "update.lr_scaling=linear"]
    settings.append("update.base_global_batch_size=2")
    factor, _ = rate(recorded, "lambda update: 1.0 - update / rows", settings=settings)
    assert [factor(k) for k in (0, 1, 3, 4, 6)] == [0.5, 0.875, 1.25, 1.0, 0.5]


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        ("lambda update: train.size", "uses train, a RecordedLoader"),
        ("[lambda update: 1.0, lambda update: 2.0][1]", "one of 2 lambdas in line"),
        ("Own().__init__", "which is not written"),
    ],
)
def test_a_schedule_that_is_no_text_is_refused(recorded, schedule, words):
    with pytest.raises(ConfigError, match=words):
        rate(recorded, schedule)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ('ui.data.stream("pipes:numbers")', "a StreamSource, which cannot be written"),
        (
            'ui.data.tensorflow("train:sample", size=8)',
            r"imports unified_ipu \(train -> unified_ipu\)",
        ),
        ('ui.data.tensorflow("no.pipe:sample", size=8)', "there is no module no.pipe beside"),
        ("ui.data.arrays(dict(x=np.ones(8)))", "no plain \\(inputs, targets\\)"),
        ("ui.data.dataset(Own())", "Own is defined in train.py itself"),
    ],
)
def test_a_source_that_is_no_text_is_refused_by_name(recorded, source, words):
    text = SCRIPT.replace("ui.data.arrays(np.ones((8, 1)), np.ones(8))", source)
    found, writer, script = recorded(text=text)
    assert isinstance(found.loader, RecordedLoader)
    with pytest.raises(ConfigError, match=words):
        data_text(found.loader, writer, script, "new.npz")
