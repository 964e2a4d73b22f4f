"""The suite's own watch: what is left out fails, in an inner pytest session."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.honesty import Skip, case_complaints, read_table, skip_complaints

TESTS = Path(__file__).parent


@pytest.fixture
def suite(pytester):
    """A little repository with its own lists, watched by the plugin."""
    pytester.makeini(
        "[pytest]\ntestpaths = tests\naddopts = -p no:cacheprovider\nmarkers = case(id): a case\n"
    )
    pytester.makeconftest('pytest_plugins = ["tests.honesty"]')
    folder = pytester.mkdir("tests")

    def write(body, *, cases="", pending="", skips=""):
        (folder / "test_inner.py").write_text("import pytest\n" + body, encoding="utf-8")
        (folder / "cases.txt").write_text(cases, encoding="utf-8")
        (folder / "cases_pending.txt").write_text(pending, encoding="utf-8")
        (folder / "expected_skips.txt").write_text(skips, encoding="utf-8")

    return write


PASSES = "@pytest.mark.case('O-A1')\ndef test_a():\n    pass\n"
SKIPS = "@pytest.mark.skip(reason='no device')\ndef test_b():\n    pass\n"
CASE = "O-A1 | a title | https://example.org/1\n"
main_only = pytest.mark.skipif("sys.version_info < (3, 9)", reason="whole runs are judged on main")


def test_an_honest_run_passes(pytester, suite):
    suite(PASSES + SKIPS, cases=CASE, skips="*test_b | everywhere | no device here\n")
    assert pytester.runpytest_inprocess().ret == 0


def test_a_skip_that_is_not_listed_fails_the_run(pytester, suite):
    suite(PASSES + SKIPS, cases=CASE)
    result = pytester.runpytest_inprocess()
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*unexpected skip: tests/test_inner.py::test_b (no device)*"])


def test_a_skip_while_collecting_or_in_the_test_fails_too(pytester, suite):
    suite("pytest.importorskip('no_such_module_here')\n")
    assert pytester.runpytest_inprocess().ret == 1
    suite("def test_b():\n    pytest.skip('inside')\n")
    assert pytester.runpytest_inprocess("tests/test_inner.py").ret == 1


def test_an_expected_failure_is_not_a_skip(pytester, suite):
    suite("@pytest.mark.xfail(reason='known')\ndef test_b():\n    assert False\n")
    assert pytester.runpytest_inprocess().ret == 0


@main_only
def test_a_case_neither_run_nor_pending_fails_the_run(pytester, suite):
    suite("def test_b():\n    pass\n", cases=CASE)
    result = pytester.runpytest_inprocess()
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*case O-A1 was neither run*"])


@main_only
def test_a_case_whose_test_is_skipped_was_not_run(pytester, suite):
    body = "@pytest.mark.case('O-A1')\ndef test_a():\n    pytest.skip('later')\n"
    suite(body, cases=CASE, skips="*test_a | everywhere | later\n")
    result = pytester.runpytest_inprocess()
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*case O-A1 was neither run*"])


@main_only
def test_a_pending_case_that_is_run_fails_the_run(pytester, suite):
    suite(PASSES, cases=CASE, pending="O-A1 | not built\n")
    result = pytester.runpytest_inprocess()
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*O-A1 is in cases_pending.txt although it was run*"])


def test_a_pending_case_is_enough_without_a_test(pytester, suite):
    suite("def test_b():\n    pass\n", cases=CASE, pending="O-A1 | not built\n")
    assert pytester.runpytest_inprocess().ret == 0


@main_only
def test_a_listed_skip_that_does_not_happen_fails_the_run(pytester, suite):
    suite(PASSES, cases=CASE, skips="*test_gone | everywhere | no device here\n")
    assert pytester.runpytest_inprocess().ret == 1


def test_part_of_the_suite_is_not_judged_as_a_whole(pytester, suite):
    suite("def test_b():\n    pass\n\ndef test_c():\n    pass\n", cases=CASE)
    assert pytester.runpytest_inprocess("-k", "test_b").ret == 0
    assert pytester.runpytest_inprocess("tests/test_inner.py").ret == 0


def test_a_mark_with_an_unknown_case_fails_the_run(pytester, suite):
    suite(PASSES)
    result = pytester.runpytest_inprocess()
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*test_inner.py::test_a: not in cases.txt: O-A1*"])


def test_a_failing_test_still_fails(pytester, suite):
    suite("def test_b():\n    assert False\n")
    assert pytester.runpytest_inprocess().ret == 1


@main_only
@pytest.mark.slow
def test_several_lanes_are_judged_together(pytester, suite):
    in_lanes = ("-n", "2", "--dist", "loadfile")

    def add(name, body):
        path = pytester.path / "tests" / f"test_{name}.py"
        path.write_text("import pytest\n" + body, encoding="utf-8")

    cases = CASE + "O-A2 | a title | https://example.org/2\n"
    skips = "*test_b | everywhere | no device here\n"
    suite(PASSES + SKIPS, cases=cases, skips=skips)
    add("second", PASSES.replace("O-A1", "O-A2"))
    result = pytester.runpytest_subprocess(*in_lanes)
    assert result.ret == 0
    result.stdout.fnmatch_lines(["2 workers*", "* 2 passed, 1 skipped *"])

    suite("def test_a():\n    pass\n", cases=cases, skips=skips)
    add("second", PASSES.replace("O-A1", "O-A9") + SKIPS.replace("test_b", "test_d"))
    add("third", "pytest.importorskip('no_such_module')\n")
    add("fourth", "import os\ndef test_c():\n    os._exit(0)\n")
    result = pytester.runpytest_subprocess(*in_lanes)
    assert result.ret == 1
    result.stdout.fnmatch_lines_random(
        [
            "unexpected skip: tests/test_second.py::test_d (no device)",
            "unexpected skip: tests/test_third.py (could not import 'no_such_module'*",
            "expected_skips.txt lists '[*]test_b', but nothing like it was skipped",
            "tests/test_second.py::test_a: not in cases.txt: O-A9",
            "case O-A1 was neither run nor *",
            "case O-A2 was neither run nor *",
            "worker 'gw?' crashed while running 'tests/test_fourth.py::test_c'",
        ]
    )


def test_lists_with_a_wrong_or_double_line_are_refused(tmp_path):
    path = tmp_path / "list.txt"
    path.write_text("# comment\nO-A1 | reason\n\nO-A2\n", encoding="utf-8")
    with pytest.raises(pytest.UsageError, match=r"list.txt:4: expected 2 fields, got 'O-A2'"):
        read_table(path, columns=2)
    path.write_text("O-A1 | one\nO-A1 | two\n", encoding="utf-8")
    with pytest.raises(pytest.UsageError, match="listed twice: O-A1"):
        read_table(path, columns=2)


def test_complaints_name_each_case_and_skip():
    assert case_complaints({"a", "b", "c"}, {"b", "d"}, {"a", "b"}) == [
        "pending case d is not in cases.txt",
        "case c was neither run nor is it in cases_pending.txt",
        "case b is in cases_pending.txt although it was run and passed; take it out",
    ]
    floor_only = Skip("t.py::*", "floor", "no torch")
    assert skip_complaints([("t.py::x", "r")], [floor_only], floor=True, is_whole_run=True) == []
    assert skip_complaints([("t.py::x", "r")], [floor_only], floor=False, is_whole_run=True) == [
        "unexpected skip: t.py::x (r)"
    ]


def test_all_62_cases_are_listed_with_a_public_address():
    rows = read_table(TESTS / "cases.txt", columns=3)
    assert len(rows) == 62
    assert all(re.fullmatch(r"O-[A-Z]\d+", row[0]) for row in rows)
    assert all(url.startswith("https://") for row in rows for url in row[2].split())


def test_expected_skips_say_where():
    places = {row[1] for row in read_table(TESTS / "expected_skips.txt", columns=3)}
    assert places <= {"everywhere", "main", "floor"}


LEAK_CONFTEST = (TESTS / "conftest.py").read_text(encoding="utf-8")
LEAKS_VARIABLE = """
import os
def test_a():
    os.environ["LEFT"] = "1"
"""
LEAKS_THREAD = """
import threading
def test_a():
    threading.Thread(target=threading.Event().wait, daemon=True).start()
"""
LEAKS_PROCESS = """
import subprocess, sys
def test_a():
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
"""


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (LEAKS_VARIABLE, "*environment variables*"),
        (LEAKS_THREAD, "*left behind: threads*"),
        (LEAKS_PROCESS, "*left behind: threads*processes*time.sleep(60)*"),
    ],
)
@pytest.mark.slow
def test_a_test_that_leaks_fails(pytester, body, message):
    pytester.makeconftest(LEAK_CONFTEST)
    pytester.makepyfile(body)
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    assert result.ret == 1
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines([message])
