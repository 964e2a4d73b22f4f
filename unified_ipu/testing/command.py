"""The kit as a command: ``python -m unified_ipu.testing NAME``."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from typing import List, Optional, Sequence

from unified_ipu.adapter import load_adapter
from unified_ipu.errors import ConfigError, UnifiedIpuError
from unified_ipu.testing import installed
from unified_ipu.testing.device_limits import check_target
from unified_ipu.testing.plugin import ADAPTER, SUBJECT, TARGET
from unified_ipu.testing.subjects import find_subject

WRONG_ARGUMENT = 2


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run the suites on an installed adapter and print a table by clause.

    Args:
        argv: Instead of ``sys.argv[1:]``.

    Returns:
        0 if no test failed, 1 if one did or the adapter cannot be loaded, 2 for a wrong
        argument, 5 if no test ran: none was chosen, or all were skipped.
    """
    try:
        command = pytest_command(_parser().parse_args(argv))
    except UnifiedIpuError as error:
        sys.stderr.write(f"conformance: {error}\n")
        return WRONG_ARGUMENT if isinstance(error, ConfigError) else 1
    # A process of its own: pytest explains failed asserts only in modules that it imports first.
    return subprocess.call(command)


def pytest_command(args: argparse.Namespace) -> List[str]:
    """The command that runs what was asked for.

    Raises:
        ConfigError: If the adapter, its subject, a target or a suite is unknown.
        AdapterLoadError: If the adapter cannot be imported.
    """
    subject = find_subject(args.adapter, args.subject)
    usable = load_adapter(args.adapter).targets()
    if args.target not in usable:
        raise ConfigError(
            f"--target {args.target!r}: the adapter {args.adapter!r} can use "
            f"{', '.join(usable)} here"
        )
    check_target(subject, args.target)
    file = Path(installed.__file__)
    tests = [f"{file}::{name}" for name in _test_classes(args.suite)] or [str(file)]
    command = [sys.executable, "-m", "pytest", "-p", "unified_ipu.testing"]
    # Neither the settings nor the plugins of the folder that the command is called in.
    command += ["-c", os.devnull, f"--rootdir={file.parent}", f"--confcutdir={file.parent}"]
    command += ["-p", "no:cacheprovider", "-q", f"{ADAPTER}={args.adapter}"]
    command += [f"{TARGET}={args.target}"]
    if args.subject is not None:
        command.append(f"{SUBJECT}={args.subject}")
    if args.keyword is not None:
        command += ["-k", args.keyword]
    return command + tests


def _test_classes(suites: Sequence[str]) -> List[str]:
    known = {name[len("Test") :].lower(): name for name in vars(installed) if name[:4] == "Test"}
    found = []
    for suite in suites:
        key = suite.lower().replace("-", "").replace("_", "")
        key = key[: -len("suite")] if key.endswith("suite") else key
        if key not in known:
            names = ", ".join(f"{name[len('Test') :]}Suite" for name in known.values())
            raise ConfigError(f"--suite {suite!r}: there is no such suite; known: {names}")
        found.append(known[key])
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m unified_ipu.testing",
        description="Run the conformance kit on an installed adapter.",
    )
    parser.add_argument("adapter", metavar="NAME", help="of the adapter, as registered")
    parser.add_argument("--target", default="cpu", help="where programs run (default: cpu)")
    parser.add_argument(
        "--suite", action="append", default=[], help="one suite only; may be repeated"
    )
    parser.add_argument("--subject", metavar="MODULE:CLASS", help="instead of the registered one")
    parser.add_argument("-k", dest="keyword", metavar="EXPRESSION", help="as pytest's -k")
    return parser
