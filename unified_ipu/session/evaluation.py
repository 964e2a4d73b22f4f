"""Evaluation over every sample once: local sums, one exchange at the end."""

from __future__ import annotations

from typing import Any, Dict, Iterable, Mapping, Tuple

from unified_ipu.adapter import Executor, Metric, MicroBatch
from unified_ipu.comms import Communicator
from unified_ipu.data import Loader
from unified_ipu.engine import merge_metrics, ratio
from unified_ipu.errors import ConfigError, DataError
from unified_ipu.events import PhaseClock
from unified_ipu.session.agreement import shared_buffers
from unified_ipu.session.gathering import ROWS, Gathering


def evaluate(
    executor: Executor,
    loader: Any,
    metrics: Mapping[str, Metric],
    *,
    communicator: Communicator,
    clock: PhaseClock,
) -> Dict[str, float]:
    """Return ``"loss"`` and every metric over all samples, the same on all ranks; collective.

    Ranks may have different numbers of micro-batches, also none.

    Raises:
        ConfigError: If the loader is for training.
        DataError: If not every sample was seen exactly once.
    """
    check_evaluation_loader(loader)
    totals: Dict[str, Tuple[float, float]] = {}
    gathering = Gathering(metrics)
    with shared_buffers(executor, communicator):
        for micro in in_groups(executor, loader):
            with clock.phase("compute"):
                pairs = executor.evaluate(micro, gathering.added_up)
                gathering.keep(micro)
                merge_metrics(totals, pairs)
    waited = communicator.waiting_seconds
    with clock.phase("communication"):
        parts = communicator.all_gather_value({name: list(totals[name]) for name in totals})
        whole = gathering.results(communicator)
    clock.move("communication", "waiting", communicator.waiting_seconds - waited)
    merged: Dict[str, Tuple[float, float]] = {}
    for part in parts:
        merge_metrics(merged, {name: (pair[0], pair[1]) for name, pair in part.items()})
    certificate = loader.certificate()
    if not certificate.ok:
        raise DataError(f"evaluation did not see every sample once: {certificate}")
    merged.pop(ROWS, None)
    return {**{name: ratio(pair) for name, pair in merged.items()}, **whole}


def in_groups(executor: Executor, loader: Loader) -> Iterable[MicroBatch]:
    """The micro-batches of a loader; a device runs as many at once as it takes."""
    groups = getattr(executor, "in_groups", None)
    return loader if groups is None else groups(loader)


def check_evaluation_loader(loader: Any) -> None:
    """Refuse what cannot be evaluated.

    Raises:
        ConfigError: If it is no loader, or one for training.
    """
    if not isinstance(loader, Loader):
        raise ConfigError(
            f"got a {type(loader).__name__}; expected a loader: session.loader(source, train=False)"
        )
    if loader.train:
        raise ConfigError(
            f"loader {loader.name!r} is for training: evaluation would move its position; "
            "make one with session.loader(source, train=False)"
        )
