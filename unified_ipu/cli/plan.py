"""``unified-ipu plan explain``: what follows from a plan, without running anything."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

PLAN_FILE = "plan.toml"
DEVICE_TARGETS = ("ipu", "ipu-emulated")


def add_parser(subparsers: Any) -> None:
    """Add ``plan`` and its subcommands to the command line.

    Args:
        subparsers: What ``ArgumentParser.add_subparsers`` returned.
    """
    parser = subparsers.add_parser("plan", help="show what a plan means")
    actions = parser.add_subparsers(dest="plan_command", metavar="COMMAND", required=True)
    explain = actions.add_parser(
        "explain",
        help="print every number that follows from a plan",
        description="Print every number that follows from a plan. Nothing is run.",
    )
    explain.add_argument(
        "plan", nargs="?", help=f"TOML or JSON; without it {PLAN_FILE} here, or else the defaults"
    )
    explain.add_argument("--samples", type=int, metavar="N", help="size of the data set")
    explain.add_argument(
        "--replicas", type=int, metavar="R", help="over the world, instead of mesh.data"
    )
    explain.add_argument("--target", help="instead of the plan's target")
    explain.add_argument(
        "--set",
        dest="settings",
        action="append",
        default=[],
        metavar="PATH=VALUE",
        help="change one setting, such as batch.micro_batch_size=8; may be repeated",
    )
    explain.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the explanation.

    Args:
        args: Parsed by the parser of ``add_parser``.

    Returns:
        Exit status 0.

    Raises:
        UnifiedIpuError: If the plan is wrong; the caller prints it.
    """
    from unified_ipu.plan import merge_plan

    path = args.plan
    if path is None and Path(PLAN_FILE).is_file():
        path = PLAN_FILE
    plan = merge_plan(path, settings=args.settings)
    print(f"plan: {path or 'the defaults'}\n")
    text = plan.explain(samples=args.samples, target=args.target, replicas=args.replicas)
    print(text, end="")
    target = args.target or plan.target
    if target in DEVICE_TARGETS:
        from unified_ipu.cli.lowered import lowered

        print("\n" + lowered(plan, target), end="")
    return 0
