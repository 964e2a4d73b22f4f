"""What a model was told by its ``set_..._options`` methods, and the checks of their arguments.

Source: Graphcore's Keras of SDK 3.4, ``keras/ipu/extensions/extensions_base.py``.
"""

from __future__ import annotations

import enum
from typing import Any, Dict, Iterable, List, Mapping, Optional

from unified_ipu_tensorflow.emulated.ipu.gradient_accumulation import (
    GradientAccumulationReductionMethod,
)
from unified_ipu_tensorflow.emulated.ipu.ops.pipelining_ops import PipelineSchedule
from unified_ipu_tensorflow.emulated.notes import note_once

_SUM = GradientAccumulationReductionMethod.SUM
_OPTIMIZER_OPTIONS = (
    "dtype",
    "offload_weight_update_variables",
    "replicated_optimizer_state_sharding",
)
_PIPELINE_OPTIONS = (
    "gradient_accumulation_dtype",
    "offload_activations",
    "offload_gradient_accumulation_buffers",
    "offload_weight_update_variables",
    "offload_weights",
    "pipeline_schedule",
    "replicated_optimizer_state_sharding",
    "replicated_weight_sharding",
)
_INFEED_OPTIONS = ("prefetch_depth", "optimise_latency")
_OUTFEED_OPTIONS = ("buffer_depth", "optimise_latency")
MOST_PREFETCHED = 255


class ReplicatedMetricReductionMethod(enum.Enum):
    """What ``fit`` and ``evaluate`` make of the values of several replicas."""

    NONE = 1
    LIST = 2
    SUM = 3
    MEAN = 4

    @classmethod
    def parse(cls, value: Any) -> ReplicatedMetricReductionMethod:
        """The member, or the one of that name in any case.

        Raises:
            ValueError: If there is none.
        """
        if isinstance(value, cls):
            return value
        if isinstance(value, str) and value.upper() in cls.__members__:
            return cls[value.upper()]
        names = ", ".join(cls.__members__)
        raise ValueError(
            f"Cannot parse {value} as a ReplicatedMetricReductionMethod; valid are {names}"
        )


class ModelState:
    """Options of one model, and the programs that were made of it.

    Args:
        strategy: In whose scope the model was made.
    """

    def __init__(self, strategy: Any) -> None:
        self.strategy = strategy
        self.accumulation: Optional[int] = None
        self.accumulation_dtype: Any = None
        self.pipeline_accumulation: Optional[int] = None
        self.schedule = PipelineSchedule.Grouped
        self.stages: Optional[List[int]] = None
        self.reduction = _SUM
        self.metric_reduction = ReplicatedMetricReductionMethod.NONE
        self.is_asynchronous = False
        self.steps_per_execution = 1
        self.is_compiled = False
        self.programs: Dict[str, Any] = {}

    def reset(self) -> None:
        """Forget all programs: they are compiled anew when they are next run."""
        self.programs.clear()

    @property
    def is_pipelined(self) -> bool:
        """Whether stages were assigned."""
        return self.stages is not None

    def set_accumulation(self, count: Any, method: Any, options: Mapping[str, Any]) -> None:
        """As ``set_gradient_accumulation_options``.

        Raises:
            ValueError: If the count is no positive int, or an option is not one of them.
        """
        reduction = GradientAccumulationReductionMethod.parse(method)
        if count is not None:
            self.accumulation = _positive("gradient_accumulation_steps_per_replica", count)
        for given, instead in (
            ("opt", "the optimizer of compile is wrapped"),
            ("num_mini_batches", "set gradient_accumulation_steps_per_replica"),
            ("experimental_normalize_gradients", "set gradient_accumulation_reduction_method"),
        ):
            if given in options:
                raise ValueError(f"Found `{given}` key in the optimizer's options: {instead}")
        _known("set_gradient_accumulation_options", options, _OPTIMIZER_OPTIONS)
        _note_places(options)
        self.reduction = reduction
        self.accumulation_dtype = options.get("dtype")
        self.reset()

    def set_pipelining(
        self, count: Any, method: Any, accumulate_outfeed: Any, options: Mapping[str, Any]
    ) -> None:
        """As ``set_pipelining_options``.

        Raises:
            ValueError: If the count is no positive int, or an option is not one of them.
            NotImplementedError: If outputs should be accumulated.
        """
        reduction = GradientAccumulationReductionMethod.parse(method)
        if count is not None:
            name = "gradient_accumulation_steps_per_replica"
            self.pipeline_accumulation = _positive(name, count)
        if accumulate_outfeed:
            raise NotImplementedError("accumulate_outfeed=True is not emulated; leave it out")
        _known("set_pipelining_options", options, _PIPELINE_OPTIONS)
        _note_places(options)
        self.reduction = reduction
        self.schedule = PipelineSchedule(options.get("pipeline_schedule", PipelineSchedule.Grouped))
        self.accumulation_dtype = options.get("gradient_accumulation_dtype")
        self.reset()

    def set_infeed(self, options: Mapping[str, Any]) -> None:
        """As ``set_infeed_queue_options``.

        Raises:
            ValueError: If an option is not one of the queue's, or the depth is out of range.
        """
        _known("set_infeed_queue_options", options, _INFEED_OPTIONS)
        depth = options.get("prefetch_depth")
        if depth is not None and not 1 <= _positive("prefetch_depth", depth) <= MOST_PREFETCHED:
            raise ValueError(f"prefetch_depth has to be 1 to {MOST_PREFETCHED}, got {depth}")
        note_once("set_infeed_queue_options", "batches are handed over in memory")
        self.reset()

    def set_outfeed(self, options: Mapping[str, Any]) -> None:
        """As ``set_outfeed_queue_options``.

        Raises:
            ValueError: If an option is not one of the queue's.
        """
        _known("set_outfeed_queue_options", options, _OUTFEED_OPTIONS)
        note_once("set_outfeed_queue_options", "results are handed over in memory")
        self.reset()

    def set_stages(self, stages: Any, layers: int) -> None:
        """As ``set_pipeline_stage_assignment`` of a ``Sequential``.

        Raises:
            ValueError: If it is not one stage a layer, from 0 on, never back and without a gap.
        """
        if not isinstance(stages, list) or not all(type(stage) is int for stage in stages):
            raise ValueError(f"the stages have to be a list of int, got {stages!r}")
        if len(stages) != layers:
            raise ValueError(f"the model has {layers} layers, got {len(stages)} stages")
        steps = [after - before for before, after in zip([0, *stages], stages)]
        if not stages or any(step not in {0, 1} for step in steps) or stages[0] != 0:
            raise ValueError(
                f"stages begin at 0 and rise by at most 1 from layer to layer, got {stages}"
            )
        self.stages = list(stages)
        self.reset()


def _positive(name: str, value: Any) -> int:
    if type(value) is not int or value < 1:
        raise ValueError(f"Expected `{name}` to be a positive integer, but got {value} instead.")
    return int(value)


def _known(method: str, options: Mapping[str, Any], names: Iterable[str]) -> None:
    unknown = sorted(set(options) - set(names))
    if unknown:
        raise ValueError(
            f"{method}: the emulation does not know {unknown[0]!r}; known are {', '.join(names)}"
        )


def _note_places(options: Mapping[str, Any]) -> None:
    for name in options:
        if name.startswith(("offload_", "replicated_")):
            note_once(name, "it says where tensors lie")
