"""``TF_POPLAR_FLAGS``: an unknown one ends a process of the SDK, so it is an error here.

Source: Graphcore's TensorFlow of SDK 3.4, ``compiler/plugin/poplar/driver/tools/flags.cc``.
"""

from __future__ import annotations

from typing import Mapping

from unified_ipu_tensorflow.emulated.notes import note_once

VARIABLE = "TF_POPLAR_FLAGS"
_WITHOUT_EFFECT = (
    "executable_cache_path",
    "log_cycle_count",
    "max_compilation_threads",
    "max_infeed_threads",
    "show_progress_bar",
    "use_ipu_model",
)


def check_flags(environ: Mapping[str, str]) -> None:
    """Say which flags have no effect, and refuse the others.

    Args:
        environ: The environment.

    Raises:
        ValueError: Naming the flag.
    """
    for word in environ.get(VARIABLE, "").split():
        name = word.lstrip("-").partition("=")[0]
        if name not in _WITHOUT_EFFECT:
            raise ValueError(
                f"{VARIABLE}: {word} is not emulated (synthetic data and what changes results are "
                "not; the SDK ends at flags it does not know); leave it out"
            )
        note_once(f"{VARIABLE} {name}", "nothing is compiled, and there is no device")
