"""Train one network in one framework and keep its weights after 0, 1 and 50 updates.

unified-ipu run examples/parity/train_one.py --framework keras --model convnet --output weights.npz
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).parents[1] / "mnist_mixed"))

import unified_ipu as ui
from digits import load_digits
from networks import FRAMEWORKS, MODELS, initial_weights, networks_of

UPDATES = 50


def parse_arguments() -> argparse.Namespace:
    """Read this script's own options; the session reads ``--plan`` and ``--set`` itself."""
    parser = argparse.ArgumentParser(description="Train a network and keep its weights.")
    parser.add_argument("--framework", choices=FRAMEWORKS, required=True)
    parser.add_argument("--model", choices=MODELS, default="mlp")
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float32")
    parser.add_argument("--output", type=Path, required=True, help="file for the weights, .npz")
    parser.add_argument("--plan", help="a plan instead of plan.toml beside this script")
    parser.add_argument("--set", action="append", metavar="KEY=VALUE", help="a setting of the plan")
    return parser.parse_args()


def main() -> None:
    """Train 50 updates; rank 0 writes the file."""
    arguments = parse_arguments()
    (images, labels), _ = load_digits()
    networks = networks_of(arguments.framework)
    with ui.Session() as session:
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
        train = session.loader(ui.data.arrays(images.astype(arguments.dtype), labels))
        for call in train:
            program.step(call)
            if program.update in {1, UPDATES}:
                kept.update({f"{program.update}/{n}": v for n, v in program.weights().items()})
            if program.update == UPDATES:
                break
        program.check_same_weights()
        if session.is_first:
            np.savez(arguments.output, **kept)


if __name__ == "__main__":
    main()
