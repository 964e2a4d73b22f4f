"""TensorFlow's exceptions into ours, where ours say more."""

from __future__ import annotations

import re
import sys
from typing import Optional

from unified_ipu.errors import CapabilityError, ConfigError, DeviceError

NAME = "tensorflow"
_NOT_DETERMINISTIC = ("determinism", "deterministic")
_NOT_FOR_TYPE = re.compile(
    "does not match type|was expected to be a|No OpKernel was registered|Could not find device"
    "|not in list of allowed values"
)
_HALF = re.compile(r"\b(half|float16|bfloat16|DT_HALF|DT_BFLOAT16)\b")


class Translation:
    """Says more of memory that ran out and of what graphs cannot do; the rest passes as it is."""

    def __enter__(self) -> None:
        """Nothing to do."""

    def __exit__(self, kind: object, error: Optional[BaseException], trace: object) -> None:
        """Look at what passes.

        Raises:
            DeviceError: If the host or the device ran out of memory.
            ConfigError: If Python code asks for the value of a tensor while a graph is made.
            CapabilityError: If an operation has no deterministic kernel, and the plan wants one;
                or none in half precision.
        """
        if error is None:
            return
        errors = sys.modules["tensorflow"].errors
        if isinstance(error, (MemoryError, errors.ResourceExhaustedError)):
            raise DeviceError(NAME, "out of memory; lower batch.micro_batch_size") from error
        if isinstance(error, errors.OperatorNotAllowedInGraphError):
            raise ConfigError(
                "model, loss or objective asks for the value of a tensor in Python (if, while, "
                "for, bool, float), but forward is made a graph once for each shape of batch; use "
                "tf.cond, tf.where or tf.while_loop, or set run_eagerly = True on the model, which "
                f"is slower ({error})"
            ) from error
        if isinstance(error, errors.UnimplementedError) and _is_about_determinism(error):
            raise CapabilityError(
                NAME,
                f"an operation has no deterministic kernel on this device ({error}); set "
                "deterministic = false, or use another operation in the model",
            ) from error
        lacks_half = _lacks_half(error)
        if lacks_half:
            raise CapabilityError(
                NAME,
                f"an operation cannot be run in half precision here ({lacks_half}); make its layer "
                'with dtype="float32", cast its inputs, or set precision.compute to another type',
            ) from error


def _lacks_half(error: BaseException) -> str:
    """What TensorFlow says of the operation that has no kernel for a half type, or mixes types."""
    errors = sys.modules["tensorflow"].errors
    kinds = (TypeError, ValueError, errors.InvalidArgumentError, errors.NotFoundError)
    if isinstance(error, kinds):
        for line in str(error).splitlines():
            if _NOT_FOR_TYPE.search(line) and _HALF.search(line):
                return line.strip()
    return ""


def _is_about_determinism(error: BaseException) -> bool:
    text = str(error).lower()
    return any(word in text for word in _NOT_DETERMINISTIC)


_translation = Translation()


def translated() -> Translation:
    """Return the context that translates TensorFlow's exceptions; it has no state."""
    return _translation
