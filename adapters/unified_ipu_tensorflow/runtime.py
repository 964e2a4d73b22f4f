"""TensorFlow's devices and threads, set before its first operation."""

from __future__ import annotations

import logging
from typing import Any, Callable, List

import tensorflow as tf

_log = logging.getLogger("unified_ipu.data")


def take_process() -> None:
    """Use a process that only makes data: the accelerators are the model's, in another process."""
    late: List[str] = []
    _try(late, "hiding the GPUs", _hide_gpus, None)
    _warn(late)


def share_process(threads: int) -> None:
    """Use a process that has a model too, maybe of another framework.

    TensorFlow would take all memory of every GPU it sees, so it is told to grow into what it
    needs. What can't be set any more, because TensorFlow runs already, is said in one warning.

    Args:
        threads: For each of TensorFlow's pools, where other ranks share the cores; 0 leaves them.
    """
    late: List[str] = []
    for gpu in tf.config.list_physical_devices("GPU"):
        if not _has_growth(gpu):
            _try(late, f"memory growth of {gpu.name}", _set_growth, gpu)
    if threads:
        pools: Any = tf.config.threading
        for kind in ("intra", "inter"):
            set_threads = getattr(pools, f"set_{kind}_op_parallelism_threads")
            if getattr(pools, f"get_{kind}_op_parallelism_threads")() != threads:
                _try(late, f"{kind}-op threads", set_threads, threads)
    _warn(late)


def _has_growth(gpu: Any) -> bool:
    try:
        return bool(tf.config.experimental.get_memory_growth(gpu))
    except (RuntimeError, ValueError):
        return False


def _set_growth(gpu: Any) -> None:
    tf.config.experimental.set_memory_growth(gpu, True)


def _try(late: List[str], what: str, function: Callable[[Any], None], value: Any) -> None:
    try:
        function(value)
    except (RuntimeError, ValueError):
        late.append(what)


def _hide_gpus(_: Any) -> None:
    tf.config.set_visible_devices([], "GPU")


def _warn(late: List[str]) -> None:
    if late:
        _log.warning(
            "TensorFlow runs already, so these cannot be set any more: %s; make the session's "
            "loaders before the first TensorFlow operation, or leave the pipeline to a process of "
            'its own (data.isolate = "always")',
            ", ".join(late),
        )
