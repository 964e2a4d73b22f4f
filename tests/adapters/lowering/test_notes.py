"""What the lowering of every framework says of updates on devices."""

from __future__ import annotations

import pytest

from unified_ipu.plan import Plan
from unified_ipu_onnx.lower_ipu import lower_for_ipu as of_onnx
from unified_ipu_tensorflow.lower_ipu import lower_for_ipu as of_tensorflow
from unified_ipu_torch.lower_ipu import lower_for_ipu as of_torch


@pytest.mark.parametrize("lower", [of_torch, of_tensorflow, of_onnx])
@pytest.mark.parametrize("settings", [{}, {"precision.loss_scale": 128.0}])
def test_l1_7_l1_10_each_lowering_says_that_a_device_skips_nothing(lower, settings):
    plan = Plan().replace({"batch.remainder": "pad", "mesh.data": 1, **settings})
    text = "\n".join(lower(plan, "ipu").notes)
    assert "skips no update: a gradient that is not finite reaches the weights" in text
    assert "has a gradient of zero, which decay and momentum act on" in text
