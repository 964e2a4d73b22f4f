"""``unified-ipu lower``: write what a script trains as a plain script of an SDK."""

from __future__ import annotations

import argparse
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Iterator

import numpy as np

from unified_ipu.errors import ConfigError

SUFFIX = ".py"


def add_parser(subparsers: Any) -> None:
    """Add ``lower`` to the command line.

    Args:
        subparsers: What ``ArgumentParser.add_subparsers`` returned.
    """
    parser = subparsers.add_parser(
        "lower",
        allow_abbrev=False,
        help="write what a script trains as a plain PopTorch, IPU Keras or PopART script",
        description="Run a script until its first fit, and write what it would train as a plain "
        "script of an SDK that needs nothing of unified_ipu. Nothing is trained.",
    )
    parser.add_argument("--write", metavar="FILE", required=True, help="the new script")
    parser.add_argument(
        "--adapter", metavar="NAME", help="torch, tensorflow or onnx; else who accepts the model"
    )
    parser.add_argument("--plan", metavar="FILE", help="TOML or JSON")
    parser.add_argument(
        "--set",
        dest="settings",
        action="append",
        default=[],
        metavar="PATH=VALUE",
        help='change one setting, such as batch.remainder="pad"; may be repeated',
    )
    parser.add_argument("script", help="path of a Python file")
    parser.add_argument("script_args", nargs=argparse.REMAINDER, help="its own arguments")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write the script, and the arrays that it reads.

    Args:
        args: Parsed by the parser of ``add_parser``.

    Returns:
        Exit status 0.

    Raises:
        ConfigError: If there is no such script, or something of it cannot be written.
    """
    from unified_ipu.cli.native_script import native_script
    from unified_ipu.cli.recording import record

    script, written = Path(args.script), Path(args.write)
    if not script.is_file():
        raise ConfigError(f"{script}: no such file; expected the path of a Python script")
    if written.suffix != SUFFIX or written.resolve() == script.resolve():
        raise ConfigError(f"--write {written}: expected another file that ends in {SUFFIX}")
    script = script.resolve()
    with _modules_beside(script):
        recorded = record(script, args.script_args, plan_path=args.plan, settings=args.settings)
        found = native_script(recorded, script=script, written=written, adapter=args.adapter)
    written.write_text(found.text, encoding="utf-8")
    print(f"{written}: {found.text.count(chr(10))} lines for {found.sdk}")
    if found.saved is not None:
        path = written.with_name(found.data_file)
        with path.open("wb") as stream:
            np.savez(stream, **dict(found.saved))  # type: ignore[arg-type]  # typed as flags only
        print(f"{path}: the arrays that it trains on")
    for suffix, content in found.files.items():
        path = written.with_name(written.stem + suffix)
        path.write_bytes(content)
        print(f"{path}: what it reads beside that")
    for note in found.notes:
        print(f"note: {note}")
    return 0


@contextmanager
def _modules_beside(script: Path) -> Iterator[None]:
    """Find modules beside the script first, and forget them afterwards."""
    folder = str(script.parent)
    before = set(sys.modules)
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)
        for name in set(sys.modules) - before:
            file = getattr(sys.modules[name], "__file__", None)
            if file is not None and Path(file).parent == script.parent:
                del sys.modules[name]
