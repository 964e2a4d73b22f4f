"""Which feed a source is read through."""

from __future__ import annotations

from typing import Sequence

from unified_ipu.comms import Communicator
from unified_ipu.data.adoption import AnySource
from unified_ipu.data.dataloader_source import DataLoaderFeed, DataLoaderSource
from unified_ipu.data.dataset_source import DatasetSource
from unified_ipu.data.feed import DirectFeed, Feed
from unified_ipu.data.live_source import is_local
from unified_ipu.data.pipeline_source import PipelineSource, StreamSource
from unified_ipu.data.schedule import Schedule
from unified_ipu.events import Counters
from unified_ipu.plan import DataSettings


def open_feed(
    source: AnySource,
    schedule: Schedule,
    *,
    replica: int,
    communicator: Communicator,
    counters: Counters,
    settings: DataSettings,
    search_path: Sequence[str],
    name: str,
) -> Feed:
    """Open a source where the plan says: in this process, or in data processes; collective.

    Args:
        source: What to read.
        schedule: Who gets what.
        replica: The first one of this process.
        communicator: Of all replicas.
        counters: Are told of copied batches.
        settings: The plan's ``[data]`` table.
        search_path: Where the user's modules are looked for first.
        name: Of the loader.

    Returns:
        The feed of this process.

    Raises:
        ConfigError: If the plan and the source contradict each other.
        DataError: If it cannot be opened, on all ranks.
    """
    if isinstance(source, DataLoaderSource):
        return DataLoaderFeed(source, communicator)
    if isinstance(source, (PipelineSource, StreamSource)):
        if is_local(source, settings):
            from unified_ipu.data.local_feed import LocalFeed

            return LocalFeed(
                source,
                schedule,
                replica=replica,
                communicator=communicator,
                counters=counters,
                search_path=search_path,
                name=name,
            )
        workers = 1 if isinstance(source, StreamSource) else max(1, settings.workers)
    elif isinstance(source, DatasetSource) and source.num_workers(settings):
        workers = source.num_workers(settings)
    else:
        return DirectFeed(source)
    from unified_ipu.data.process_feed import ProcessFeed

    return ProcessFeed(
        source,
        schedule,
        num_workers=workers,
        replica=replica,
        communicator=communicator,
        counters=counters,
        settings=settings,
        search_path=search_path,
        name=name,
    )
