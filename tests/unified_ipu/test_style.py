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


def ids(path):
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", SHIPPED, ids=ids)
def test_a_module_follows_the_house_rules(path):
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    docstring = ast.get_docstring(tree)
    assert docstring, "a module opens with a docstring"
    assert docstring.splitlines()[0].endswith((".", ":")), "its first line is a sentence"
    assert not VAGUE & {part.lower().lstrip("_") for part in path.with_suffix("").parts[-2:]}
    assert "from __future__ import annotations" in text, "annotations must not run on Python 3.8"
    for node in ast.walk(tree):
        assert not isinstance(node, ast.Assert), f"line {node.lineno}: assert is for tests"


@pytest.mark.parametrize("path", SHIPPED, ids=ids)
def test_a_module_has_no_loose_ends(path):
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"\b(TODO|FIXME|XXX)\b", text)
    assert not re.search(r"(noqa|type: ignore)\s*($|#)", text, re.MULTILINE), "name the code"


@pytest.mark.parametrize("path", SHIPPED, ids=ids)
def test_processes_are_spawned_never_forked(path):
    assert not re.search(r"\bos\.fork(pty)?\(|[\"']fork(server)?[\"']", path.read_text("utf-8"))


@pytest.mark.parametrize("path", TEXTS, ids=ids)
def test_no_file_depends_on_one_machine(path):
    # Absolute paths of a workplace and addresses of a mirror work in one place only.
    found = re.findall(r"/(?:root|home)/\w+|/work/\w+|\.\./shared", path.read_text("utf-8"))
    assert path == Path(__file__) or found == []
