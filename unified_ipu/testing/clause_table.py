"""Results of a run by clause of the laws: what the command ``conformance`` prints."""

from __future__ import annotations

from collections import Counter
from typing import Any, Dict, List, Sequence, Tuple

import pytest

from unified_ipu.testing.clauses import CLAUSES, CORE, NO_CLAUSE, clauses_of

OUTCOMES = ("passed", "failed", "skipped")


class ClauseTable:
    """Counts tests by clause while pytest runs, and prints the table at its end.

    Args:
        adapter: Name of the adapter under test.
        target: Where its programs run.
    """

    def __init__(self, adapter: str, target: str) -> None:
        self._title = f"conformance of {adapter} on {target}"
        self._clauses: Dict[str, Tuple[str, ...]] = {}
        self._outcomes: Dict[str, str] = {}
        self._reasons: Dict[str, str] = {}

    def pytest_collection_modifyitems(self, items: List[pytest.Item]) -> None:
        """Note the clauses of each test."""
        for item in items:
            marked = [name for mark in item.iter_markers("holds") for name in mark.args]
            name = getattr(item, "originalname", None) or item.name
            self._clauses[item.nodeid] = clauses_of(name, marked)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note the worst that happened to a test: a failure in tearing down counts too."""
        outcome = "passed" if hasattr(report, "wasxfail") else report.outcome
        before = self._outcomes.get(report.nodeid, "passed")
        if OUTCOMES.index(before) != OUTCOMES.index("failed"):
            self._outcomes[report.nodeid] = outcome if outcome != "passed" else before
        if outcome == "skipped" and isinstance(report.longrepr, tuple):
            self._reasons[report.nodeid] = str(report.longrepr[2]).replace("Skipped: ", "", 1)

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Let no run succeed in which nothing passed: skips alone prove nothing."""
        if exitstatus == pytest.ExitCode.OK and "passed" not in self._outcomes.values():
            session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print the table."""
        terminalreporter.section(self._title)
        for line in self.lines():
            terminalreporter.line(line)

    def lines(self) -> List[str]:
        """The table, and below it why tests were skipped."""
        counts: Dict[str, Counter[str]] = {name: Counter() for name in (*CLAUSES, NO_CLAUSE)}
        for test, outcome in self._outcomes.items():
            for clause in self._clauses.get(test, (NO_CLAUSE,)):
                counts[clause][outcome] += 1
        width = max(len(title) for title in CLAUSES.values())
        found = [_row("clause", "what it says", width, OUTCOMES)]
        for clause, counted in counts.items():
            title = CLAUSES.get(clause, "tests that no clause names")
            cells: Sequence[str] = [str(counted[outcome]) for outcome in OUTCOMES]
            if clause in CORE and not counted:
                cells = ["core", "", ""]
            found.append(_row(clause, title, width, cells))
        total = Counter(self._outcomes.values())
        found.append(_row("tests", "", width, [str(total[outcome]) for outcome in OUTCOMES]))
        reasons = Counter(self._reasons.values())
        found += [f"skipped {count}: {reason}" for reason, count in sorted(reasons.items())]
        return found


def _row(clause: str, title: str, width: int, cells: Sequence[str]) -> str:
    return f"{clause:8}{title:{width}}{''.join(f'{cell:>9}' for cell in cells)}".rstrip()
