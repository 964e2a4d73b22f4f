"""Train a Keras network on a table that a PyTorch dataset reads and makes noisy.

unified-ipu run examples/tabular_keras/train.py          one process a replica, here
python examples/tabular_keras/train.py                   one replica
... train.py --checkpoint run --resume                   again after a crash: goes on from run/

No process imports both frameworks: the ranks have Keras, the data process has PyTorch.
"""

from __future__ import annotations

import argparse

import keras

import unified_ipu as ui
from model import network
from tumours import load_tumours


def parse_arguments() -> argparse.Namespace:
    """Read this script's own options; the session reads ``--plan`` and ``--set`` itself."""
    parser = argparse.ArgumentParser(description="Tell malignant tumours from benign ones.")
    parser.add_argument("--dropout", type=float, default=0.2)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--checkpoint", metavar="DIR", help="write a checkpoint after each epoch")
    parser.add_argument("--resume", action="store_true", help="go on from the latest of DIR")
    parser.add_argument("--plan", help="a plan instead of plan.toml beside this script")
    parser.add_argument("--set", action="append", metavar="KEY=VALUE", help="a setting of the plan")
    return parser.parse_args()


def main() -> None:
    """Train, evaluate after each epoch, and print the summary."""
    arguments = parse_arguments()
    (train_values, _), (test_values, test_labels) = load_tumours()

    with ui.Session() as session:
        with session.scope():
            model = network(train_values.shape[1], dropout=arguments.dropout)
        train = session.loader(ui.data.dataset("pipeline:train", size=len(train_values)))
        test = session.loader(ui.data.arrays(test_values, test_labels), train=False, name="test")

        num_updates = arguments.epochs * train.num_updates
        rate = keras.optimizers.schedules.CosineDecay(0.003, num_updates)
        program = session.compile(
            model,
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            optimizer=keras.optimizers.AdamW(rate, weight_decay=0.01),
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
