"""``poptorch.profiling``: trace points that record nothing, as in the SDK without its profiler."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any


class Channel:
    """A channel of trace points.

    Args:
        name: Of the channel.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def instrument(self, obj: Any, *methods: str) -> Any:  # noqa: ARG002  # the SDK's
        """Trace methods of an object; here it is given back as it is."""
        return obj

    def tracepoint(self, name: str) -> AbstractContextManager[None]:  # noqa: ARG002  # the SDK's
        """Trace a block of code."""
        return nullcontext()
