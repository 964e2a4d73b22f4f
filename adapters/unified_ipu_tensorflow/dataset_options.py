"""Options of the outermost dataset, which win over the user's."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def in_order(*, threads: int) -> Any:
    """Options of a dataset that keeps its order.

    Args:
        threads: Of a pool of the dataset's own.
    """
    options = tf.data.Options()
    # Called so since TensorFlow 2.7; other names are refused, so it is not set on trust.
    is_named = "deterministic" in dir(options)
    setattr(options, "deterministic" if is_named else "experimental_deterministic", True)
    options.threading.private_threadpool_size = threads
    return options
