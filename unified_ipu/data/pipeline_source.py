"""Samples made by a function of the user in the data process."""

from __future__ import annotations

from dataclasses import dataclass

from unified_ipu.data.function_name import check_function, check_size_argument


@dataclass(frozen=True)
class PipelineSource:
    """A pipeline that the data process builds; nothing of it is imported here.

    Args:
        kind: Name in the entry-point group ``unified_ipu.sources``.
        function: ``"module:function"``; called once in the data process, returns ``sample(s)``.
        size: Number of samples, at least 1.
        batched: Whether ``sample`` takes and returns many samples at once.

    Raises:
        ConfigError: If ``function`` or ``size`` cannot be right.
    """

    kind: str
    function: str
    size: int
    batched: bool = False

    def __post_init__(self) -> None:
        check_function(self.kind, self.function)
        check_size_argument(self.kind, self.size)


@dataclass(frozen=True)
class StreamSource:
    """An iterable that the data process runs through; nothing of it is imported here.

    Args:
        function: ``"module:function"``; called once an epoch in the data process.

    Raises:
        ConfigError: If ``function`` cannot be right.
    """

    function: str

    def __post_init__(self) -> None:
        check_function("stream", self.function)


def tensorflow(function: str, *, size: int, batched: bool = False) -> PipelineSource:
    """Samples of a tf.data pipeline that runs in a process of its own.

    ``function`` is called once there and returns ``sample(s)``, which is mapped over the epoch's
    order; ``s.index`` is the sample id and ``s.seed`` two integers from (seed, epoch, index).

    Args:
        function: ``"module:function"``.
        size: Number of samples; the ids are 0 to ``size - 1``.
        batched: Whether ``sample`` takes vectors of indices and returns rows. A vector may have
            the rows of several small micro-batches.

    Returns:
        The source.

    Raises:
        ConfigError: If ``function`` or ``size`` cannot be right.
    """
    return PipelineSource("tensorflow", function, size, batched)


def stream(function: str) -> StreamSource:
    """Samples of an iterable that runs in a process of its own, dealt once over all replicas.

    ``function`` is called there once an epoch, as ``f()``, ``f(epoch)`` or ``f(epoch, seed)`` by
    the names of its parameters; ``seed`` is the plan's. Each element of what it returns (a
    ``tf.data.Dataset``, a torch ``IterableDataset``, a generator, a list) is one sample: a tree of
    arrays of the same shapes as of the sample before. The sample id is its position. A run is
    resumed by skipping, so the same epoch must give the same samples again. The order is the
    iterable's own: ``data.shuffle`` has no effect. The data process reads one call ahead, so it
    holds ``updates_per_call`` times ``global_batch_size`` samples in memory.

    Args:
        function: ``"module:function"``.

    Returns:
        The source; its size is known when an epoch has ended.

    Raises:
        ConfigError: If ``function`` cannot be right.
    """
    return StreamSource(function)
