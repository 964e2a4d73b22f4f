"""Options as a program needs them: counts, reductions, what comes back.

Source: PopTorch 3.4, ``docs/user_guide/batching.rst``; PopART 3.4, ``optimizer.cpp`` and
``optimizerdecompose.cpp`` (reductions), ``dataflow.hpp`` (outputs).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List

from unified_ipu.device import CallShape, OutputSelection, Position, Reduction
from unified_ipu_torch.emulated.poptorch.enums import (
    CommGroupType,
    MeanReductionStrategy,
    OutputMode,
    ReductionType,
)
from unified_ipu_torch.emulated.poptorch.errors import Error

_MODES: Dict[int, str] = {
    OutputMode.Final: "final",
    OutputMode.EveryN: "every_n",
    OutputMode.All: "all",
    OutputMode.Sum: "sum",
}
SYNTHETIC_OFF, SYNTHETIC_ZEROS, SYNTHETIC_NORMAL, SYNTHETIC_UNIFORM = range(4)


@dataclass(frozen=True)
class Anchor:
    """A tensor of the graph that comes back besides the outputs."""

    short_name: str
    long_name: str
    selection: OutputSelection


@dataclass(frozen=True)
class Settings:
    """What a program was compiled with.

    Args:
        training: Whether it trains.
        shape: D, A, R.
        reduction: Of gradients.
        selection: Of outputs.
        anchors: Further tensors.
        is_orthogonal: Whether neighbouring replicas read different inputs.
        may_change_buffers: Whether replicas may drift apart in their buffers.
        synthetic: PopART's number of the synthetic data mode.
        processes: P.
        process: Of this one.
    """

    training: bool
    shape: CallShape
    reduction: Reduction
    selection: OutputSelection
    anchors: List[Anchor]
    is_orthogonal: bool
    may_change_buffers: bool
    synthetic: int
    processes: int
    process: int

    @classmethod
    def read(cls, options: Any, *, training: bool) -> Settings:
        """Read options.

        Args:
            options: Of the executor, validated.
            training: Whether the program trains.

        Returns:
            The settings.

        Raises:
            Error: If a combination cannot run.
        """
        shape = CallShape(
            options.device_iterations,
            options.Training.gradient_accumulation if training else 1,
            options.replication_factor,
            options.input_group_size,
        )
        is_orthogonal = options.input_cgt == CommGroupType.Orthogonal and shape.group_size > 1
        if shape.group_size > 1 and shape.iterations * shape.accumulation > 1:
            raise Error(
                "inputReplicaGrouping together with deviceIterations or gradientAccumulation above "
                "1 is not emulated: the order of its input slices is not documented. Set both to 1",
                "unified_ipu_emulation",
            )
        return cls(
            training,
            shape,
            _reduction(options.Training),
            _selection(shape, options.output_mode, options.output_return_period),
            [_anchor(shape, options, name) for name in options.anchored_tensors],
            is_orthogonal,
            may_change_buffers=shape.replicas == 1 or not options.broadcast_buffers,
            synthetic=int(options._Popart.options.get("syntheticDataMode", SYNTHETIC_OFF)),
            processes=options.Distributed.numProcesses,
            process=options.Distributed.processId,
        )

    def slice_of(self, position: Position) -> int:
        """Which slice of the host's rows a micro-batch reads."""
        if self.is_orthogonal:
            return position.replica % self.shape.streams
        return position.slice


def _reduction(training: Any) -> Reduction:
    if training.accumulation_and_replication_reduction_type == ReductionType.Sum:
        return Reduction("sum", "sum")
    strategy = training.meanAccumulationAndReplicationReductionStrategy
    is_running = strategy == MeanReductionStrategy.Running
    return Reduction("mean_running" if is_running else "mean_post", "mean")


def _selection(shape: CallShape, mode: int, period: int) -> OutputSelection:
    name = _MODES[mode]
    if name == "every_n" and shape.iterations % period:
        raise Error(
            f"The output period {period} does not divide deviceIterations {shape.iterations}",
            "popart_exception",
        )
    return OutputSelection(shape, name, period if name == "every_n" else 1)


def _anchor(shape: CallShape, options: Any, short_name: str) -> Anchor:
    long_name, follows, mode, period = options.anchored_tensors[short_name]
    if follows:
        mode, period = options.output_mode, options.output_return_period
    return Anchor(short_name, long_name, _selection(shape, mode, period))
