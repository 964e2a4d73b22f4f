"""Train a PyTorch transformer on sentences that a tf.data pipeline cuts from the King James Bible.

unified-ipu run examples/text_mixed/train.py            one process a replica, here
unified-ipu run examples/text_mixed/train.py --checkpoint run     the same again goes on from there
python examples/text_mixed/train.py                     one replica

Sentences differ in length, so what counts is the number of characters, not of sentences: the
objective returns the sum of the loss and how many characters it is a sum over, and every
character of an update weighs the same, whichever replica it was on.
"""

from __future__ import annotations

import argparse
import math
from typing import Any, Dict

import torch
from torch.nn import functional

import unified_ipu as ui
from baselines import bigram_perplexity, unigram_perplexity
from model import Transformer
from text import IGNORED, WINDOW, load_corpus, pieces


def parse_arguments() -> argparse.Namespace:
    """Read this script's own options; the session reads ``--plan`` and ``--set`` itself."""
    parser = argparse.ArgumentParser(description="Train a small transformer on characters.")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--updates", type=int, help="stop after so many changes of the weights")
    parser.add_argument("--width", type=int, default=96)
    parser.add_argument("--blocks", type=int, default=2)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument(
        "--checkpoint", metavar="DIR", help="write checkpoints, and go on from them"
    )
    parser.add_argument("--every", type=int, help="updates between checkpoints, else each epoch")
    parser.add_argument("--log", metavar="FILE", help="append each update as a line of JSON")
    parser.add_argument("--plan", help="a plan instead of plan.toml beside this script")
    parser.add_argument("--set", action="append", metavar="KEY=VALUE", help="a setting of the plan")
    return parser.parse_args()


def objective(model: torch.nn.Module, batch: Any) -> ui.Loss:
    """Sum the loss over the characters of a micro-batch, and count them."""
    inputs, targets = batch
    scores = model(inputs).flatten(0, 1)
    wanted = targets.flatten().long()
    total = functional.cross_entropy(scores, wanted, ignore_index=IGNORED, reduction="sum")
    return ui.Loss(total, weight=(wanted != IGNORED).sum())


def main() -> None:
    """Train, evaluate on the held-out text and compare with what counting achieves."""
    arguments = parse_arguments()
    corpus = load_corpus()

    with ui.Session() as session:
        with session.scope():
            model = Transformer(
                corpus.num_tokens,
                window=WINDOW,
                width=arguments.width,
                num_blocks=arguments.blocks,
                dropout=arguments.dropout,
            )
        source = ui.data.tensorflow("pipeline:train", size=len(corpus.train.starts))
        train = session.loader(source, name="train")
        test = session.loader(ui.data.arrays(*pieces(corpus.held_out)), train=False, name="test")
        num_updates = arguments.epochs * train.num_updates
        num_updates = min(num_updates, arguments.updates or num_updates)
        program = session.compile(
            model,
            objective=objective,
            optimizer=ui.optim.AdamW(lr=4e-3, weight_decay=0.01),
            schedule=lambda update: 1.0 - update / num_updates,
        )
        program.fit(
            train,
            epochs=arguments.epochs,
            every=arguments.every or "epoch",
            callbacks=[ui.JsonLines(arguments.log)] if arguments.log else [],
            checkpoint=arguments.checkpoint,
            resume="auto" if arguments.checkpoint else None,
            max_updates=arguments.updates,
        )
        perplexity = math.exp(program.evaluate(test)["loss"])
        if session.is_first:
            report(corpus, perplexity)


def report(corpus: Any, perplexity: float) -> None:
    """Print the perplexity of the held-out text beside those of counting."""
    parts: Dict[str, Any] = {"train": corpus.train, "held_out": corpus.held_out}
    count = int(corpus.held_out.lengths.sum())
    print(f"held-out text: {count} characters and sentence ends")
    print(f"perplexity {unigram_perplexity(**parts, num_tokens=corpus.num_tokens):.2f}  unigram")
    print(f"perplexity {bigram_perplexity(**parts, num_tokens=corpus.num_tokens):.2f}  bigram")
    print(f"perplexity {perplexity:.2f}  transformer")


if __name__ == "__main__":
    main()
