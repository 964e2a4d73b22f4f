"""The guide for authors lists every suite, every test of the kit, and what holds each clause."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Dict, List

import pytest

from unified_ipu import testing
from unified_ipu.testing import installed
from unified_ipu.testing.clauses import CLAUSES, CORE, clauses_of

ROOT = Path(__file__).parents[3]
GUIDE = (ROOT / "docs" / "writing-an-adapter.md").read_text(encoding="utf-8")
LAWS = (ROOT / "docs" / "laws.md").read_text(encoding="utf-8")
SUITES = [
    value
    for name, value in vars(testing).items()
    if name.endswith("Suite") and value is not testing.AdapterSuite
]
RUNS = sorted((ROOT / "tests").rglob("test_conformance.py"))

# Tests of the core that hold the clauses which no adapter can break.
CORE_TESTS = {
    "L2.5": [("world/test_mesh.py", "test_a_place_counts_replicas_along_the_data_axis")],
    "L2.7": [
        ("plan/test_replicas.py", "test_our_launcher_takes_the_cores_up_to_one_micro_batch_each"),
        ("plan/test_replicas.py", "test_more_replicas_than_micro_batches_run_with_a_warning"),
    ],
    "L2.13": [
        ("data/test_certificate.py", "test_an_epoch_that_claims_other_ids_does_not_add_up"),
        (
            "data/test_certificate.py",
            "test_the_first_thousand_deviations_are_kept_and_all_are_counted",
        ),
    ],
    "L3.3": [
        (
            "data/test_process_feed.py",
            "test_l3_augmentation_seeds_are_functions_of_seed_epoch_and_sample_only",
        )
    ],
    "L4.1": [
        ("comms/test_agreement.py", "test_l4_different_collectives_are_an_error_on_both_ranks"),
        ("comms/test_agreement.py", "test_a_signature_depends_on_text_name_and_problem"),
    ],
    "L4.3": [
        ("comms/test_connect.py", "test_l4_a_late_process_ends_the_job_on_all_ranks"),
        ("comms/test_agreement.py", "test_l4_a_rank_that_has_left_is_named"),
    ],
    "L4.5": [
        ("comms/test_agreement.py", "test_l4_a_late_rank_ends_the_job_on_all_ranks"),
        (
            "comms/test_agreement.py",
            "test_l4_an_announced_phase_does_not_time_out_and_is_reported",
        ),
    ],
    "L4.7": [
        (
            "session/test_resume.py",
            "test_l4_7_which_checkpoint_is_loaded_is_the_choice_of_the_first_rank",
        )
    ],
}


def kit_tests(suite):
    """Tests of a suite: name to the clauses it is marked with, and the capabilities it needs."""
    found = {}
    for name, function in vars(suite).items():
        if name.startswith("test_"):
            marks = getattr(function, "pytestmark", [])
            found[name] = (
                [clause for mark in marks if mark.name == "holds" for clause in mark.args],
                [
                    c.value
                    for mark in marks
                    if mark.name == "requires_capability"
                    for c in mark.args
                ],
            )
    return found


def held_by():
    """For each clause the suites with a test that holds it."""
    found: Dict[str, List[str]] = {clause: [] for clause in CLAUSES}
    for suite in SUITES:
        for name, (marked, _) in kit_tests(suite).items():
            for clause in clauses_of(name, marked):
                if clause in found and suite.__name__ not in found[clause]:
                    found[clause].append(suite.__name__)
    return found


def test_the_guide_lists_what_the_suites_hold():
    assert len(SUITES) == 15
    listed = {}
    for line in re.findall(r"^- (`test_.*)$", GUIDE, re.MULTILINE):
        name, _, rest = line.partition("` ")
        also = re.search(r"also ([L0-9., ]+)", rest)
        needs = re.findall(r"`(\w+)`", rest.partition("needs ")[2])
        listed[name.strip("`")] = (also[1].split(", ") if also else [], needs)
    expected = {name: rest for suite in SUITES for name, rest in kit_tests(suite).items()}
    assert listed == expected
    headings = set(re.findall(r"^### (\w+)", GUIDE, re.MULTILINE))
    assert headings == {suite.__name__ for suite in SUITES}


def test_names_of_tests_are_unique_over_the_suites():
    names = [name for suite in SUITES for name in kit_tests(suite)]
    assert sorted(names) == sorted(set(names))


def test_the_clauses_are_those_of_the_laws():
    assert list(CLAUSES) == re.findall(r"^- \*\*(L\d\.\d+)\*\*", LAWS, re.MULTILINE)
    marked = {c for suite in SUITES for held, _ in kit_tests(suite).values() for c in held}
    assert marked <= set(CLAUSES)


def test_every_clause_is_held_by_the_kit_or_by_the_core_alone():
    without = {clause for clause, suites in held_by().items() if not suites}
    assert without == set(CORE)


def test_clauses_of_the_core_alone_are_held_by_its_own_tests():
    assert set(CORE_TESTS) == set(CORE)
    for tests in CORE_TESTS.values():
        for file, name in tests:
            text = (ROOT / "tests" / "unified_ipu" / file).read_text(encoding="utf-8")
            assert f"def {name}(" in text, f"{file}::{name}"


def test_every_adapter_of_ours_has_a_subject():
    entries = metadata_of("unified_ipu.conformance")
    assert set(entries) == set(metadata_of("unified_ipu.adapters"))
    for name, target in entries.items():
        assert target.startswith(f"unified_ipu_{name}.conformance:"), target


def metadata_of(group):
    """Entry points of a group as they stand in pyproject.toml: name to target."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    section = text.partition(f'[project.entry-points."{group}"]')[2].partition("[")[0]
    return dict(re.findall(r'^(\w+) = "(.+)"$', section, re.MULTILINE))


def test_the_guide_says_what_holds_each_clause():
    rows = re.findall(r"^\| (L\d\.\d+) \| (.+?) \| (.+?) \|$", GUIDE, re.MULTILINE)
    expected = []
    for clause, suites in held_by().items():
        how = sorted(suites) or [f"core: {CORE[clause]}"]
        expected.append((clause, CLAUSES[clause], how))
    assert [(clause, what, sorted(how.split(", "))) for clause, what, how in rows] == expected


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.parent.name)
def test_every_adapter_of_ours_runs_every_suite(path):
    assert len(RUNS) >= 2
    run = set(re.findall(r"testing\.(\w+Suite)\b", path.read_text(encoding="utf-8")))
    assert run == {suite.__name__ for suite in SUITES}


def test_the_command_runs_every_suite():
    classes = [value for name, value in vars(installed).items() if name.startswith("Test")]
    assert {base for one in classes for base in one.__bases__} - {installed.Installed} == set(
        SUITES
    )
