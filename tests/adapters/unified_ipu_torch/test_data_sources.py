"""Live torch objects as sources of the core's loaders."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from unified_ipu.data import arrays, as_source
from unified_ipu.errors import DataError

IDS = np.array([2, 0, 3])
PAIRS = TensorDataset(torch.arange(8.0).reshape(4, 2), torch.arange(4))


def test_a_torch_dataset_is_a_source_of_numpy_batches():
    source: Any = as_source(PAIRS)
    assert source.size == 4
    x, y = source.fetch(IDS)
    assert x.tolist() == [[4, 5], [0, 1], [6, 7]]
    assert x.dtype == np.float32
    assert y.tolist() == [2, 0, 3]


def test_torch_tensors_are_read_as_arrays():
    source: Any = as_source((torch.arange(4.0), torch.arange(4)))
    assert [leaf.tolist() for leaf in source.fetch(IDS)] == [[2, 0, 3], [2, 0, 3]]


def test_batches_of_tensors_share_no_memory_with_them():
    values = torch.arange(4.0)
    arrays(values).fetch(IDS)[:] = 9
    assert values.tolist() == [0, 1, 2, 3]


def test_a_tensor_that_numpy_cannot_read_is_refused():
    with pytest.raises(DataError, match="cannot read"):
        arrays(torch.zeros(3, requires_grad=True))
    with pytest.raises(DataError, match="cannot read"):
        arrays(torch.zeros(3, dtype=torch.bfloat16))
