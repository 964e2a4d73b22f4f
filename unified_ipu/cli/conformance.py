"""``unified-ipu conformance``: run the conformance kit on an installed adapter."""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
from typing import Any, List

from unified_ipu.errors import ConfigError


def add_parser(subparsers: Any) -> None:
    """Add ``conformance`` to the command line.

    Args:
        subparsers: What ``ArgumentParser.add_subparsers`` returned.
    """
    parser = subparsers.add_parser(
        "conformance",
        help="run the conformance kit on an adapter",
        description="Run the six laws as tests on an installed adapter and print a table by "
        "clause.",
    )
    parser.add_argument("adapter", metavar="NAME", help="of the adapter, as registered")
    parser.add_argument("--target", default="cpu", help="where programs run (default: cpu)")
    parser.add_argument(
        "--suite", action="append", default=[], help="one suite only; may be repeated"
    )
    parser.add_argument("--subject", metavar="MODULE:CLASS", help="instead of the registered one")
    parser.add_argument("-k", dest="keyword", metavar="EXPRESSION", help="as pytest's -k")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the kit in a process of its own.

    Args:
        args: Parsed by the parser of ``add_parser``.

    Returns:
        Exit status of the kit: not 0 if a test failed or an argument is wrong.

    Raises:
        ConfigError: If pytest is not installed.
    """
    if importlib.util.find_spec("pytest") is None:
        raise ConfigError("the kit needs pytest; install it with: pip install 'unified-ipu[test]'")
    command: List[str] = [sys.executable, "-m", "unified_ipu.testing", args.adapter]
    command += ["--target", args.target]
    for suite in args.suite:
        command += ["--suite", suite]
    if args.subject is not None:
        command += ["--subject", args.subject]
    if args.keyword is not None:
        command += ["-k", args.keyword]
    return subprocess.call(command)  # noqa: S603  # a module of ours
