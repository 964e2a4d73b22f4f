"""``unified-ipu run``: start a script, one process a rank."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import Any, List, Sequence, Tuple

from unified_ipu.errors import ConfigError
from unified_ipu.launch import (
    BINDINGS,
    OTHER_LAUNCHERS,
    launch_script,
    launcher_command,
    run_emulated,
)
from unified_ipu.plan import merge_plan

VALUED = ("--plan", "--set", "--launcher", "--bind")  # options of ours that take the next word


def add_parser(subparsers: Any) -> None:
    """Add ``run`` to the command line.

    Args:
        subparsers: What ``ArgumentParser.add_subparsers`` returned.
    """
    parser = subparsers.add_parser(
        "run",
        allow_abbrev=False,
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
    parser.add_argument(
        "--bind",
        choices=BINDINGS,
        help="cores that a rank may run on: all (none), its own (core), those of a memory node "
        "(numa); auto: numa where there are several nodes and no rank loses a thread by it",
    )
    parser.add_argument(
        "--launcher",
        choices=OTHER_LAUNCHERS,
        help="with --dry-run: another launcher, whose command line is printed",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="start nothing; print the launcher's command line"
    )
    parser.add_argument(
        "--emulate",
        action="store_true",
        help="run a script written for Graphcore's SDK as it is, on the SDK's emulation; no plan",
    )
    parser.add_argument("script", help="path of a Python file")
    parser.add_argument("script_args", nargs=argparse.REMAINDER, help="its own arguments")
    parser.set_defaults(run=run)


def split_words(words: Sequence[str]) -> Tuple[List[str], List[str]]:
    """Split behind the script: the first word that is no option of ours, nor its value.

    Args:
        words: Everything after ``run``.

    Returns:
        Ours, the script's path included; and the script's own.
    """
    index = 0
    while index < len(words):
        word = words[index]
        if word == "--":
            end = index + 2
            return [*words[:index], *words[index + 1 : end]], list(words[end:])
        if not word.startswith("-"):
            return list(words[: index + 1]), list(words[index + 1 :])
        index += 2 if word in VALUED else 1
    return list(words), []


def run(args: argparse.Namespace) -> int:
    """Start the ranks and wait for them.

    Args:
        args: Parsed by the parser of ``add_parser``.

    Returns:
        Exit status of the run.

    Raises:
        ConfigError: If ``--launcher`` and ``--dry-run`` are not given together, ``--emulate`` with
            any other option, or ``--bind`` with ``--launcher``.
        PlanError: If the plan does not say what the launcher has to be told.
    """
    if args.emulate:
        others = (args.plan, args.launcher, args.bind)
        if args.settings or args.dry_run or any(value is not None for value in others):
            raise ConfigError(
                "--emulate runs a script that knows nothing of plans; leave --plan, --set, "
                "--bind, --launcher and --dry-run out"
            )
        return run_emulated(args.script, args.script_args)
    if args.launcher is not None:
        if args.bind is not None:
            raise ConfigError(
                f"--bind {args.bind}: ranks of {args.launcher} are bound by its own options; leave "
                "--bind out"
            )
        command = shlex.join(_command(args))
        if not args.dry_run:
            raise ConfigError(
                f"--launcher {args.launcher}: it is not started from here; add --dry-run, and run "
                f"what it prints on the machines: {command}"
            )
        print(command)
        return 0
    if args.dry_run:
        raise ConfigError(
            f"--dry-run prints a command for --launcher {' | '.join(OTHER_LAUNCHERS)}"
        )
    return launch_script(
        args.script,
        args.script_args,
        plan_path=args.plan,
        settings=args.settings,
        bind=args.bind or "auto",
    )


def _command(args: argparse.Namespace) -> List[str]:
    beside = Path(args.script).with_name("plan.toml")
    path = args.plan
    if path is None and beside.is_file():
        path = str(beside)
    return launcher_command(
        args.launcher,
        merge_plan(path, settings=args.settings),
        args.script,
        args.script_args,
        plan_path=args.plan,
        settings=args.settings,
    )
