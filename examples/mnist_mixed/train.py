"""Train a PyTorch network on digits that a tf.data pipeline turns and shifts.

unified-ipu run examples/mnist_mixed/train.py            one process a replica, here
torchrun --nproc-per-node 2 examples/mnist_mixed/train.py
python examples/mnist_mixed/train.py                     one replica
... train.py --checkpoint run --resume                   again after a crash: goes on from run/
"""

from __future__ import annotations

import argparse

import torch

import unified_ipu as ui
from digits import load_digits
from model import Net


def parse_arguments() -> argparse.Namespace:
    """Read this script's own options; the session reads ``--plan`` and ``--set`` itself."""
    parser = argparse.ArgumentParser(description="Train a small network on 4000 MNIST digits.")
    parser.add_argument("--dropout", type=float, default=0.25)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--checkpoint", metavar="DIR", help="write a checkpoint after each epoch")
    parser.add_argument("--resume", action="store_true", help="go on from the latest of DIR")
    parser.add_argument("--plan", help="a plan instead of plan.toml beside this script")
    parser.add_argument("--set", action="append", metavar="KEY=VALUE", help="a setting of the plan")
    return parser.parse_args()


def main() -> None:
    """Train, evaluate after each epoch, and print the summary."""
    arguments = parse_arguments()
    _, (test_images, test_labels) = load_digits()

    with ui.Session() as session:
        with session.scope():
            model = Net(dropout=arguments.dropout)
        train = session.loader(ui.data.tensorflow("pipeline:train", size=4000))
        test = session.loader(ui.data.arrays(test_images, test_labels), train=False, name="test")

        num_updates = arguments.epochs * train.num_updates
        program = session.compile(
            model,
            loss=torch.nn.CrossEntropyLoss(),
            optimizer=ui.optim.SGD(lr=0.1, momentum=0.9),
            schedule=lambda update: 1.0 - update / num_updates,
        )
        summary = program.fit(
            train,
            epochs=arguments.epochs,
            validation=test,
            metrics={"accuracy": ui.metrics.accuracy},
            checkpoint=arguments.checkpoint,
            resume="auto" if arguments.resume else None,
        )
        session.print(f"test accuracy {summary.validation['accuracy']:.4f}")


if __name__ == "__main__":
    main()
