"""The tf.data side: the window of one training sentence. Only the data process imports this."""

from __future__ import annotations

from typing import Any, Callable, Tuple


def train() -> Callable[[Any], Tuple[Any, Any]]:
    """Return the function that makes one sample; called once, in the data process."""
    import tensorflow as tf

    from text import BOUNDARY, IGNORED, WINDOW, load_corpus

    sentences = load_corpus().train
    tokens = tf.constant(sentences.tokens)
    starts, lengths = tf.constant(sentences.starts), tf.constant(sentences.lengths)

    def sample(s: Any) -> Tuple[Any, Any]:
        """Take sentence ``s.index``; of a long one, a window that ``s.seed`` chooses."""
        length = lengths[s.index]
        spare = tf.maximum(length - WINDOW, 0)
        shift = tf.random.stateless_uniform([], s.seed, 0, spare + 1, dtype=tf.int64)
        first = starts[s.index] + shift
        count = tf.minimum(length, WINDOW)
        behind = [[0, WINDOW - count]]
        inputs = tf.pad(tokens[first : first + count], behind, constant_values=BOUNDARY)
        targets = tf.pad(tokens[first + 1 : first + count + 1], behind, constant_values=IGNORED)
        return tf.ensure_shape(inputs, [WINDOW]), tf.ensure_shape(targets, [WINDOW])

    return sample
