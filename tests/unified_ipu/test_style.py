"""House rules that no linter knows."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHIPPED = sorted(
    path for folder in ("unified_ipu", "adapters") for path in (ROOT / folder).rglob("*.py")
)
VAGUE = {"utils", "util", "helpers", "helper", "common", "base", "misc", "tools"}
TEXTS = sorted(
    path
    for pattern in ("*.md", "*.toml", "Makefile", "*.txt", "conftest.py", ".ci/run")
    for path in ROOT.glob(pattern)
) + sorted(
    path
    for folder in ("unified_ipu", "adapters", "examples", "benchmarks", "docs", "tests")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in {".py", ".md", ".toml", ".txt"}
)


def broken(paths, rule):
    """Give, for each file that breaks ``rule``, what the rule says about it."""
    said = {str(path.relative_to(ROOT)): rule(path.read_text(encoding="utf-8")) for path in paths}
    return {path: text for path, text in said.items() if text}


def docstring_fault(text):
    docstring = ast.get_docstring(ast.parse(text))
    if not docstring:
        return "a module opens with a docstring"
    if not docstring.splitlines()[0].endswith((".", ":")):
        return "the first line of its docstring is a sentence"
    return ""


def assert_fault(text):
    lines = [node.lineno for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Assert)]
    return f"assert is for tests: lines {lines}" if lines else ""


def future_fault(text):
    has_code = len(ast.parse(text).body) > 1
    is_there = "from __future__ import annotations" in text
    return "annotations must not run on Python 3.8" if has_code and not is_there else ""


def loose_end_fault(text):
    return re.findall(
        r"\b(?:TODO|FIXME|XXX)\b|(?:noqa|type: ignore)[ ]*(?:$|#)", text, re.MULTILINE
    )


def fork_fault(text):
    return re.findall(r"\bos\.fork(?:pty)?\(|[\"']fork(?:server)?[\"']", text)


def workplace_fault(text):
    """Find absolute paths that exist in one place only."""
    return re.findall(r"/(?:root|home)/\w+|/work/\w+|\.\./shared", text)


@pytest.mark.parametrize("rule", [docstring_fault, future_fault, loose_end_fault, fork_fault])
def test_shipped_modules_follow_the_house_rules(rule):
    assert len(SHIPPED) > 50
    assert broken(SHIPPED, rule) == {}


def test_only_the_conformance_kit_asserts():
    kit = ROOT / "unified_ipu" / "testing"
    assert broken([path for path in SHIPPED if kit not in path.parents], assert_fault) == {}


def test_no_module_has_a_vague_name():
    names = {
        part.lower().lstrip("_")
        for path in SHIPPED
        for part in path.relative_to(ROOT).with_suffix("").parts
    }
    assert not VAGUE & names


def test_no_file_depends_on_one_machine():
    assert broken([path for path in TEXTS if path != Path(__file__)], workplace_fault) == {}


@pytest.mark.parametrize(
    ("rule", "bad"),
    [
        (docstring_fault, "x = 1\n"),
        (docstring_fault, '"""Not a sentence"""\n'),
        (assert_fault, '"""A."""\nassert True\n'),
        (future_fault, '"""A."""\nx: int = 1\n'),
        (loose_end_fault, "# TODO: later\n"),
        (loose_end_fault, "x = 1  # noqa\n"),
        (fork_fault, "context = get_context('fork')\n"),
        (fork_fault, "pid = os.fork()\n"),
        (workplace_fault, "path = '/home/somebody/x'\n"),
    ],
)
def test_each_rule_catches_a_planted_fault(rule, bad):
    assert rule(bad)
    assert not rule('"""A module."""\n\nfrom __future__ import annotations\n\nx = 1\n')
