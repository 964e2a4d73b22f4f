"""Runs through the user's iterables in the data process, one an epoch."""

from __future__ import annotations

import inspect
from itertools import islice
from typing import Any, Callable, Dict, Iterator, Optional

from unified_ipu.adapter import registered
from unified_ipu.data.dataloader_source import is_dataloader
from unified_ipu.data.dataset_source import stack
from unified_ipu.data.source import Tree
from unified_ipu.errors import DataError

GROUP = "unified_ipu.sources"


class StreamReader:
    """Calls the factory of a stream once a pass and puts its samples together.

    A dataset of a framework is read by the source that is registered under the framework's name,
    if it has a function ``batches(dataset, start=, rows=, is_strict=)``; anything else is
    iterated over.

    Args:
        function: The user's.
        seed: Handed to it, if it takes one.
        is_strict: Whether other processes read the same, so that it must repeat.

    Raises:
        DataError: If it takes other arguments than ``epoch`` and ``seed``.
    """

    def __init__(self, function: Callable[..., Any], *, seed: int, is_strict: bool = False) -> None:
        self._function = function
        self._is_strict = is_strict
        self._wanted = _parameters(function)
        self._seed = seed
        self._before: Optional[Any] = None

    def open(self, epoch: int, start: int, *, rows: int) -> Iterator[Tree]:
        """Run through the samples of an epoch.

        Args:
            epoch: Handed to the factory.
            start: Samples to leave out.
            rows: Of each result but the last.

        Yields:
            Trees with one row a sample, which own their memory.

        Raises:
            DataError: If there are no samples to iterate over, or it ends before ``start``.
        """
        values = {"epoch": epoch, "seed": self._seed}
        samples = self._function(**{name: values[name] for name in self._wanted})
        if is_dataloader(samples):
            raise DataError(
                f"stream: the function returned a {type(samples).__name__}, whose elements are "
                "batches; return its dataset, sample by sample: micro-batches are made here"
            )
        batches = _reader_of(samples)
        if batches is not None:
            yield from batches(samples, start=start, rows=rows, is_strict=self._is_strict)
            return
        yield from _stacked(self._iterator(samples), start, rows)

    def _iterator(self, samples: Any) -> Iterator[Any]:
        try:
            iterator: Iterator[Any] = iter(samples)
        except TypeError as error:
            raise DataError(
                f"stream: the function returned a {type(samples).__name__}; expected what can be "
                "iterated over, sample by sample"
            ) from error
        if iterator is self._before:
            raise DataError(
                "stream: the function returned the iterator of the epoch before, which is used "
                "up; make a new one in every call"
            )
        self._before = iterator if iterator is samples else None
        return iterator


def _reader_of(samples: Any) -> Optional[Callable[..., Iterator[Tree]]]:
    """What reads datasets of the framework that ``samples`` is of; None if nothing does."""
    framework = type(samples).__module__.partition(".")[0]
    points = registered(GROUP)
    if framework not in points or hasattr(samples, "__next__"):
        return None
    found: Optional[Callable[..., Iterator[Tree]]] = getattr(
        points[framework].load(), "batches", None
    )
    return found


def _stacked(iterator: Iterator[Any], start: int, rows: int) -> Iterator[Tree]:
    position = sum(1 for _ in islice(iterator, start))
    if position < start:
        raise DataError(
            f"stream: the epoch ended after {position} samples, but {start} of it were used "
            "already; the same epoch must give the same samples each time"
        )
    while True:
        samples = list(islice(iterator, rows))
        if samples:
            yield stack(samples, range(position, position + len(samples)), "stream")
            position += len(samples)
        if len(samples) < rows:
            return


def _parameters(function: Callable[..., Any]) -> Dict[str, None]:
    """Names of the arguments to give: of ``epoch`` and ``seed`` those that are taken.

    Raises:
        DataError: If there are others without a default.
    """
    parameters = inspect.signature(function).parameters
    for name, parameter in parameters.items():
        is_known = name in {"epoch", "seed"} and parameter.kind is not parameter.POSITIONAL_ONLY
        is_variable = parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}
        if not is_known and not is_variable and parameter.default is parameter.empty:
            raise DataError(
                f"stream: the function takes {name!r}; it is called as f(), f(epoch) or "
                "f(epoch, seed), by the names of its parameters"
            )
    return dict.fromkeys(name for name in ("epoch", "seed") if name in parameters)
