"""A file that is appended to as long as that works: a full disk must not end a training."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import IO, Optional

logger = logging.getLogger("unified_ipu.report")


class LogFile:
    """Opens at once, so that a path that cannot be written to is an error before training.

    When writing fails later, this is logged once and the rest is given up.

    Args:
        path: The file; its folder is made if needed.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._file: Optional[IO[bytes]] = path.open("ab")

    def write(self, data: bytes) -> None:
        """Append ``data``."""
        try:
            if self._file is not None:
                self._file.write(data)
        except OSError as error:
            self._give_up(error)

    def flush(self) -> None:
        """Let readers see what was written."""
        try:
            if self._file is not None:
                self._file.flush()
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        """Flush and close; safe to call twice."""
        self.flush()
        if self._file is not None:
            self._file.close()
            self._file = None

    def _give_up(self, error: OSError) -> None:
        logger.warning("%s cannot be written any more (%s); training goes on", self.path, error)
        file, self._file = self._file, None
        if file is not None:
            try:
                file.close()
            except OSError:
                logger.debug("closing %s failed too", self.path)
