"""Starting the data process and knowing how it ended."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from contextlib import suppress
from typing import Any, List, Mapping, Optional

from unified_ipu.data.worker_environment import worker_environment
from unified_ipu.data.worker_output import WorkerOutput
from unified_ipu.data.worker_start import write_start
from unified_ipu.world import current_environment

_END_SECONDS = 5.0
_SHARED_SECONDS = 0.5  # a rank that fails must not wait for those that do not know it yet

_lingering: List[subprocess.Popen[bytes]] = []


class WorkerProcess:
    """The data process of this host, seen from the rank that started it.

    Args:
        address: Abstract name of the socket that the ranks will connect to.
        config: Handed over as JSON.
        packed: Handed over behind it.
        python: Another interpreter; empty takes this one.

    Raises:
        OSError: If the process cannot be started.
    """

    def __init__(
        self, address: str, config: Mapping[str, Any], *, packed: bytes = b"", python: str = ""
    ) -> None:
        is_quiet = "TF_CPP_MIN_LOG_LEVEL" not in current_environment()
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            listener.bind(address)
            listener.listen(len(config["replicas"]))
            self._process = subprocess.Popen(
                [
                    python or sys.executable,
                    "-m",
                    "unified_ipu.data.worker",
                    str(listener.fileno()),
                ],
                stdin=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=worker_environment(current_environment()),
                pass_fds=[listener.fileno()],
            )
        finally:
            listener.close()
        self._is_shared = len(config["replicas"]) > 1
        self._output: Optional[WorkerOutput] = None
        if self._process.stderr is not None:
            self._output = WorkerOutput(self._process.stderr, is_quiet=is_quiet)
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):  # it ended at once; connecting to it tells
                self._process.stdin.write(write_start(config, packed))
                self._process.stdin.flush()

    def describe_end(self) -> Optional[str]:
        """How it ended, in words; None if it cannot be told."""
        try:
            status = self._process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            return None
        how = f"killed by {signal.Signals(-status).name}" if status < 0 else f"status {status}"
        lines = "" if self._output is None else self._output.last_lines()
        return f"{how}; its last lines:\n{lines}" if lines else how

    def close(self) -> None:
        """Let go of it and collect it; it ends by itself once no rank is connected."""
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):
                self._process.stdin.close()
        try:
            self._process.wait(timeout=_SHARED_SECONDS if self._is_shared else _END_SECONDS)
        except subprocess.TimeoutExpired:
            if self._is_shared:
                _lingering.append(self._process)  # other ranks still read; it ends with them
            else:
                self._process.kill()
                self._process.wait()
        if self._output is not None:
            self._output.close()
