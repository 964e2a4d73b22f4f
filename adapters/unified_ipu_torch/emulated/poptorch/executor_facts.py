"""What an executor tells of its program: names, anchored tensors, times.

Source: PopTorch 3.4, ``python/_poplar_executor.py``.
"""

from __future__ import annotations

import datetime as dt
from typing import Dict, List, Optional

import torch

from unified_ipu_torch.emulated.poptorch.compile import Compiled
from unified_ipu_torch.emulated.poptorch.errors import Error, require
from unified_ipu_torch.emulated.poptorch.options import Options
from unified_ipu_torch.emulated.poptorch.timings import EVENTS, Latency, latency


class ExecutorFacts:
    """The part of ``PoplarExecutor`` that only reads."""

    _executable: Optional[Compiled]
    _options: Options
    _compilation_time: dt.timedelta

    def getTensorNames(self) -> List[str]:
        """Names of the tensors in the compiled graph, as far as the emulation has them."""
        require(
            self._executable is not None, "Model must be compiled before calling getTensorNames"
        )
        return [] if self._executable is None else self._executable.tensor_names()

    def getAnchoredTensor(self, short_name: str) -> torch.Tensor:
        """An anchored tensor of the last call.

        Args:
            short_name: As in ``Options.anchorTensor``.

        Raises:
            AssertionError: If there is none.
        """
        kept = {} if self._executable is None else self._executable.program.anchored()
        require(short_name in kept, f"No tensor with name {short_name} found.")
        return kept[short_name]

    def getPerfCounters(self) -> Dict[str, List[List[float]]]:
        """Times of the last call, by event, tensor and occurrence, in seconds of the host."""
        if self._executable is None:
            return {event: [[]] for event in EVENTS}
        return self._executable.program.timings.counters()

    def getHostIpuLatency(self) -> Latency:
        """Minimum, maximum and mean time in which inputs arrive, in seconds."""
        return latency(self.getPerfCounters(), ("input", min), ("input_complete", max))

    def getComputeLatency(self) -> Latency:
        """The same from the last input to the last output."""
        return latency(self.getPerfCounters(), ("input_complete", max), ("output", max))

    def getIpuHostLatency(self) -> Latency:
        """The same for the way of the outputs."""
        return latency(self.getPerfCounters(), ("output", min), ("output_complete", max))

    def getLatency(self) -> Latency:
        """The same from the first input to the last output."""
        return latency(self.getPerfCounters(), ("input", min), ("output_complete", max))

    def cycleCount(self) -> int:
        """Refused: the emulation has no cycles.

        Raises:
            Error: Always; in the SDK's words where they fit.
        """
        if not self._options._Popart.options["instrumentWithHardwareCycleCounter"]:
            raise Error(
                "Cycle count logging is disabled. Please set option logCycleCount to True to "
                "enable."
            )
        if self._executable is None:
            raise Error("Please run the model at least once before obtaining cycle count.")
        raise Error("Cycle count logging is only supported on actual IPU hardware.")

    def compilationTime(self) -> dt.timedelta:
        """How long compilation took.

        Raises:
            Error: If there was none, or its progress bar was switched off.
        """
        if self._executable is None:
            raise Error("Please compile the model before obtaining compilation time.")
        if not self._options._show_compilation_progress_bar:
            raise Error("Please set showCompilationProgressBar option to obtain compilation time.")
        return self._compilation_time
