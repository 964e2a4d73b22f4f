"""Samples: where they come from, in which order, who gets them, and proof that all did."""

from __future__ import annotations

from unified_ipu.data.adoption import as_source as as_source
from unified_ipu.data.array_source import ArraySource as ArraySource, arrays as arrays
from unified_ipu.data.certificate import Certificate as Certificate
from unified_ipu.data.dataset_source import (
    DatasetSource as DatasetSource,
    FunctionDataset as FunctionDataset,
    dataset as dataset,
)
from unified_ipu.data.isolation import isolated_as_needed as isolated_as_needed
from unified_ipu.data.loader import Loader as Loader
from unified_ipu.data.order import Order as Order
from unified_ipu.data.padding import pad as pad
from unified_ipu.data.pipeline_source import (
    PipelineSource as PipelineSource,
    StreamSource as StreamSource,
    stream as stream,
    tensorflow as tensorflow,
)
from unified_ipu.data.sample import Sample as Sample
from unified_ipu.data.source import Source as Source

__all__ = [
    "ArraySource",
    "Certificate",
    "DatasetSource",
    "FunctionDataset",
    "Loader",
    "Order",
    "PipelineSource",
    "Sample",
    "Source",
    "StreamSource",
    "arrays",
    "as_source",
    "dataset",
    "isolated_as_needed",
    "pad",
    "stream",
    "tensorflow",
]
