"""Which algorithms sum gradients where, as a plan is told and as it is explained."""

from __future__ import annotations

import pytest

from unified_ipu.plan import Plan, automatic_algorithms, why_no_algorithm

ONE, SINGLE, SEVERAL = (
    "one host",
    "several hosts, one rank on each",
    "several hosts, more ranks on one",
)
MEASURED = "over c10d, by measurement before the first update"
FIXED = "over c10d; not measured, since deterministic = true"
TWICE = (
    "ranks that share memory add up where the gradients lie; a ring would move each twice, and is "
    "slower the more ranks there are"
)

EXPLAINED = [
    (
        {},
        f"{ONE} direct over shm",
        f"{SINGLE} direct | ring {MEASURED}",
        f"{SEVERAL} hierarchical | direct | ring {MEASURED}",
    ),
    (
        {"deterministic": True, "comms.transport": "c10d"},
        f"{ONE} direct over c10d",
        f"{SINGLE} direct {FIXED}",
        f"{SEVERAL} hierarchical {FIXED}",
    ),
    (
        {"comms.algorithm": "hierarchical"},
        f"{ONE} refused it joins several hosts, and all ranks are on one",
        f"{SINGLE} hierarchical as asked, over c10d",
        f"{SEVERAL} hierarchical as asked, over c10d",
    ),
    (
        {"comms.algorithm": "ring", "comms.transport": "shm"},
        f"{ONE} refused {TWICE}",
        f"{SINGLE} refused hosts share no memory",
        f"{SEVERAL} refused hosts share no memory",
    ),
]


@pytest.mark.parametrize(("changes", "one", "single", "several"), EXPLAINED)
def test_a_plan_says_how_gradients_are_summed_where(changes, one, single, several):
    text = Plan().replace({"mesh.data": 2, **changes}).explain()
    lines = [" ".join(line.split()) for line in text.splitlines()]
    first = lines.index("sums of gradients") + 1
    assert lines[first : first + 3] == [one, single, several]


def test_one_replica_and_devices_have_no_sums_to_explain():
    assert "sums of gradients" not in Plan().explain(replicas=1)
    assert "sums of gradients" not in Plan(target="ipu").replace({"mesh.data": 2}).explain()


def test_auto_takes_the_first_of_what_fits_the_hosts():
    assert automatic_algorithms("shm", [8]) == ("direct",)
    assert automatic_algorithms("c10d", [8]) == ("direct",)
    assert automatic_algorithms("c10d", [1, 1, 1]) == ("direct", "ring")
    assert automatic_algorithms("c10d", [3, 1]) == ("hierarchical", "direct", "ring")
    assert automatic_algorithms("c10d", [3, 1], deterministic=True) == ("hierarchical",)


@pytest.mark.parametrize("algorithm", ["direct", "ring", "hierarchical"])
def test_over_several_hosts_everything_can_be_had(algorithm):
    assert why_no_algorithm(algorithm, "c10d", [1, 1]) == ""
    assert why_no_algorithm(algorithm, "c10d", [2, 5, 1]) == ""
