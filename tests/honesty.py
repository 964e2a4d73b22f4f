"""Pytest plugin: a run cannot pass by leaving something out.

Three lists lie beside it. ``cases.txt`` names every real fault the project knows;
``cases_pending.txt`` those not yet run, with the reason; ``expected_skips.txt`` the only skips
allowed. A skip that is not listed fails every run. A case that is neither run nor pending, a
pending one that is run, and a listed skip that no longer happens fail a run of the whole suite.

A run in several lanes (``-n``) is judged once, where the reports of all lanes come together; the
cases of a test travel in its report.
"""

from __future__ import annotations

import sys
from fnmatch import fnmatchcase
from pathlib import Path
from typing import List, NamedTuple, Sequence, Set, Tuple

import pytest

FLOOR = sys.version_info < (3, 9)
CASE = "case"


class Skip(NamedTuple):
    """One line of ``expected_skips.txt``: which tests, where, and why."""

    pattern: str
    where: str  # "everywhere", "main" (a Python with all frameworks) or "floor" (3.8, without)
    reason: str


def read_table(path: Path, *, columns: int) -> List[Tuple[str, ...]]:
    """Read lines of ``columns`` fields between bars; ``#`` starts a comment line."""
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        row = tuple(field.strip() for field in line.split("|"))
        if len(row) != columns or not all(row):
            raise pytest.UsageError(
                f"{path.name}:{number}: expected {columns} fields, got {line!r}"
            )
        rows.append(row)
    keys = [row[0] for row in rows]
    twice = sorted({key for key in keys if keys.count(key) > 1})
    if twice:
        raise pytest.UsageError(f"{path.name}: listed twice: {', '.join(twice)}")
    return rows


def case_complaints(known: Set[str], pending: Set[str], passed: Set[str]) -> List[str]:
    """Say what is wrong with the cases of a whole run; an empty list if nothing is."""
    complaints = [f"pending case {case} is not in cases.txt" for case in sorted(pending - known)]
    complaints += [
        f"case {case} was neither run nor is it in cases_pending.txt"
        for case in sorted(known - pending - passed)
    ]
    complaints += [
        f"case {case} is in cases_pending.txt although it was run and passed; take it out"
        for case in sorted(pending & passed)
    ]
    return complaints


def skip_complaints(
    skips: Sequence[Tuple[str, str]], expected: Sequence[Skip], *, floor: bool, is_whole_run: bool
) -> List[str]:
    """Say which skips (test and reason) are not listed, and which listed ones did not happen."""
    here = [line for line in expected if line.where in {"everywhere", "floor" if floor else "main"}]
    complaints = [
        f"unexpected skip: {test} ({reason})"
        for test, reason in skips
        if not any(fnmatchcase(test, line.pattern) for line in here)
    ]
    if is_whole_run:
        complaints += [
            f"expected_skips.txt lists {line.pattern!r}, but nothing like it was skipped"
            for line in here
            if not any(fnmatchcase(test, line.pattern) for test, _ in skips)
        ]
    return complaints


class Honesty:
    """Collects what ran and what was skipped, and judges it when the session ends."""

    def __init__(self, folder: Path, *, is_whole_run: bool) -> None:
        self.known = {row[0] for row in read_table(folder / "cases.txt", columns=3)}
        self.pending = {row[0] for row in read_table(folder / "cases_pending.txt", columns=2)}
        self.expected = [Skip(*row) for row in read_table(folder / "expected_skips.txt", columns=3)]
        self.is_whole_run = is_whole_run
        self.skips: List[Tuple[str, str]] = []
        self.unknown: Set[Tuple[str, str]] = set()
        self.passed: Set[str] = set()
        self.complaints: List[str] = []

    def pytest_collection_modifyitems(self, items: List[pytest.Item]) -> None:
        for item in items:
            cases = {case for mark in item.iter_markers("case") for case in mark.args}
            item.user_properties += [(CASE, case) for case in sorted(cases)]

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        if items:
            self.is_whole_run = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            self.skips.append((report.nodeid, _reason(report)))
        cases = {str(value) for name, value in report.user_properties if name == CASE}
        self.unknown |= {(report.nodeid, case) for case in cases - self.known}
        if report.when == "call" and report.passed and not hasattr(report, "wasxfail"):
            self.passed |= cases

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self.skips.append((report.nodeid, _reason(report)))

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        # Interrupted and broken runs say enough about themselves; judged are those that
        # passed, failed, or had nothing but skipped modules.
        if exitstatus not in {0, 1, 5} or hasattr(session.config, "workerinput"):
            return
        if session.config.option.collectonly or session.shouldstop or session.shouldfail:
            return
        self.complaints = skip_complaints(
            self.skips, self.expected, floor=FLOOR, is_whole_run=self.is_whole_run
        )
        self.complaints += [
            f"{test}: not in cases.txt: {case}" for test, case in sorted(self.unknown)
        ]
        if self.is_whole_run:
            self.complaints += case_complaints(self.known, self.pending, self.passed)
        if self.complaints:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.complaints:
            terminalreporter.section("left out", red=True)
            for complaint in self.complaints:
                terminalreporter.line(complaint, red=True)


def _reason(report: pytest.CollectReport | pytest.TestReport) -> str:
    """Return the reason of a skip: the third part of pytest's (file, line, reason)."""
    longrepr = report.longrepr
    reason = str(longrepr[2]) if isinstance(longrepr, tuple) else str(longrepr)
    return reason[len("Skipped: ") :] if reason.startswith("Skipped: ") else reason


def pytest_configure(config: pytest.Config) -> None:
    """Start judging; a whole run is one that names neither files nor tests."""
    named = config.args_source != pytest.Config.ArgsSource.TESTPATHS
    option = config.option
    chosen = option.keyword or option.markexpr or option.deselect or config.getoption("lf", False)
    is_whole_run = not named and not chosen and not FLOOR
    honesty = Honesty(config.rootpath / "tests", is_whole_run=is_whole_run)
    config.pluginmanager.register(honesty, "honesty")
