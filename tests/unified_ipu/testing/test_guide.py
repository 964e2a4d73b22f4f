"""The guide for authors lists every suite and every test of the kit."""

from __future__ import annotations

import re
from pathlib import Path

from unified_ipu import testing

GUIDE = Path(__file__).parents[3] / "docs" / "writing-an-adapter.md"


def test_the_guide_lists_what_the_suites_hold():
    suites = [
        value
        for name, value in vars(testing).items()
        if name.endswith("Suite") and value is not testing.AdapterSuite
    ]
    assert len(suites) == 9
    tests = {name for suite in suites for name in vars(suite) if name.startswith("test_")}
    text = GUIDE.read_text(encoding="utf-8")
    assert set(re.findall(r"^- `(test_\w+)`", text, re.MULTILINE)) == tests
    assert set(re.findall(r"^### (\w+)", text, re.MULTILINE)) == {s.__name__ for s in suites}
