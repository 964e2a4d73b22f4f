"""``unified-ipu plan explain`` as a user calls it."""

from __future__ import annotations

import argparse

import pytest

from unified_ipu.cli import plan as command
from unified_ipu.errors import PlanError


def call(*arguments):
    parser = argparse.ArgumentParser()
    command.add_parser(parser.add_subparsers(dest="command"))
    args = parser.parse_args(["plan", *arguments])
    return args.run(args)


def test_it_explains_a_file_with_settings_changed(tmp_path, capsys):
    path = tmp_path / "my.toml"
    path.write_text("[mesh]\ndata = 3\n")
    status = call("explain", str(path), "--samples", "1000", "--set", "batch.updates_per_call=4")
    text = capsys.readouterr().out
    assert status == 0
    assert text.startswith(f"plan: {path}\n")
    assert "R = 3" in text
    assert "D = 4" in text
    assert "an epoch of 1000 samples" in text


def test_without_a_file_it_takes_the_one_here_or_the_defaults(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    call("explain", "--replicas", "2")
    assert capsys.readouterr().out.startswith("plan: the defaults\n")
    (tmp_path / "plan.toml").write_text("[batch]\nglobal_batch_size = 99\n")
    call("explain", "--target", "cpu")
    text = capsys.readouterr().out
    assert text.startswith("plan: plan.toml\n")
    assert "G = 99" in text


def test_a_wrong_plan_is_left_to_the_command_line_to_print(tmp_path):
    path = tmp_path / "my.toml"
    path.write_text("[mesh]\ndta = 3\n")
    with pytest.raises(PlanError, match=r"mesh\.dta: no such setting"):
        call("explain", str(path))
