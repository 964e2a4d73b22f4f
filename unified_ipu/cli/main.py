"""The command line: ``unified-ipu COMMAND``."""

from __future__ import annotations

import argparse
import sys
from typing import Callable, Optional, Sequence

from unified_ipu.cli import conformance, doctor, lower, plan, run
from unified_ipu.errors import ConfigError, UnifiedIpuError

DISTRIBUTION = "unified-ipu"


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run a command.

    Args:
        argv: Instead of ``sys.argv[1:]``.

    Returns:
        Exit status: the command's own; 2 for a wrong plan or argument, 1 for other errors of
        ours, 130 when interrupted.
    """
    args = parse(sys.argv[1:] if argv is None else argv)
    command: Callable[[argparse.Namespace], int] = args.run
    try:
        return command(args)
    except UnifiedIpuError as error:
        print(f"unified-ipu: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    except KeyboardInterrupt:
        return 130


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Understand the command line; what belongs to a script is not looked at.

    Args:
        words: Without the program's name.
    """
    parser = build_parser()
    if list(words[:1]) != ["run"]:
        return parser.parse_args(words)
    # argparse drops a first "--" and takes some of the script's options for ours.
    ours, script_args = run.split_words(words[1:])
    args = parser.parse_args(["run", *ours])
    args.script_args = script_args
    return args


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="unified-ipu", description="Distributed training with one plan on any framework."
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for module in (run, plan, lower, conformance, doctor):
        module.add_parser(subparsers)
    return parser


class _Version(argparse.Action):
    """Looks the version up only when asked: that reads the installed metadata."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        """Print it and exit."""
        from importlib.metadata import version

        print(f"unified-ipu {version(DISTRIBUTION)}")
        parser.exit()


if __name__ == "__main__":
    sys.exit(main())
