"""Callbacks at call boundaries, called on all ranks, and the ones that are shipped."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, List, Optional, Protocol, Union, runtime_checkable

from unified_ipu.adapter import Record
from unified_ipu.report.log_file import LogFile
from unified_ipu.report.summary import EpochSummary, Summary

_TERMINAL_SECONDS = 0.1
_LOG_SECONDS = 30.0


@dataclass(frozen=True)
class FitContext:
    """What a callback may know of the fit it watches.

    Args:
        rank: Of this process.
        is_first: Whether this is rank 0, the one that prints and writes.
        epochs: Where the fit ends.
        samples_per_epoch: Size of the training source; None for a stream.
        program: The program that is trained.
        requests: Why callbacks of this rank want the fit to end; see ``stop``.
    """

    rank: int
    is_first: bool
    epochs: int
    samples_per_epoch: Optional[int]
    program: Any
    requests: List[str] = field(default_factory=list)

    def stop(self, reason: str) -> None:
        """End the fit at the next call boundary, on all ranks, even if only this one asks.

        Args:
            reason: Shown in the summary.
        """
        if not self.requests:
            self.requests.append(reason)


@runtime_checkable
class Callback(Protocol):
    """Subclass it and override what you need; every method runs on all ranks.

    A callback that itself communicates must do so on all ranks alike.
    """

    def on_fit_start(self, context: FitContext) -> None:
        """Before the first call."""
        del context

    def on_epoch_start(self, context: FitContext, epoch: int) -> None:
        """Before the first call of an epoch."""
        del context, epoch

    def on_call_end(self, context: FitContext, record: Record) -> None:
        """After each call."""
        del context, record

    def on_epoch_end(self, context: FitContext, summary: EpochSummary) -> None:
        """After an epoch, its certificate and its evaluation."""
        del context, summary

    def on_fit_end(self, context: FitContext, summary: Optional[Summary]) -> None:
        """At the end; ``summary`` is None when the fit ended with an error."""
        del context, summary


class Progress(Callback):
    """A tqdm bar of samples on rank 0; in a log file, a line every half minute."""

    def __init__(self) -> None:
        self._bar: Any = None

    def on_epoch_start(self, context: FitContext, epoch: int) -> None:
        """Open the bar."""
        if not context.is_first:
            return
        from tqdm import tqdm

        is_terminal = sys.stderr.isatty()
        self._bar = tqdm(
            total=context.samples_per_epoch,
            desc=f"epoch {epoch + 1}/{context.epochs}",
            unit=" samples",
            leave=False,
            mininterval=_TERMINAL_SECONDS if is_terminal else _LOG_SECONDS,
            delay=0.0 if is_terminal else _LOG_SECONDS,  # a log gets no line for a short epoch
        )

    def on_call_end(self, context: FitContext, record: Record) -> None:
        """Move the bar."""
        del context
        if self._bar is not None:
            self._bar.set_postfix_str(f"loss {record.loss:.4f}", refresh=False)
            self._bar.update(record.samples)

    def on_epoch_end(self, context: FitContext, summary: EpochSummary) -> None:
        """Close the bar."""
        del context, summary
        self._close()

    def on_fit_end(self, context: FitContext, summary: Optional[Summary]) -> None:
        """Close the bar if an error left it open."""
        del context, summary
        self._close()

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


class JsonLines(Callback):
    """One JSON object a call and an epoch, appended on rank 0.

    Writing must not end a training: when it fails (disk full), this is logged once and the rest
    of the file is given up.

    Args:
        path: The file; its folder is made if needed.
    """

    def __init__(self, path: Union[str, Path]) -> None:
        self._path = Path(path)
        self._file: Optional[LogFile] = None

    def on_fit_start(self, context: FitContext) -> None:
        """Open the file; a path that cannot be written to is an error here, before training."""
        if context.is_first:
            self._file = LogFile(self._path)

    def on_call_end(self, context: FitContext, record: Record) -> None:
        """Write the record."""
        del context
        self._write({"kind": "call", **record.to_dict()})

    def on_epoch_end(self, context: FitContext, summary: EpochSummary) -> None:
        """Write the epoch."""
        del context
        self._write({"kind": "epoch", **summary.to_dict()})
        if self._file is not None:
            self._file.flush()

    def on_fit_end(self, context: FitContext, summary: Optional[Summary]) -> None:
        """Close the file."""
        del context, summary
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, values: Any) -> None:
        if self._file is not None:
            self._file.write((json.dumps(values) + "\n").encode("utf-8"))
