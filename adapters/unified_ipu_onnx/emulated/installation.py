"""``import popart`` gives the emulation: for scripts that know nothing of this package."""

from __future__ import annotations

from unified_ipu_onnx.emulated import popart


def install() -> None:
    """Put the emulated PopART into ``sys.modules``.

    Raises:
        ImportError: If another popart was imported already.
    """
    popart.install()
