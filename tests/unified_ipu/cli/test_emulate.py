"""``run --emulate``: what it cannot be combined with, and what it hands on."""

from __future__ import annotations

import pytest

from unified_ipu.cli import run
from unified_ipu.cli.main import main


@pytest.mark.parametrize(
    "options",
    [
        ["--plan", "plan.toml"],
        ["--set", "mesh.data=2"],
        ["--launcher", "poprun", "--dry-run"],
        ["--dry-run"],
        ["--bind", "none"],
    ],
)
def test_a_script_that_knows_no_plan_takes_none(options, capsys):
    assert main(["run", "--emulate", *options, "script.py"]) == 2
    assert "--emulate runs a script that knows nothing of plans" in capsys.readouterr().err


def test_the_script_gets_its_own_words_and_gives_the_status(monkeypatch):
    seen = []

    def run_emulated(script, arguments):
        seen.append((script, list(arguments)))
        return 3

    monkeypatch.setattr(run, "run_emulated", run_emulated)
    assert main(["run", "--emulate", "script.py", "--plan", "x", "--emulate"]) == 3
    assert seen == [("script.py", ["--plan", "x", "--emulate"])]
