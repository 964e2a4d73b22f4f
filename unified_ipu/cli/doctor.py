"""``unified-ipu doctor``: what can run here."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from unified_ipu.cli.plan import PLAN_FILE


def add_parser(subparsers: Any) -> None:
    """Add ``doctor`` to the command line.

    Args:
        subparsers: What ``ArgumentParser.add_subparsers`` returned.
    """
    parser = subparsers.add_parser(
        "doctor",
        help="say what can run here, and why not",
        description="Look at Python, frameworks, targets, the Poplar SDK, memory and cores. Exit "
        "status 0 only when the plan can run here.",
    )
    parser.add_argument(
        "--plan", help=f"the plan that is to run; without it {PLAN_FILE} here, or the defaults"
    )
    parser.add_argument(
        "--set",
        dest="settings",
        action="append",
        default=[],
        metavar="PATH=VALUE",
        help="change one setting of the plan; may be repeated",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the diagnosis.

    Args:
        args: Parsed by the parser of ``add_parser``.

    Returns:
        Exit status: 0 if the plan can run here, else 1.

    Raises:
        UnifiedIpuError: If the plan is wrong; the caller prints it.
    """
    from unified_ipu.plan import merge_plan
    from unified_ipu.report import doctor

    path = args.plan
    if path is None and Path(PLAN_FILE).is_file():
        path = PLAN_FILE
    diagnosis = doctor(merge_plan(path, settings=args.settings))
    print(json.dumps(diagnosis.to_dict(), indent=2) if args.json else diagnosis)
    return 0 if diagnosis.can_run else 1
