"""Results by clause: what is counted where."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from unified_ipu.testing.clause_table import ClauseTable
from unified_ipu.testing.clauses import CLAUSES, clauses_of


def test_a_clause_is_read_from_the_name_and_from_marks():
    assert clauses_of("test_l1_10_what_one_rank_uses") == ("L1.10",)
    assert clauses_of("test_l5_3_fifty_updates", ["L4.8", "L5.3"]) == ("L5.3", "L4.8")
    assert clauses_of("test_l1_is_no_clause") == ("other",)
    assert clauses_of("test_weights", ["L3.7"]) == ("L3.7",)


def item(nodeid, *marked):
    marks = [SimpleNamespace(args=marked)] if marked else []
    return SimpleNamespace(
        nodeid=nodeid, name=nodeid, originalname=None, iter_markers=lambda name: marks
    )


def report(nodeid, outcome, when="call", reason="no device"):
    longrepr = ("file", 1, f"Skipped: {reason}") if outcome == "skipped" else None
    return SimpleNamespace(
        nodeid=nodeid, outcome=outcome, when=when, longrepr=longrepr, skipped=outcome == "skipped"
    )


@pytest.fixture
def table():
    table = ClauseTable("mine", "cpu")
    names = ["test_l1_1_a", "test_l1_1_b", "test_l2_5_c", "test_d"]
    table.pytest_collection_modifyitems([item(names[0], "L1.2"), *map(item, names[1:])])
    for when in ("setup", "call", "teardown"):
        table.pytest_runtest_logreport(report("test_l1_1_a", "passed", when))
        outcome = "failed" if when == "teardown" else "passed"
        table.pytest_runtest_logreport(report("test_l1_1_b", outcome, when))
    table.pytest_runtest_logreport(report("test_d", "skipped"))
    return table


def row(table, clause):
    (line,) = [line for line in table.lines() if line.split()[0] == clause]
    return line.replace(CLAUSES.get(clause, ""), "").split()[1:]


def test_each_test_counts_for_each_of_its_clauses(table):
    assert row(table, "L1.1") == ["1", "1", "0"], "a failure in teardown is a failure"
    assert row(table, "L1.2") == ["1", "0", "0"]
    assert row(table, "L1.3") == ["0", "0", "0"]
    assert row(table, "tests") == ["1", "1", "1"]
    assert row(table, "other")[-3:] == ["0", "0", "1"]
    assert row(table, "L4.1") == ["core"]


def test_reasons_of_skips_are_counted(table):
    assert table.lines()[-1] == "skipped 1: no device"


def test_every_clause_has_a_line(table):
    firsts = [line.split()[0] for line in table.lines()]
    assert firsts[0] == "clause"
    assert firsts[1 : 1 + len(CLAUSES)] == list(CLAUSES)
