"""Live objects that are accepted in place of a source, and advice for those that are not."""

from __future__ import annotations

from typing import Any, Optional, Union

from unified_ipu.data.array_source import arrays
from unified_ipu.data.dataloader_source import (
    DataLoaderSource,
    is_dataloader,
    is_iterable_dataset,
)
from unified_ipu.data.dataset_source import Collate, DatasetSource, dataset
from unified_ipu.data.live_source import live_source
from unified_ipu.data.pipeline_source import PipelineSource, StreamSource
from unified_ipu.data.source import Source
from unified_ipu.errors import ConfigError

AnySource = Union[Source, PipelineSource, StreamSource]


def as_source(given: Any, collate: Optional[Collate] = None) -> AnySource:
    """Return ``given`` if it is a source, else the source that it stands for.

    Args:
        given: A source, an array, a tree of arrays, a map-style dataset or a torch ``DataLoader``.
        collate: Turns a list of samples into a batch; for datasets only.

    Returns:
        The source.

    Raises:
        ConfigError: If there is no source for it, with what to use instead.
        DataError: If its arrays are not what they must be.
    """
    if isinstance(given, DatasetSource) and collate is not None:
        return given.collated_by(collate)
    is_source = isinstance(given, (PipelineSource, StreamSource, Source))
    is_arrays = isinstance(given, (tuple, list, dict)) or hasattr(given, "__array__")
    if collate is not None and (is_source or is_arrays):
        raise ConfigError(
            f"collate= was given with a {type(given).__name__}; it puts single samples of a "
            "dataset together: pass it to ui.data.dataset(...) or leave it out"
        )
    if isinstance(given, (PipelineSource, StreamSource, Source)):
        return given
    if is_dataloader(given):
        return DataLoaderSource(given, collate)
    _refuse_foreign(given)
    live = live_source(given)
    if live is not None:
        return live
    if is_arrays:
        return arrays(given)
    if hasattr(given, "__len__") and hasattr(given, "__getitem__"):
        return dataset(given, collate)
    raise ConfigError(
        f"a loader cannot read a {type(given).__name__}: it has no length and no index, so its "
        "samples cannot be dealt exactly once; use ui.data.arrays, ui.data.dataset, "
        "ui.data.tensorflow or ui.data.stream"
    )


def _refuse_foreign(given: Any) -> None:
    name = type(given).__name__
    if isinstance(given, (str, bytes)):
        raise ConfigError(
            f"a loader cannot read the text {given!r}; for a pipeline in a module pass "
            "ui.data.tensorflow(text, size=)"
        )
    if is_iterable_dataset(given):
        raise ConfigError(
            f"the iterable dataset {name} would be run through as a whole on every rank; put a "
            "function that returns it into a module and pass "
            'ui.data.stream("module:function"): each sample is dealt once'
        )
