"""One network trained by ranks of several frameworks at once, then compared with one alone.

unified-ipu run examples/mixed_world/train.py            ranks in PyTorch, Keras and ONNX
unified-ipu run --set mesh.data=2 examples/mixed_world/train.py --model mlp --dtype float64

Every update sums the gradients of all ranks, whatever made them. At the end rank 0 trains the same
network again, by itself, and the weights are compared: it ends with 1 if they differ by more than
rounding.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, Dict

sys.path += [str(Path(__file__).parents[1] / name) for name in ("mnist_mixed", "parity")]

import unified_ipu as ui
from digits import load_digits
from networks import FRAMEWORKS, MODELS, initial_weights, networks_of
from tables import compare
from unified_ipu.world import World

UPDATES = 50


def parse_arguments() -> argparse.Namespace:
    """Read this script's own options; the session reads ``--plan`` and ``--set`` itself."""
    parser = argparse.ArgumentParser(description="Train one network in several frameworks.")
    parser.add_argument("--model", choices=MODELS, default="convnet")
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float32")
    parser.add_argument("--plan", help="a plan instead of plan.toml beside this script")
    parser.add_argument("--set", action="append", metavar="KEY=VALUE", help="a setting of the plan")
    return parser.parse_args()


def train(session: ui.Session, framework: str, arguments: argparse.Namespace) -> Dict[str, Any]:
    """Train 50 updates and return the weights after 0, 1 and 50, by ``"<updates>/<name>"``."""
    (images, labels), _ = load_digits()
    networks = networks_of(framework)
    with session.scope():
        model = networks.build(arguments.model, arguments.dtype)
    program = session.compile(
        model,
        loss=networks.loss(),
        optimizer=ui.optim.SGD(lr=0.05, momentum=0.9),
        names=networks.NAMES[arguments.model],
    )
    program.load_weights(initial_weights(program.weights()))
    kept = {f"0/{name}": value for name, value in program.weights().items()}
    loader = session.loader(ui.data.arrays(images.astype(arguments.dtype), labels))
    program.fit(loader, max_updates=1)
    kept.update({f"1/{name}": value for name, value in program.weights().items()})
    program.fit(loader, max_updates=UPDATES - 1)
    kept.update({f"{UPDATES}/{name}": value for name, value in program.weights().items()})
    return kept


def main() -> int:
    """Train together, then alone on rank 0; return 1 if the two differ."""
    arguments = parse_arguments()
    with ui.Session() as session:
        framework = FRAMEWORKS[session.rank % len(FRAMEWORKS)]
        print(f"rank {session.rank} trains in {framework}", flush=True)
        together = train(session, framework, arguments)
        if not session.is_first:
            return 0
        plan, num_ranks = session.plan, session.world_size
    # The same samples in the same order, by one process in one framework.
    with ui.Session(plan.replace({"mesh.data": 1}), world=World(), argv=[sys.argv[0]]) as session:
        alone = train(session, framework, arguments)
    comparison = compare(together, alone, UPDATES)
    print(f"\n{arguments.model}: {num_ranks} ranks together against one in {framework} alone")
    print(comparison)
    return 0 if comparison.is_close else 1


if __name__ == "__main__":
    sys.exit(main())
