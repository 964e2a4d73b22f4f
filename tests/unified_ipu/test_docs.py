"""What the documents show works: plans load, commands are understood, names exist."""

from __future__ import annotations

import ast
import importlib
import re
import shlex
import sys
from pathlib import Path

import pytest

import unified_ipu as ui
from unified_ipu.cli.main import parse
from unified_ipu.plan import Plan, merge_plan

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
OBJECTS = {"ui": ui, "session": ui.Session, "program": ui.Program}


def blocks(page, language):
    """Give the code of each fenced block of a language, without the indentation of lists."""
    found = re.findall(
        r"^([ ]*)```(\w*)\n(.*?)^\1```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    for indentation, kind, code in found:
        if kind == language:
            yield "\n".join(line[len(indentation) :] for line in code.splitlines())


def all_blocks(language):
    return [
        pytest.param(code, id=f"{page.name}-{number}")
        for page in PAGES
        for number, code in enumerate(blocks(page, language))
    ]


def commands():
    found = [
        (page.name, shlex.split(line, comments=True))
        for page in PAGES
        for code in blocks(page, "")
        for line in code.splitlines()
    ]
    return [
        pytest.param(words, id=f"{name}-{' '.join(words)[:60]}") for name, words in found if words
    ]


@pytest.mark.parametrize("code", all_blocks("python"))
def test_python_compiles_and_names_of_ours_exist(code):
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            owner = OBJECTS.get(node.value.id)
            assert owner is None or hasattr(owner, node.attr), node.attr
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("unified_ipu."):
            module = importlib.import_module(str(node.module))
            assert all(hasattr(module, alias.name) for alias in node.names)


@pytest.mark.parametrize("code", all_blocks("python"))
def test_names_inside_data_and_optim_exist(code):
    for room, name in re.findall(r"\bui\.(data|optim|metrics)\.(\w+)", code):
        assert hasattr(getattr(ui, room), name)


@pytest.mark.parametrize("code", all_blocks("toml"))
def test_a_plan_loads(code, tmp_path):
    if "project" in tomllib.loads(code):
        return  # packaging, not a plan
    path = tmp_path / "plan.toml"
    path.write_text(code)
    Plan.load(path)


def check_our_command(words):
    arguments = parse(words)
    settings = getattr(arguments, "settings", None) or []
    merge_plan(None, settings=settings)
    script = getattr(arguments, "script", None)
    if script is not None and "/" in script:
        assert (ROOT / script).is_file()


@pytest.mark.parametrize("words", commands())
def test_a_command_is_understood(words):
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    program, *rest = words
    if program == "unified-ipu":
        check_our_command(rest)
    elif program == "make":
        assert re.search(rf"^{re.escape(rest[0])}:", makefile, re.MULTILINE)
    else:
        assert program in {"torchrun", "python", "pip", "pytest", "mpirun", "srun"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_linked_files_exist(page):
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text("utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_in_sentences_are_understood(page):
    for command in re.findall(r"`(unified-ipu [^`]+)`", page.read_text("utf-8")):
        words = shlex.split(command)[1:]
        if len(words) > 1:
            check_our_command(words)
