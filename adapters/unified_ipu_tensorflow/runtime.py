"""TensorFlow's devices and threads, set before its first operation."""

from __future__ import annotations

import logging
from typing import Any, Callable, List, Sequence

import tensorflow as tf

from unified_ipu.adapter import Place, Plan
from unified_ipu.errors import CapabilityError
from unified_ipu.plan import runs_whole_calls
from unified_ipu.world import current_environment, usable_cores
from unified_ipu_tensorflow.errors import NAME

_data_log = logging.getLogger("unified_ipu.data")
_model_log = logging.getLogger("unified_ipu.session")
_LOADERS = (
    "make the session's loaders before the first TensorFlow operation, or leave the pipeline to a "
    'process of its own (data.isolate = "always")'
)
_MODELS = (
    "build the model inside `with session.scope():`, before the first TensorFlow operation of the "
    "script"
)


def take_process() -> None:
    """Use a process that only makes data: the accelerators are the model's, in another process."""
    late: List[str] = []
    _try(late, "hiding the GPUs", _show_gpus, [])
    _warn(_data_log, late, _LOADERS)


def share_process(threads: int) -> None:
    """Use a process that has a model too, maybe of another framework.

    TensorFlow would take all memory of every GPU it sees, so it is told to grow into what it
    needs. What can't be set any more, because TensorFlow runs already, is said in one warning.

    Args:
        threads: For each of TensorFlow's pools, where other ranks share the cores; 0 leaves them.
    """
    late: List[str] = []
    _let_memory_grow(late)
    _limit_threads(late, threads)
    _warn(_data_log, late, _LOADERS)


def take_rank(plan: Plan, place: Place, *, warns: bool) -> None:
    """Use a process that trains a model of TensorFlow: its own GPU, and its share of the cores.

    Args:
        plan: Its ``target`` says whether GPUs are used.
        place: Where this process stands.
        warns: Whether to say what cannot be set any more.
    """
    late: List[str] = []
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        wanted = _gpus_of(plan, place, gpus)
        if [gpu.name for gpu in tf.config.get_visible_devices("GPU")] != [g.name for g in wanted]:
            _try(late, "which GPUs are seen", _show_gpus, wanted)
        _let_memory_grow(late)
    if place.local_size > 1:
        _limit_threads(late, place.cores or max(1, usable_cores() // place.local_size))
    if warns:
        _warn(_model_log, late, _MODELS)


def choose_target(plan: Plan, place: Place) -> str:
    """Where a model runs; on hosts TensorFlow takes the GPU that it sees.

    ``auto`` takes the GPU of this process if it has one; alone, the first there is.

    Raises:
        CapabilityError: If the target is not written, or its device is absent.
    """
    if runs_whole_calls(plan.target):
        return plan.target
    if plan.target not in {"auto", "cpu", "cuda"}:
        raise CapabilityError(
            NAME, f'target "{plan.target}" is not written; set target = "cpu", "cuda" or "auto"'
        )
    gpus = tf.config.list_physical_devices("GPU")
    if plan.target == "cuda" and not gpus:
        raise CapabilityError(NAME, 'no GPU is usable here; set target = "cpu" or "auto"')
    return "cuda" if _gpus_of(plan, place, gpus) else "cpu"


def _gpus_of(plan: Plan, place: Place, gpus: Sequence[Any]) -> List[Any]:
    if plan.target not in {"auto", "cuda"} or not gpus:
        return []
    if place.device_index is not None:
        return [gpus[place.device_index % len(gpus)]]
    if plan.target == "cuda":
        return [gpus[place.local_rank % len(gpus)]]
    return [gpus[0]] if place.local_size == 1 else []


def _let_memory_grow(late: List[str]) -> None:
    for gpu in tf.config.list_physical_devices("GPU"):
        if not _has_growth(gpu):
            _try(late, f"memory growth of {gpu.name}", _set_growth, gpu)


def _limit_threads(late: List[str], threads: int) -> None:
    if threads:
        pools: Any = tf.config.threading
        for kind in ("intra", "inter"):
            if current_environment().get(f"TF_NUM_{kind.upper()}OP_THREADS"):
                continue  # TensorFlow reads it: the launcher's number, or the user's
            set_threads = getattr(pools, f"set_{kind}_op_parallelism_threads")
            if getattr(pools, f"get_{kind}_op_parallelism_threads")() != threads:
                _try(late, f"{kind}-op threads", set_threads, threads)


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


def _show_gpus(gpus: List[Any]) -> None:
    tf.config.set_visible_devices(gpus, "GPU")


def _warn(log: logging.Logger, late: List[str], advice: str) -> None:
    if late:
        log.warning(
            "TensorFlow runs already, so these cannot be set any more: %s; %s",
            ", ".join(late),
            advice,
        )
