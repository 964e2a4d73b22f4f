"""The library's log records carry the rank and the update they were made at.

What a program does with them stays its own business: handlers, levels and formats of the root
logger are left alone. ``%(rank)s`` and ``%(update)s`` can be used in the format of any handler that
gets records of the logger ``"unified_ipu"``. Only where no handler would get a warning is it
written to stderr, with its rank in front.
"""

from __future__ import annotations

import logging
import sys
import threading
from typing import Callable, Optional

LOGGER = logging.getLogger("unified_ipu")


class RankLog(logging.Handler):
    """Stamps records of one session, as long as it is open.

    A handler and no filter, since a logger's filters do not see records of the loggers below it,
    but its handlers do, before those of the root.

    Args:
        rank: Of the session.
        world_size: Of the session.
        update: Returns the number of updates begun so far.
    """

    def __init__(self, *, rank: int, world_size: int, update: Callable[[], int]) -> None:
        super().__init__()
        self._rank = rank
        self._world_size = world_size
        self._update = update
        self._thread: Optional[int] = None

    def install(self) -> None:
        """Begin to stamp."""
        self._thread = threading.get_ident()
        LOGGER.addHandler(self)

    def remove(self) -> None:
        """End; safe to call twice."""
        LOGGER.removeHandler(self)

    def handle(self, record: logging.LogRecord) -> bool:
        """Stamp the record if it is this session's."""
        if not self._owns(record):
            return False
        record.rank, record.world_size = self._rank, self._world_size
        record.update = self._update()
        if record.levelno >= logging.WARNING and not _has_others(record.name):
            sys.stderr.write(self._line(record))
        return True

    def _owns(self, record: logging.LogRecord) -> bool:
        # Ranks may be threads of one process: each owns its own records, and the first one those
        # of threads that belong to nobody.
        others = [handler for handler in LOGGER.handlers if isinstance(handler, RankLog)]
        owners = [handler for handler in others if handler._thread == record.thread]  # noqa: SLF001 - of its own class
        candidates = owners or others  # none if another thread has just closed the session
        return bool(candidates) and candidates[0] is self

    def _line(self, record: logging.LogRecord) -> str:
        where = f"rank {self._rank}, update {self._update()}"
        return f"{record.levelname.lower()}: {where}: {record.getMessage()}\n"


def _has_others(name: str) -> bool:
    """Whether a handler of somebody else gets records of a logger."""
    logger: Optional[logging.Logger] = logging.getLogger(name)
    while logger is not None:
        if any(not isinstance(handler, RankLog) for handler in logger.handlers):
            return True
        logger = logger.parent if logger.propagate else None
    return False
