"""Train the same networks in every framework, two replicas each, and compare their weights.

python examples/parity/parity.py                     both networks; ends with 1 if they differ
python examples/parity/parity.py --model mlp --dtype float64
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict

import numpy as np

from networks import FRAMEWORKS, MODELS
from tables import compare

FOLDER = Path(__file__).parent


def train(framework: str, model: str, dtype: str, output: Path) -> Dict[str, Any]:
    """Run ``train_one.py`` in processes of its own, so that no two frameworks meet in one."""
    command = [sys.executable, "-m", "unified_ipu.cli.main", "run", str(FOLDER / "train_one.py")]
    command += ["--framework", framework, "--model", model, "--dtype", dtype]
    command += ["--output", str(output)]
    subprocess.run(command, check=True)  # noqa: S603 our own script
    with np.load(output) as file:
        return {name: file[name] for name in file.files}


def main() -> int:
    """Print a table a network and framework; return 1 if one differs by more than rounding."""
    parser = argparse.ArgumentParser(description="Compare frameworks after 1 and 50 updates.")
    parser.add_argument("--model", choices=MODELS, action="append", help="all if left out")
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float32")
    arguments = parser.parse_args()
    is_close = True
    with tempfile.TemporaryDirectory() as folder:
        for model in arguments.model or MODELS:
            runs = {
                framework: train(
                    framework, model, arguments.dtype, Path(folder) / f"{model}-{framework}.npz"
                )
                for framework in FRAMEWORKS
            }
            first, *others = FRAMEWORKS
            for framework in others:
                comparison = compare(runs[framework], runs[first])
                print(f"\n{model}: {framework} against {first}, 2 replicas each\n{comparison}")
                is_close = is_close and comparison.is_close
    return 0 if is_close else 1


if __name__ == "__main__":
    sys.exit(main())
