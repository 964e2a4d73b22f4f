"""Execution strategies: which block belongs to which stage, phase and IPU.

Only the bookkeeping: a strategy hands out a ``Placement`` for each block that the model opens while
it is captured. Whether the sequence can be run is checked where the capture ends.

Source: PopTorch 3.4, ``python/options.py`` and ``python/_options_impl.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

from unified_ipu_torch.emulated.poptorch.enums import AutoStage, Liveness
from unified_ipu_torch.emulated.poptorch.errors import require
from unified_ipu_torch.emulated.poptorch.log import logger

PIPELINED, SHARDED, PHASED = 0, 1, 2

BlockId = str


class Stage:
    """Blocks that run together on one IPU.

    Args:
        block_ids: Names of the blocks.
    """

    def __init__(self, *block_ids: BlockId) -> None:
        require(
            all(isinstance(block, str) for block in block_ids),
            f"Block IDs are supposed to be strings but got {block_ids}",
        )
        self._blocks = block_ids
        self._stage_id = -1
        self._phase_id = -1
        self._ipu: Optional[int] = None

    @property
    def blocks(self) -> Tuple[BlockId, ...]:
        """Names of the blocks."""
        return self._blocks

    def ipu(self, ipu: int) -> Stage:
        """Put the stage on an IPU, whatever its blocks say."""
        require(isinstance(ipu, int), f"an IPU is an int, got {ipu!r}")
        self._ipu = ipu
        return self


class Phase:
    """Stages that run in one phase.

    Args:
        arg: Stages, or names of blocks that make one stage.
    """

    def __init__(self, *arg: Union[BlockId, Stage]) -> None:
        self.stages: Sequence[Stage]
        if all(isinstance(item, Stage) for item in arg):
            self.stages = tuple(item for item in arg if isinstance(item, Stage))
        else:
            names = [item for item in arg if isinstance(item, str)]
            require(
                len(names) == len(arg),
                "All arguments must either be block IDs (strings) or Stages: "
                f"{[type(item) for item in arg]}",
            )
            self.stages = (Stage(*names),)

    def stage(self, idx: int) -> Stage:
        """One of the stages."""
        return self.stages[idx]

    def ipus(self, *ipus: int) -> None:
        """Give each stage its IPU."""
        require(
            len(ipus) == len(self.stages),
            f"Phase contains {len(self.stages)} stages but you provided {len(ipus)} ipus",
        )
        for stage, ipu in zip(self.stages, ipus):
            stage.ipu(ipu)


@dataclass(frozen=True)
class Placement:
    """Where a block runs; -1 stands for no stage or no phase."""

    stage: int
    phase: int
    ipu: int


class StageManager:
    """Gives the blocks of a capture their place.

    Args:
        stages: The stage of each known block; None lets new blocks make their own.
        auto: How a new block gets its stage.
    """

    def __init__(self, stages: Optional[Dict[BlockId, Stage]], auto: AutoStage) -> None:
        self._given = stages
        self._made: Dict[BlockId, Stage] = {}
        self._auto = auto
        self._next_auto_id = 0

    def nextAutoId(self) -> BlockId:
        """A name for a block that has none."""
        self._next_auto_id += 1
        return str(self._next_auto_id - 1)

    def resetAutoId(self) -> None:
        """Start naming from "0" again."""
        self._next_auto_id = 0

    def beginStage(self, user_id: Optional[BlockId], ipu_id: Optional[int]) -> Placement:
        """Place a block.

        Args:
            user_id: Its name, or None.
            ipu_id: The IPU it asks for, or None.

        Returns:
            Its place.

        Raises:
            AssertionError: If the strategy does not know the block, or nothing tells its stage.
        """
        name = user_id or self.nextAutoId()
        stage = self._new_stage(name, ipu_id) if self._given is None else self._known(name)
        ipu = stage._ipu if stage._ipu is not None else ipu_id
        if ipu is None:
            logger.debug("No IPU for block %s: its stage %d is taken", name, stage._stage_id)
            ipu = stage._stage_id
        logger.debug("Starting block id=%s stage=%d ipu=%d", name, stage._stage_id, ipu)
        return Placement(stage._stage_id, stage._phase_id, ipu)

    def _known(self, name: BlockId) -> Stage:
        given = self._given or {}
        require(name in given, f"Unknown Block '{name}' list of expected Blocks: {list(given)}")
        return given[name]

    def _new_stage(self, name: BlockId, ipu_id: Optional[int]) -> Stage:
        if name not in self._made:
            stage = Stage(name)
            if self._auto == AutoStage.SameAsIpu:
                require(
                    ipu_id is not None,
                    "poptorch.AutoStage.SameAsIpu was selected but no IPU was specified for "
                    f"block {name}",
                )
                stage._stage_id = int(ipu_id or 0)
            else:
                stage._stage_id = len(self._made) + 1
            self._made[name] = stage
        return self._made[name]


class _Capture:
    """The manager of the capture that runs in this process; there is at most one."""

    manager: Optional[StageManager] = None


def current_manager() -> Optional[StageManager]:
    """The manager of the running capture, or None outside of one."""
    return _Capture.manager


class _IExecutionStrategy:
    """What all strategies share.

    Args:
        manager: Places the blocks.
        block_map: The stage of each block that the strategy names.
    """

    mode: int

    def __init__(self, manager: StageManager, block_map: Dict[BlockId, Stage]) -> None:
        self._stages_manager = manager
        self._block_map = block_map

    def stage(self, block_id: BlockId) -> Stage:
        """The stage of a named block."""
        require(block_id in self._block_map, f"Unknown block {block_id}")
        return self._block_map[block_id]

    def onStartTracing(self) -> None:
        """A capture begins: blocks are placed by this strategy."""
        _Capture.manager = self._stages_manager

    def onEndTracing(self) -> None:
        """The capture is over."""
        _Capture.manager = None

    def backendOptions(self) -> Dict[str, Any]:
        """What the backend is told."""
        return {"execution_mode": self.mode}


class PipelinedExecution(_IExecutionStrategy):
    """Stages work on different micro-batches at the same time.

    Args:
        args: An ``AutoStage``; or, a stage each, stages, names of blocks or lists of names.
    """

    mode = PIPELINED

    def __init__(self, *args: Any) -> None:
        if not args or (len(args) == 1 and isinstance(args[0], AutoStage)):
            auto = args[0] if args else AutoStage.SameAsIpu
            super().__init__(StageManager(None, auto), {})
            return
        block_map: Dict[BlockId, Stage] = {}
        for stage_id, arg in enumerate(args):
            stage = _to_stage(arg)
            stage._stage_id = stage_id
            _add(block_map, stage)
        super().__init__(StageManager(block_map, AutoStage.SameAsIpu), block_map)


class ShardedExecution(PipelinedExecution):
    """Stages work one after the other."""

    mode = SHARDED


class _IPhasedExecution(_IExecutionStrategy):
    """Phases that share IPUs in turn.

    Args:
        phases: Each a phase, a list of stages, or names of blocks.
    """

    mode = PHASED
    _is_serial: bool

    def __init__(self, *phases: Any) -> None:
        require(
            phases,
            "There is currently no AutoStage for PhasedExecution, please explicitly specify the "
            "phases",
        )
        self._tensors_liveness = Liveness.AlwaysLive
        self._separate_backward_phase = False
        self._phases: List[Phase] = []
        block_map: Dict[BlockId, Stage] = {}
        for phase_id, arg in enumerate(phases):
            phase = arg if isinstance(arg, Phase) else Phase(*_as_list(arg))
            self._phases.append(phase)
            for stage in phase.stages:
                stage._phase_id = phase_id
                _add(block_map, stage)
        super().__init__(StageManager(block_map, AutoStage.SameAsIpu), block_map)

    def phase(self, phase: int) -> Phase:
        """One of the phases."""
        require(phase >= 0, "Phases are identified by positive integers")
        return self._phases[phase]

    def useSeparateBackwardPhase(self, use: bool = True) -> _IPhasedExecution:
        """Run the backward pass in phases of its own."""
        require(isinstance(use, bool), f"expected a bool, got {use!r}")
        self._separate_backward_phase = use
        return self

    def backendOptions(self) -> Dict[str, Any]:
        """What the backend is told."""
        return {
            "execution_mode": self.mode,
            "separate_backward_phase": self._separate_backward_phase,
            "tensors_liveness": self._tensors_liveness.value,
            "serial_phases_execution": self._is_serial,
        }


class ParallelPhasedExecution(_IPhasedExecution):
    """Even and odd phases alternate between two sets of IPUs."""

    _is_serial = False

    def sendTensorsOffChipAfterFwd(self, off_chip: bool = True) -> ParallelPhasedExecution:
        """Free the chip between the forward and the backward pass."""
        require(isinstance(off_chip, bool), f"expected a bool, got {off_chip!r}")
        self._tensors_liveness = Liveness.OffChipAfterFwd if off_chip else Liveness.AlwaysLive
        return self


class SerialPhasedExecution(_IPhasedExecution):
    """All phases use the same IPUs."""

    _is_serial = True

    def setTensorsLiveness(self, liveness: Liveness) -> SerialPhasedExecution:
        """Set when tensors leave the chip."""
        require(isinstance(liveness, Liveness), f"expected a poptorch.Liveness, got {liveness!r}")
        self._tensors_liveness = liveness
        return self


def _to_stage(arg: Any) -> Stage:
    if isinstance(arg, Stage):
        return arg
    return Stage(*_as_list(arg))


def _as_list(arg: Any) -> List[Any]:
    return list(arg) if isinstance(arg, (list, tuple)) else [arg]


def _add(block_map: Dict[BlockId, Stage], stage: Stage) -> None:
    for block in stage.blocks:
        require(block not in block_map, f"{block} associated with more than one stage")
        block_map[block] = stage
