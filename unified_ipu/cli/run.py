"""``unified-ipu run``: start a script, one process a rank."""

from __future__ import annotations

import argparse
from typing import Any


def add_parser(subparsers: Any) -> None:
    """Add ``run`` to the command line.

    Args:
        subparsers: What ``ArgumentParser.add_subparsers`` returned.
    """
    parser = subparsers.add_parser(
        "run",
        help="run a script, one process a rank",
        description="Run a script, one process a rank. The plan is plan.toml beside the script, "
        "under --plan, under --set. Everything after the script belongs to the script.",
    )
    parser.add_argument("--plan", metavar="FILE", help="TOML or JSON")
    parser.add_argument(
        "--set",
        dest="settings",
        action="append",
        default=[],
        metavar="PATH=VALUE",
        help="change one setting, such as mesh.data=8; may be repeated",
    )
    parser.add_argument("script", help="path of a Python file")
    parser.add_argument("script_args", nargs=argparse.REMAINDER, help="its own arguments")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Start the ranks and wait for them.

    Args:
        args: Parsed by the parser of ``add_parser``.

    Returns:
        Exit status of the run.
    """
    from unified_ipu.launch import launch_script

    return launch_script(args.script, args.script_args, plan_path=args.plan, settings=args.settings)
