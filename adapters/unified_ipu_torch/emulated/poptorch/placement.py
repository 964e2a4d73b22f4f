"""Which IPUs a captured model runs on, and whether a device has them.

Source: PopTorch 3.4, ``popart_compiler/source/Compiler.cpp`` (``setActiveIpu``, ``initSession``)
and ``CompilerImpl.cpp`` (``createDevice``, ``numPipelineStages``); the messages are theirs.
"""

from __future__ import annotations

from typing import Any, List

from unified_ipu.device import forward_stages, power_of_two, training_stages
from unified_ipu_torch.emulated.poptorch.errors import Error
from unified_ipu_torch.emulated.poptorch.log import logger
from unified_ipu_torch.emulated.poptorch.strategies import PHASED, PIPELINED, Placement

_CPP = "poptorch_cpp_error"
MOST_IPUS = 64  # of one process


class BlockSequence:
    """The blocks that a model opens and closes while it is captured.

    Args:
        strategy: Of the options.
    """

    def __init__(self, strategy: Any) -> None:
        self._backend = strategy.backendOptions()
        self._is_open = True  # what runs before the first block is on IPU 0
        self._ipus: List[int] = []
        self._used: List[int] = []
        self._current = 0

    def begin(self, placement: Placement) -> None:
        """A block begins; the one before ends."""
        self._check_phase(placement)
        self._current = placement.ipu
        self._ipus.append(placement.ipu)
        self._is_open = True

    def end(self) -> None:
        """The block ends, and no other has begun."""
        self._is_open = False

    def operator(self) -> None:
        """Something is computed here.

        Raises:
            Error: If no block is open.
        """
        if not self._is_open:
            raise Error("No active Block, all the ops must belong to a Block", _CPP)
        if self._current not in self._used:
            self._used.append(self._current)

    def ipus(self) -> int:
        """IPUs of one replica."""
        return max(len(self._used), max(self._used) + 1) if self._used else 0

    def check(self, *, is_training: bool, accumulation: int, iterations: int) -> None:
        """Whether the call fills the pipeline.

        Args:
            is_training: Whether the program trains.
            accumulation: A.
            iterations: D.

        Raises:
            Error: If it does not.
        """
        if self._backend["execution_mode"] != PIPELINED:
            return
        # The backend starts on IPU 0 and counts the changes.
        forward = forward_stages([0, *self._ipus])
        if is_training:
            stages = training_stages(forward)
            if accumulation < stages:
                raise Error(
                    "poptorch.Options().Training.gradientAccumulation must be greater than or "
                    f"equal to the number of pipeline stages ({stages}) when using "
                    "poptorch.PipelinedExecution. Please note that a model with "
                    f"{forward} pipeline stages in PopTorch will have an additional "
                    f"{stages - forward} stages when training.",
                    _CPP,
                )
        elif iterations < forward:
            raise Error(
                "poptorch.Options().deviceIterations must be greater than or equal to the number "
                f"of pipeline stages ({forward}) when using PopTorch.PipelinedExecution.",
                _CPP,
            )

    def _check_phase(self, placement: Placement) -> None:
        if self._backend["execution_mode"] != PHASED:
            return
        if placement.phase < 0:
            raise Error("Invalid phase for ExecutionMode::Phased", _CPP)
        if not self._backend["serial_phases_execution"] and placement.phase % 2 != (
            placement.ipu % 2
        ):
            raise Error(
                "When phases are executed in parallel: even phases must run on even IPUs and odd "
                "phases on odd IPUs",
                _CPP,
            )


def check_overlap(strategy: Any, io_tiles: int, output_mode: str) -> None:
    """Whether transfers can overlap with computation as the model asks.

    Args:
        strategy: Of the options.
        io_tiles: Set aside for transfers.
        output_mode: Of the program.

    Raises:
        Error: If not.
    """
    if strategy.backendOptions()["execution_mode"] == PIPELINED:
        raise Error(
            "Overlapped IO is not supported with poptorch.PipelinedExecution. If you are using "
            "only one IPU, please switch to poptorch.ShardedExecution.",
            _CPP,
        )
    if io_tiles == 0:
        raise Error(
            "No IO tiles allocated. You must allocate at least 32 IO tiles using "
            "poptorch.Options().TensorLocations.numIOTiles.",
            _CPP,
        )
    if output_mode not in {"sum", "all"}:
        raise Error(
            "Unsupported output mode for overlapped IO. Please switch output mode to "
            "poptorch.OutputMode.All or poptorch.OutputMode.Sum.",
            _CPP,
        )


def check_ipus(per_replica: int, replicas: int, *, is_rounded: bool) -> int:
    """How many IPUs the device takes.

    Args:
        per_replica: As the blocks say.
        replicas: R.
        is_rounded: Whether a number that is no power of two is rounded up.

    Returns:
        The number reserved.

    Raises:
        Error: If there are too many, or the number is not one that can be reserved.
    """
    if per_replica == 0:
        raise Error(
            "Your compiled model is empty (All the operations have been optimised out)", _CPP
        )
    wanted = per_replica * replicas
    if wanted > MOST_IPUS:
        raise Error(
            f"Too many IPUs requested ({wanted}). Experiments that need more than {MOST_IPUS} IPUs "
            "require distributed execution.",
            _CPP,
        )
    reserved = power_of_two(wanted)
    reason = (
        f"because PopTorch must reserve a power of 2 or maximum of {MOST_IPUS} IPUs per process"
    )
    if reserved == wanted:
        return wanted
    if not is_rounded:
        raise Error(
            f"The model specifies the use of {wanted} IPUs, however PopTorch must reserve a "
            f"minimum of {reserved} in order to allow the model to run, {reason}. Please "
            "reconfigure your model to use a different number of IPUs or set "
            "poptorch.Options().autoRoundNumIPUs(True).",
            _CPP,
        )
    logger.warning(
        "Reserving %d IPUs when the model specifices the use of only %d, %s. %d will be reserved "
        "but not used.",
        reserved,
        wanted,
        reason,
        reserved - wanted,
    )
    return reserved
