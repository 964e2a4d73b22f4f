"""What does not hold on a device: declared test by test with its reason, or else tested.

A device has static shapes and limits that no capability names. A test is left out there only if it
is named here, or by the subject of the adapter; any other refusal of a device is a failure.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any, Dict, Mapping, Optional

from unified_ipu.errors import ConfigError
from unified_ipu.plan import runs_whole_calls

_KEYED = "random numbers of forward are the device's own (L3.2): a model that draws is refused"
_EVEN = "shapes are static: all replicas have equally many rows of an update"
_NEVER_SKIPS = "a device skips no update (L1.7), it raises after the call"
_NAMES = "names= and other axes are built for host targets only"

NO_FLOAT64 = "the device computes in float32, and the test asks for float64"
"""Why a test with the parameter ``dtype="float64"`` does not hold on such a device."""

EVERY_DEVICE: Mapping[str, str] = {
    "test_l4_2_metrics_that_change_their_names_end_all_ranks": (
        "an objective is read once, when the program is compiled: its metrics cannot change"
    ),
    "test_l1_5_a_rank_whose_targets_are_all_ignored_does_not_count": (
        "a replica without a row that counts is fed its own rows times 0 (L1.5), and 0 times "
        "infinity is no number"
    ),
    "test_l1_7_an_overflow_on_one_rank_skips_the_update_on_all": _NEVER_SKIPS,
    "test_l1_10_what_some_micro_batches_use_is_reduced_and_the_unused_stays": (
        "what nothing used has a gradient of zero (L1.10), which decay acts on"
    ),
    "test_l2_4_the_micro_batches_of_an_uneven_world": _EVEN,
    "test_l3_2_*": _KEYED,
    "test_l3_6_masks_go_on_in_another_world": _KEYED,
    "test_l6_7_evaluation_draws_nothing_and_leaves_generators_alone": _KEYED,
    "test_l5_2_ranks_may_keep_a_tensor_with_other_axes": _NAMES,
    "test_l5_3_other_names_and_axes_change_nothing": _NAMES,
}
"""Names of tests (shell patterns), and why no device holds them."""


def check_target(subject: Any, target: str) -> None:
    """Refuse a device that the kit is not written for.

    Raises:
        ConfigError: If the subject does not say what its adapter's device cannot hold.
    """
    if runs_whole_calls(target) and getattr(subject, "device_limits", None) is None:
        raise ConfigError(
            f"--target {target!r}: the kit does not run the adapter {subject.adapter!r} on "
            "devices, since its subject has no device_limits, which say what does not hold there; "
            'choose "cpu" or "cuda"'
        )


def limit_of(subject: Any, test: str, case: str = "") -> Optional[str]:
    """Why a test does not hold on the device of a subject, or None if it must.

    Args:
        subject: Of the adapter; its optional attribute ``device_limits`` adds to ``EVERY_DEVICE``.
        test: Name of the test function, without parameters.
        case: Name with them, ``test_...[parameters]``; patterns may match either.
    """
    limits: Dict[str, str] = {**EVERY_DEVICE, **(getattr(subject, "device_limits", None) or {})}
    names = (test, case)
    return next(
        (why for pattern, why in limits.items() for name in names if fnmatchcase(name, pattern)),
        None,
    )
