"""Files stay small enough to be read in a sitting."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LONGEST = 600
EXPLAINED_ABOVE = 400
FOLDERS = ("unified_ipu", "adapters", "examples", "benchmarks", "tests")
FILES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))


def complaint(text):
    """Say what is wrong with the length of a module, or nothing."""
    num_lines = len(text.splitlines())
    if num_lines > LONGEST:
        return f"{num_lines} lines, more than {LONGEST}: split it"
    docstring = ast.get_docstring(ast.parse(text)) or ""
    if num_lines > EXPLAINED_ABOVE and len(docstring.splitlines()) < 3:
        return f"{num_lines} lines: the docstring must say why it is one thing"
    return ""


def test_every_file_is_short_or_explains_itself():
    assert len(FILES) > 50
    found = {
        str(path.relative_to(ROOT)): complaint(path.read_text(encoding="utf-8")) for path in FILES
    }
    assert {path: text for path, text in found.items() if text} == {}


@pytest.mark.parametrize(
    ("num_lines", "docstring", "is_wrong"),
    [
        (400, "One line.", False),
        (401, "One line.", True),
        (600, "One thing.\n\nSplitting it would part what changes together.\n", False),
        (601, "One thing.\n\nSplitting it would part what changes together.\n", True),
    ],
)
def test_the_check_knows_its_limits(num_lines, docstring, is_wrong):
    head = f'"""{docstring}"""\n'
    text = head + "x = 1\n" * (num_lines - len(head.splitlines()))
    assert bool(complaint(text)) is is_wrong
