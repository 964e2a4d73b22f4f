"""A dataset object of a framework, read in the rank's own process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Optional, Union

from unified_ipu.adapter import registered
from unified_ipu.data.frameworks import GROUP, load_source
from unified_ipu.data.isolation import refuse_conflict
from unified_ipu.data.pipeline_source import PipelineSource, StreamSource
from unified_ipu.errors import ConfigError
from unified_ipu.plan import DataSettings


@dataclass(frozen=True)
class LiveSource(StreamSource):
    """A stream whose iterable is there already; every rank reads it from its start.

    Args:
        function: What messages call it.
        dataset: The user's object.
        adopt: Of its framework: checks that it repeats, and returns what to iterate over.
        seeds_of: Of its framework: what must be equal on all ranks for their orders to be so, as
            JSON values.
    """

    dataset: Any = None
    adopt: Optional[Callable[[Any], Any]] = None
    seeds_of: Optional[Callable[[Any], Any]] = None

    def adopted(self) -> Callable[[], Any]:
        """The factory of a stream, the same object in every epoch.

        Raises:
            DataError: If ranks and epochs may see different samples.
        """
        samples = self.dataset if self.adopt is None else self.adopt(self.dataset)
        return lambda: samples

    def seeds(self) -> Any:
        """What decides the order of the dataset, as JSON values."""
        return None if self.seeds_of is None else self.seeds_of(self.dataset)


def live_source(given: Any) -> Optional[LiveSource]:
    """The source of a dataset object, if its framework's source has a function ``adopt``.

    Args:
        given: Any object.

    Returns:
        The source; None if no registered source takes such objects.
    """
    if not hasattr(given, "element_spec"):
        return None  # what frameworks call the form of a dataset's elements
    kind = type(given)
    framework = kind.__module__.partition(".")[0]
    points = registered(GROUP)
    if framework not in points:
        return None
    producer = load_source(points[framework])
    adopt = getattr(producer, "adopt", None)
    if adopt is None:
        return None
    name = kind.__name__.lstrip("_")
    seeds_of = getattr(producer, "seeds_of", None)
    return LiveSource(f"{framework}:{name}", dataset=given, adopt=adopt, seeds_of=seeds_of)


def is_local(source: Union[PipelineSource, StreamSource], settings: DataSettings) -> bool:
    """Whether a pipeline runs in the rank's own process.

    Args:
        source: The pipeline.
        settings: The plan's ``[data]`` table.

    Returns:
        True for dataset objects, and for everything with ``isolate = "never"``.

    Raises:
        ConfigError: If a dataset object should run in another process, if there are settings of a
            process that there is none of, or if the pipeline may end this process by a signal.
    """
    if isinstance(source, LiveSource) and settings.isolate == "always":
        raise ConfigError(
            f'data.isolate = "always": {source.function} is an object of this process and cannot '
            'run in another; pass ui.data.stream("module:function") with a function that makes it, '
            'or set data.isolate = "auto"'
        )
    if settings.isolate != "never":
        return isinstance(source, LiveSource)
    if settings.workers > 1 or settings.python:
        raise ConfigError(
            f'data.isolate = "never" with data.workers = {settings.workers}, data.python = '
            f"{settings.python!r}: without a data process there is nothing to set there; leave "
            'them out, or set data.isolate = "auto"'
        )
    if isinstance(source, PipelineSource):
        refuse_conflict(source)
    return True
