"""What an executor makes of the options it is given.

Source: PopTorch 3.4, ``python/_poplar_executor.py``.
"""

from __future__ import annotations

import copy
from typing import Any, Optional

from unified_ipu_torch.emulated.poptorch.enums import OutputMode
from unified_ipu_torch.emulated.poptorch.errors import Error
from unified_ipu_torch.emulated.poptorch.options import Options
from unified_ipu_torch.emulated.poptorch.strategies import PipelinedExecution, ShardedExecution


def own_options(options: Optional[Any], *, training: bool) -> Options:
    """Freeze the user's options, and copy them with the output mode chosen.

    Args:
        options: The user's; None takes the defaults.
        training: Whether the model trains.

    Returns:
        The executor's own.

    Raises:
        Error: If they are of another class, or accumulate gradients in inference.
    """
    if options is not None and not isinstance(options, Options):
        raise Error(
            f"Invalid type: 'options' is of type {type(options)} (Expected poptorch.Options)"
        )
    if options is not None:
        options._freeze()
    own = Options() if options is None else copy.deepcopy(options)
    if own.defaultOutputMode():
        own.outputMode(OutputMode.Final if training else OutputMode.All)
    if not training and own.Training.gradient_accumulation != 1:
        strategy = own._execution_strategy
        words = (
            "You must set poptorch.Options().Training.gradientAccumulation to 1 or leave it as its "
            "default value (1) when running a poptorch.inferenceModel()."
        )
        if isinstance(strategy, PipelinedExecution) and not isinstance(strategy, ShardedExecution):
            words += (
                " Use poptorch.Options().deviceIterations to process a sufficient number of "
                "batches each run for pipelined execution instead."
            )
        raise Error(words)
    return own
