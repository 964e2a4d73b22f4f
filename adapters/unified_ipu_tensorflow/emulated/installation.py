"""Puts the emulated modules where scripts import those of the SDK."""

from __future__ import annotations

import sys
from typing import Any

import tensorflow as tf

from unified_ipu_tensorflow.emulated import ipu, keras as keras_ipu, popdist

_PREFIX = f"{ipu.__name__}."


def install_modules() -> None:
    """Make ``tensorflow.python.ipu``, ``keras.ipu`` and ``popdist`` the emulated ones.

    ``keras`` and ``tensorflow.keras`` are different module objects, so both get the attribute.

    Raises:
        RuntimeError: If the SDK's own TensorFlow is there.
    """
    python: Any = sys.modules["tensorflow.python"]
    found = getattr(python, "ipu", None)
    if found is not None and not getattr(found, "__emulated__", False):
        raise RuntimeError("the Poplar SDK's TensorFlow is here; nothing is emulated beside it")
    python.ipu = ipu
    for name in [ipu.__name__, *(name for name in sys.modules if name.startswith(_PREFIX))]:
        sys.modules[name.replace(ipu.__name__, "tensorflow.python.ipu", 1)] = sys.modules[name]
    sys.modules["tensorflow.python.ipu.utils"] = ipu.utils
    holders: Any = (sys.modules.get("keras"), tf.keras)
    for holder in holders:
        if holder is not None:
            holder.ipu = keras_ipu
    sys.modules["keras.ipu"] = keras_ipu
    sys.modules.setdefault("popdist", popdist)
    sys.modules["tensorflow.keras.ipu"] = keras_ipu
