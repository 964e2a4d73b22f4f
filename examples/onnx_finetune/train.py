"""Export a PyTorch network to ONNX, fine-tune the file, and run what came out in onnxruntime.

unified-ipu run examples/onnx_finetune/train.py          one process a replica, here
python examples/onnx_finetune/train.py --folder files    one replica; keep the two files there

The network of examples/mnist_mixed first sees upright digits. Then the ONNX file trains on digits
that the same tf.data pipeline turns and shifts; nothing of the network's Python is needed for it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnxruntime

import unified_ipu as ui

sys.path.append(str(Path(__file__).parents[1] / "mnist_mixed"))

from digits import Digits, load_digits
from model import Net

METRICS = {"accuracy": ui.metrics.accuracy}


def parse_arguments() -> argparse.Namespace:
    """Read this script's own options; the session reads ``--plan`` and ``--set`` itself."""
    parser = argparse.ArgumentParser(description="Fine-tune an ONNX file on turned digits.")
    parser.add_argument("--epochs", type=int, default=4, help="of fine-tuning")
    parser.add_argument("--folder", type=Path, help="keep digits.onnx and tuned.onnx there")
    parser.add_argument("--plan", help="a plan instead of plan.toml beside this script")
    parser.add_argument("--set", action="append", metavar="KEY=VALUE", help="a setting of the plan")
    return parser.parse_args()


def export_network(session: ui.Session, digits: Digits, path: Path) -> None:
    """Train the network for an epoch on upright digits and write it as an ONNX file."""
    with session.scope():
        network = Net()
    program = session.compile(
        network, loss=ui.losses.softmax_cross_entropy(), optimizer=ui.optim.Adam(lr=0.002)
    )
    program.fit(session.loader(ui.data.arrays(*digits)), epochs=1)
    program.export_onnx(path)
    program.close()


def deployed_accuracy(path: Path, digits: Digits) -> float:
    """Share of digits that onnxruntime alone tells right from the file."""
    images, labels = digits
    deployed = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (scores,) = deployed.run(None, {"images": images})
    return float(np.mean(scores.argmax(axis=1) == labels))


def main() -> None:
    """Export, fine-tune, and compare before and after."""
    arguments = parse_arguments()
    train_digits, test_digits = load_digits()
    with ui.Session() as session, tempfile.TemporaryDirectory() as scratch:
        folder = arguments.folder or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        # Rank 0 writes; where ranks have folders of their own, all read what it wrote.
        folder = Path(session.communicator().all_gather_value(str(folder.resolve()))[0])
        exported, tuned = folder / "digits.onnx", folder / "tuned.onnx"
        export_network(session, train_digits, exported)

        train = session.loader(ui.data.tensorflow("turned:train", size=4000))
        test = session.loader(ui.data.arrays(*test_digits), train=False, name="test")
        num_updates = arguments.epochs * train.num_updates
        program = session.compile(
            exported,
            loss=ui.losses.softmax_cross_entropy(),
            optimizer=ui.optim.Adam(lr=0.002),
            schedule=lambda update: 1.0 - update / num_updates,
        )
        before = program.evaluate(test, METRICS)["accuracy"]
        summary = program.fit(train, epochs=arguments.epochs, validation=test, metrics=METRICS)
        program.export_onnx(tuned)

        session.print(
            f"test accuracy {before:.4f} before, {summary.validation['accuracy']:.4f} after"
        )
        if session.is_first:
            found = deployed_accuracy(tuned, test_digits)
            session.print(f"{tuned.name} in onnxruntime alone: test accuracy {found:.4f}")


if __name__ == "__main__":
    main()
