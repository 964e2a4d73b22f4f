"""The lowering as a plain PopTorch script: what is written, what it needs, what is refused."""

from __future__ import annotations

import importlib.util
import runpy
import sys
from types import ModuleType

import numpy as np
import pytest
import torch

from unified_ipu.cli.main import main
from unified_ipu.data import Order
from unified_ipu_torch.emulated import poptorch

MODULE = """
import torch

class Net(torch.nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.inner = torch.nn.Linear(3, width)
        self.outer = torch.nn.Linear(width, 2)

    def forward(self, x):
        return self.outer(torch.tanh(self.inner(x)))
"""

SCRIPT = """
import numpy as np
import torch
import unified_ipu as ui
from net_of_{tag} import Net

def main():
    with ui.Session() as session:
        with session.scope():
            model = Net(width=5)
        rows = np.arange(90, dtype=np.float32).reshape(30, 3) / 90
        train = session.loader(ui.data.arrays(rows, np.arange(30) % 2))
        program = session.compile(
            model, loss={loss}, optimizer={optimizer}, {more}
        )
        program.fit(train, epochs=2)
        torch.save(model.state_dict(), "{folder}/host.pt")

main()
"""

SETTINGS = [
    "batch.global_batch_size=8",
    "batch.micro_batch_size=2",
    "batch.remainder=pad",
    "batch.updates_per_call=3",
    "ipu.replicas_per_process=2",
]


@pytest.fixture
def lowered(tmp_path):
    """Lower a small script; returns the new script."""
    tag = tmp_path.name.replace("-", "_")
    (tmp_path / f"net_of_{tag}.py").write_text(MODULE)

    def lower(
        loss="torch.nn.CrossEntropyLoss()",
        optimizer="ui.optim.SGD(lr=0.5, momentum=0.9)",
        more="",
        settings=(),
    ):
        script = tmp_path / "train.py"
        script.write_text(
            SCRIPT.format(folder=tmp_path, tag=tag, loss=loss, optimizer=optimizer, more=more)
        )
        words = [word for each in [*SETTINGS, *settings] for word in ("--set", each)]
        status = main(["lower", "--write", str(tmp_path / "native.py"), *words, str(script)])
        return (tmp_path / "native.py") if status == 0 else status

    return lower


def loaded(path, monkeypatch, sdk=None):
    """Import a written script with our packages blocked; without ``sdk`` one that has nothing."""
    for name in ("unified_ipu", "unified_ipu_torch"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "poptorch", sdk or ModuleType("poptorch"))
    monkeypatch.syspath_prepend(str(path.parent))
    spec = importlib.util.spec_from_file_location(f"{path.parent.name}_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_data_part_runs_without_us_and_feeds_the_rows_of_our_order(lowered, monkeypatch):
    path = lowered()
    module = loaded(path, monkeypatch)
    calls = list(module.calls_of(module.Data(), 1))
    # 30 samples make 4 updates of 8, the last of 6 rows and 2 of padding: calls of 3 and of 1.
    assert [len(coefficients) for _, _, coefficients in calls] == [24, 8]
    ids = Order(30, seed=0, epoch=1).slice(0, 30)
    fed = np.concatenate([inputs for inputs, _, _ in calls])
    rows = np.arange(90, dtype=np.float32).reshape(30, 3) / 90
    assert fed[:30].tolist() == rows[ids].tolist()
    assert fed[30:].tolist() == rows[ids[[24, 25]]].tolist()
    assert calls[0][2].tolist() == [0.125] * 24
    assert calls[1][2].tolist() == [np.float32(1 / 6)] * 6 + [0.0, 0.0]


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        ([], {"more": "schedule=lambda update: 1.0 / (1.0 + update)"}),
        (["update.clip_norm=0.2"], {"optimizer": "ui.optim.SGD(lr=0.5, weight_decay=0.1)"}),
        (
            ["update.reduction=sum", "update.warmup_updates=5"],
            {"optimizer": "ui.optim.AdamW(lr=0.01)"},
        ),
        (
            [],
            {"loss": "torch.nn.CrossEntropyLoss(torch.tensor([0.5, 2.0]), label_smoothing=0.1)"},
        ),
    ],
    ids=["schedule", "clip", "adamw-sum", "class-weights"],
)
def test_l5_the_written_script_trains_as_the_host_does(
    tmp_path, lowered, monkeypatch, settings, parts
):
    script = loaded(lowered(settings=settings, **parts), monkeypatch, poptorch)
    monkeypatch.chdir(tmp_path)
    script.main()
    found = torch.load(tmp_path / "native.pt", weights_only=True)
    monkeypatch.undo()
    monkeypatch.syspath_prepend(str(tmp_path))
    host = [*SETTINGS[:2], SETTINGS[3], "mesh.data=1", *settings]
    words = [word for each in host for word in ("--set", each)]
    monkeypatch.setattr(sys, "argv", ["train.py", *words])
    runpy.run_path(str(tmp_path / "train.py"), run_name="__main__")
    expected = torch.load(tmp_path / "host.pt", weights_only=True)
    apart = sum(float(((found[n] - expected[n]).double() ** 2).sum()) for n in expected)
    whole = sum(float((expected[n].double() ** 2).sum()) for n in expected)
    assert len(found) == len(expected) == 4
    assert np.sqrt(apart / whole) < 1e-5


@pytest.mark.parametrize(
    ("loss", "text", "units"),
    [
        ("torch.nn.CrossEntropyLoss()", 'torch.nn.CrossEntropyLoss(reduction="none")', [1, 1, 1]),
        (
            "torch.nn.CrossEntropyLoss(torch.tensor([0.5, 2.0]), ignore_index=1)",
            'torch.nn.CrossEntropyLoss(weight=torch.tensor([0.5,2.0]),ignore_index=1,reduction="none",)',
            [0.5, 0.0, 0.5],
        ),
        ("ui.losses.huber(delta=2.0)", 'torch.nn.HuberLoss(delta=2.0, reduction="none")', [1] * 3),
        ("torch.nn.functional.mse_loss", 'torch.nn.MSELoss(reduction="none")', [1, 1, 1]),
    ],
)
def test_a_loss_is_written_with_one_value_a_unit_and_its_weights(
    lowered, monkeypatch, loss, text, units
):
    path = lowered(loss)
    assert f"self.loss={text}".replace(" ", "") in "".join(path.read_text().split())
    module = loaded(path, monkeypatch)
    assert module.units_of(np.array([0, 1, 0])).tolist() == units


def test_the_rows_of_a_loss_of_elements_weigh_their_number(lowered, monkeypatch):
    module = loaded(lowered("torch.nn.L1Loss()"), monkeypatch)
    assert module.units_of(np.zeros((2, 3, 4))).tolist() == [12.0, 12.0]


@pytest.mark.parametrize(
    ("optimizer", "settings", "text"),
    [
        (
            "ui.optim.AdamW(lr=0.01)",
            ["precision.loss_scale=128.0"],
            """\
        self.optimizer = poptorch.optim.AdamW(
            self.model.parameters(),
            lr=0.01,
            betas=(0.9, 0.999),
            eps=1e-08,
            weight_decay=0.01,
            accum_type=torch.float32,  # precision.reduce
            loss_scaling=128.0,  # precision.loss_scale
        )
""",
        ),
        (
            "torch.optim.SGD(model.parameters(), lr=0.5)",
            ["update.clip_norm=2.0"],
            """\
            lr=0.5,
            weight_decay=0,
            accum_type=torch.float32,  # precision.reduce
            max_grad_norm=2.0,  # update.clip_norm
        )
""",
        ),
    ],
)
def test_an_optimizer_is_written_with_every_value_and_what_the_plan_adds(
    lowered, optimizer, settings, text
):
    assert text in lowered(optimizer=optimizer, settings=settings).read_text()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"loss": "lambda outputs, targets: outputs.sum()"}, "loss= is a function; those that"),
        ({"loss": "torch.nn.CTCLoss()"}, "loss= is a CTCLoss"),
        ({"optimizer": "None"}, "compile got no optimizer"),
        (
            {"optimizer": "torch.optim.Adagrad(model.parameters(), lr=1.0)"},
            "optimizer= is a Adagrad; PopTorch has SGD, Adam, AdamW, RMSprop",
        ),
        (
            {"optimizer": "torch.optim.Adam(model.parameters(), amsgrad=True)"},
            "PopTorch has no such thing",
        ),
        (
            {"optimizer": "torch.optim.SGD(model.outer.parameters(), lr=1.0)"},
            "1 parameter group(s) over 2 of 4 parameters",
        ),
        (
            {"optimizer": "ui.optim.SGD(lr=1.0, momentum=0.5, dampening=0.5)"},
            "first velocity is the whole gradient",
        ),
        ({"settings": ["update.clip_norm=1.0"]}, "PopART clips the velocity of SGD"),
        (
            {
                "settings": ["update.clip_norm=1.0", "precision.loss_scale=8.0"],
                "optimizer": "ui.optim.SGD(lr=1.0)",
            },
            "while they still have the loss scale",
        ),
        ({"more": "weight=len"}, "compile(weight=) is not written"),
        ({"more": 'trainable=["outer.bias"]'}, "compile(trainable=) is not written"),
        ({"settings": ["batch.remainder=exact"]}, "batch.remainder"),
        ({"settings": ["mesh.data=4"]}, "set ipu.replicas_per_process to 4"),
        ({"settings": ["precision.compute=float16"]}, 'precision.compute = "float16" is not'),
    ],
)
def test_what_cannot_be_written_is_refused_by_name(lowered, capsys, given, words):
    assert lowered(**given) in {1, 2}
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    "change", ["model.inner.bias.data.zero_()", "torch.rand(1); model = Net(5)"]
)
def test_a_model_that_is_not_what_its_call_makes_is_refused(tmp_path, lowered, capsys, change):
    lowered()
    script = tmp_path / "train.py"
    text = script.read_text().replace("Net(width=5)\n", f"Net(width=5)\n            {change}\n")
    script.write_text(text)
    words = [word for each in SETTINGS for word in ("--set", each)]
    assert main(["lower", "--write", str(tmp_path / "other.py"), *words, str(script)]) == 1
    assert "it was changed afterwards, or made after other random" in capsys.readouterr().err


def test_the_command_refuses_paths_that_cannot_be_right(tmp_path, capsys):
    assert main(["lower", "--write", str(tmp_path / "a.py"), str(tmp_path / "b.py")]) == 2
    assert "no such file" in capsys.readouterr().err
    assert main(["lower", "--write", str(tmp_path / "a.txt"), __file__]) == 2
    assert "expected another file that ends in .py" in capsys.readouterr().err
