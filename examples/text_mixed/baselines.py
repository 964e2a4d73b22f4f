"""What counting alone achieves on the held-out text: the bars that a model must clear."""

from __future__ import annotations

import math

import numpy as np

from text import IGNORED, Sentences, pieces


def unigram_perplexity(train: Sentences, held_out: Sentences, *, num_tokens: int) -> float:
    """Perplexity of guessing each token by how often it occurs in ``train``, plus one."""
    _, seen = _pairs(train)
    counts = np.bincount(seen, minlength=num_tokens) + 1.0
    _, targets = _pairs(held_out)
    return math.exp(-np.log(counts / counts.sum())[targets].mean())


def bigram_perplexity(train: Sentences, held_out: Sentences, *, num_tokens: int) -> float:
    """Perplexity of guessing each token by what followed the one before in ``train``, plus one."""
    before, after = _pairs(train)
    counts = np.bincount(before * num_tokens + after, minlength=num_tokens**2) + 1.0
    table = counts.reshape(num_tokens, num_tokens)
    log_chances = np.log(table / table.sum(1, keepdims=True))
    inputs, targets = _pairs(held_out)
    return math.exp(-log_chances[inputs, targets].mean())


def _pairs(sentences: Sentences) -> tuple[np.ndarray, np.ndarray]:
    """Every counted target and the token before it, int64 ``[num_targets]`` each."""
    inputs, targets = pieces(sentences)
    counted = targets != IGNORED
    return inputs[counted].astype(np.int64), targets[counted].astype(np.int64)
