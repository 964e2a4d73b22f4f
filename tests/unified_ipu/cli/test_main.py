"""The command line: what belongs to us and what to the script."""

from __future__ import annotations

import subprocess
import sys

import pytest

from unified_ipu.cli.main import main, parse


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--set", "x=1", "--plan", "mine.toml"],
        ["--", "-h"],
        ["-h", "--version"],
        ["plan", "explain", "run"],
        ["", "a b", "-x=1", "--=", "-"],
    ],
)
def test_all_words_after_the_script_are_its_own(words):
    ours = ["run", "--plan", "p.toml", "--set", "a=1", "--set", "b=--c", "train.py"]
    args = parse([*ours, *words])
    assert args.script_args == words
    assert (args.plan, args.settings, args.script) == ("p.toml", ["a=1", "b=--c"], "train.py")


def test_a_value_may_be_joined_and_a_script_may_follow_two_dashes():
    args = parse(["run", "--plan=p.toml", "--set=a=1", "--", "train.py", "--", "-h"])
    assert (args.plan, args.settings, args.script) == ("p.toml", ["a=1"], "train.py")
    assert args.script_args == ["--", "-h"]


def test_version_is_that_of_the_distribution(capsys):
    with pytest.raises(SystemExit) as exited:
        main(["--version"])
    assert exited.value.code == 0
    assert capsys.readouterr().out.startswith("unified-ipu 0.")


@pytest.mark.parametrize(
    "words", [[], ["walk"], ["run"], ["run", "--set"], ["run", "--pla", "x", "s.py"]]
)
def test_wrong_words_are_status_2_with_a_usage_line(words, capsys):
    with pytest.raises(SystemExit) as exited:
        main(words)
    assert exited.value.code == 2
    assert "usage: unified-ipu" in capsys.readouterr().err


def test_an_error_of_ours_is_one_line_without_traceback(capsys, tmp_path):
    assert main(["run", str(tmp_path / "absent.py")]) == 2
    err = capsys.readouterr().err
    assert err.startswith("unified-ipu: ")
    assert err.endswith("give the path of a Python file\n")


@pytest.mark.timeout(60)
def test_the_module_can_be_run():
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "unified_ipu.cli.main", "run", "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "Everything after the script" in done.stdout
