from __future__ import annotations

import pytest
import tensorflow as tf

from unified_ipu.errors import CapabilityError, DeviceError
from unified_ipu_tensorflow.errors import translated

pytestmark = pytest.mark.timeout(120)


@pytest.mark.parametrize(
    "error", [MemoryError(), tf.errors.ResourceExhaustedError(None, None, "OOM when allocating")]
)
def test_memory_that_ran_out_says_what_to_lower(error):
    with pytest.raises(DeviceError, match=r"lower batch\.micro_batch_size") as caught:
        with translated():
            raise error
    assert caught.value.__cause__ is error


def test_a_missing_deterministic_kernel_names_the_setting():
    text = "Determinism is not yet supported for SomeGrad."
    with pytest.raises(CapabilityError, match=r"SomeGrad.*set deterministic = false"):
        with translated():
            raise tf.errors.UnimplementedError(None, None, text)


@pytest.mark.parametrize(
    "error", [ValueError("a shape"), tf.errors.UnimplementedError(None, None, "a cast of text")]
)
def test_other_errors_pass_as_they_are(error):
    with pytest.raises(type(error)) as caught:
        with translated():
            raise error
    assert caught.value is error
