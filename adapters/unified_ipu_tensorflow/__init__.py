"""TensorFlow: the tf.data source; importing this imports no framework."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unified_ipu.errors import AdapterLoadError

if TYPE_CHECKING:
    from unified_ipu.adapter import Adapter

__all__ = ["create"]


def create() -> Adapter:
    """Return the Keras adapter, once there is one.

    Raises:
        AdapterLoadError: Always.
    """
    raise AdapterLoadError(
        "tensorflow",
        "training Keras models is not built yet; a tf.data pipeline can feed a PyTorch model "
        "through ui.data.tensorflow",
    )
