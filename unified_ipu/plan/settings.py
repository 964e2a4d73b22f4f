"""The tables of a plan: one frozen struct a table, with defaults and allowed ranges."""

from __future__ import annotations

import sys
from typing import ClassVar, Optional, Union

import msgspec
from msgspec import Meta

from unified_ipu.errors import PlanError
from unified_ipu.plan.validation import check_fields

if sys.version_info >= (3, 9):
    from typing import Annotated, Literal
else:
    from typing import Literal

    from typing_extensions import Annotated

Positive = Annotated[int, Meta(ge=1)]
Natural = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(gt=0, le=1e9)]

DEFAULT_GLOBAL_BATCH_SIZE = 64


class MeshAxes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[mesh]``: named axes; their product is the world size on host targets.

    Args:
        data: Data-parallel replicas; "auto" leaves it to the launcher.
        stage: Pipeline stages.
    """

    section: ClassVar[str] = "mesh"

    data: Union[Literal["auto"], Positive] = "auto"
    stage: Positive = 1

    def __post_init__(self) -> None:
        check_fields(self, self.section)


class BatchSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[batch]``: how many samples, where and when.

    Args:
        global_batch_size: Samples behind one update. 64 when neither it nor
            ``accumulation_per_replica`` is given; None until the replicas are known when only
            the latter is.
        micro_batch_size: Most samples a replica computes at once.
        accumulation_per_replica: Micro-batches a replica sums before an update; normally derived.
        updates_per_call: Updates in one entry into the device.
        remainder: What happens to samples that do not fill an update.
    """

    section: ClassVar[str] = "batch"

    global_batch_size: Optional[Positive] = None
    micro_batch_size: Positive = 16
    accumulation_per_replica: Optional[Positive] = None
    updates_per_call: Positive = 1
    remainder: Literal["exact", "pad", "drop"] = "exact"

    def __post_init__(self) -> None:
        if self.global_batch_size is None and self.accumulation_per_replica is None:
            msgspec.structs.force_setattr(self, "global_batch_size", DEFAULT_GLOBAL_BATCH_SIZE)
        check_fields(self, self.section)


class UpdateSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[update]``: how gradients become a change of the weights.

    Args:
        reduction: Whether the summed gradient is divided by the summed weight of the loss.
        lr_scaling: How learning rates follow the global batch size.
        warmup_updates: Updates over which learning rates rise to their value.
        base_global_batch_size: The global batch size for which learning rates were chosen.
        clip_norm: Largest global norm of the gradient; None: off.
    """

    section: ClassVar[str] = "update"

    reduction: Literal["mean", "sum"] = "mean"
    lr_scaling: Literal["none", "linear", "sqrt"] = "none"
    warmup_updates: Natural = 0
    base_global_batch_size: Optional[Positive] = None
    clip_norm: Optional[Annotated[float, Meta(gt=0)]] = None

    def __post_init__(self) -> None:
        check_fields(self, self.section)
        if self.lr_scaling != "none" and self.base_global_batch_size is None:
            raise PlanError(
                f'update.lr_scaling: got "{self.lr_scaling}" without base_global_batch_size; set '
                "update.base_global_batch_size to the global batch size for which the learning "
                'rate was chosen, or set update.lr_scaling = "none"'
            )

    def lr_scale(self, global_batch_size: int) -> float:
        """Factor of every learning rate after the warm-up, from ``lr_scaling``."""
        if self.lr_scaling == "none" or self.base_global_batch_size is None:
            return 1.0
        ratio = global_batch_size / self.base_global_batch_size
        return ratio if self.lr_scaling == "linear" else float(ratio**0.5)


class PrecisionSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[precision]``: types of computation and reduction.

    Args:
        compute: Type of forward and backward.
        reduce: Type in which gradients are summed over replicas.
        loss_scale: "none", "dynamic", or a fixed factor.
    """

    section: ClassVar[str] = "precision"

    compute: Literal["float32", "bfloat16", "float16"] = "float32"
    reduce: Literal["float32", "compute"] = "float32"
    loss_scale: Union[Literal["none", "dynamic"], Annotated[float, Meta(gt=0)]] = "none"

    def __post_init__(self) -> None:
        check_fields(self, self.section)


class CommsSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[comms]``: how ranks talk.

    Args:
        transport: How bytes move.
        algorithm: How a reduction is arranged.
        bucket_bytes: Most bytes of gradients that are reduced together.
        compression: Lossy compression of gradients; never chosen automatically.
        overlap: Whether buckets may be reduced while backward runs; "auto" does not today.
        stall_report_seconds: A wait longer than this is reported, with who is missing.
        timeout_seconds: A wait longer than this is an error.
    """

    section: ClassVar[str] = "comms"

    transport: Literal["auto", "shm", "c10d"] = "auto"
    algorithm: Literal["auto", "direct", "ring", "hierarchical"] = "auto"
    bucket_bytes: Positive = 26214400
    compression: Literal["none", "float16", "bfloat16", "topk", "powersgd"] = "none"
    overlap: Literal["auto", "none"] = "auto"
    stall_report_seconds: Seconds = 30.0
    timeout_seconds: Seconds = 1800.0

    def __post_init__(self) -> None:
        check_fields(self, self.section)


class PipelineSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[pipeline]``: how stages take turns.

    Args:
        schedule: Order of forward and backward over the stages.
        split: Where the model is cut.
    """

    section: ClassVar[str] = "pipeline"

    schedule: Literal["gpipe", "1f1b"] = "1f1b"
    split: str = "auto"

    def __post_init__(self) -> None:
        check_fields(self, self.section)


class DataSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[data]``: where and how samples are made.

    Args:
        shuffle: Whether training goes through the samples in a new order every epoch.
        isolate: Whether pipelines run in a process of their own; "auto": all but dataset objects,
            and pipelines of the framework of which a model was compiled before.
        workers: Data processes a host, for each source that runs in them; map-style datasets are
            read in the rank's own process unless there are 2 or more.
        python: Interpreter of the data process; empty: the same.
    """

    section: ClassVar[str] = "data"

    shuffle: bool = True
    isolate: Literal["auto", "always", "never"] = "auto"
    workers: Natural = 1
    python: str = ""

    def __post_init__(self) -> None:
        check_fields(self, self.section)


class CompileSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[compile]``: for targets that compile.

    Args:
        cache_dir: Where compiled programs are kept; empty: nowhere.
        optimization_level: Effort of the compiler.
    """

    section: ClassVar[str] = "compile"

    cache_dir: str = ""
    optimization_level: Natural = 2

    def __post_init__(self) -> None:
        check_fields(self, self.section)
