"""The counts that a pipeline asks for: a multiple of the micro-batches that it works on at once.

Source: Graphcore's TensorFlow of SDK 3.4, ``compiler/plugin/poplar/driver/visitors/``,
``pipeline_visitor.cc`` and ``pipeline_visitor_utils.h``.
"""

from __future__ import annotations

from typing import List

import tensorflow as tf

from unified_ipu_tensorflow.emulated.ipu.ops.pipelining_ops import PipelineSchedule


def check_pipeline(
    stages: List[int], schedule: PipelineSchedule, count: int, *, training: bool
) -> None:
    """Refuse a number of micro-batches that does not fill a pipeline.

    Args:
        stages: The stage of each layer; every stage has an IPU of its own.
        schedule: Of the pipeline.
        count: Micro-batches of an update, or of an execution in inference.
        training: Whether each stage has a backward stage too.

    Raises:
        FailedPreconditionError: As the compiler raises it.
    """
    depth = max(stages) + 1
    # Backward stages lie on the IPUs of their forward stages, so that an interleaved pipeline
    # has room for one micro-batch an IPU.
    needed = {
        PipelineSchedule.Grouped: 2 * depth if training else depth,
        PipelineSchedule.Interleaved: depth,
        PipelineSchedule.Sequential: 1,
    }[schedule]
    if count % needed:
        raise tf.errors.FailedPreconditionError(
            None,
            None,
            f"The pipeline depth of the pipeline must be a multiple of {needed}, but it is {count}",
        )
