"""The Poplar SDK's TensorFlow modules on the host: same names and semantics, no IPU.

``from unified_ipu_tensorflow.emulated import ipu, keras`` are ``tensorflow.python.ipu`` and
``keras.ipu``. Nothing here takes part in an import of the SDK unless ``install`` is called.
"""

from __future__ import annotations


def install() -> None:
    """Let ``from tensorflow.python import ipu`` and ``keras.ipu`` find the emulation.

    Raises:
        RuntimeError: If the SDK's own TensorFlow is there.
    """
    from unified_ipu_tensorflow.emulated.installation import install_modules

    install_modules()


__all__ = ["install"]
