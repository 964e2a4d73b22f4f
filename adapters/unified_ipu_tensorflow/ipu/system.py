"""The IPU system of a process: configured once by the lowered calls, and its strategy."""

from __future__ import annotations

import threading
from typing import Any, List, Optional, Sequence, Tuple

import tensorflow as tf

from unified_ipu.adapter import NativeCall, apply_native_calls, native_arguments, native_value
from unified_ipu.errors import ConfigError
from unified_ipu.world import current_environment
from unified_ipu_tensorflow.ipu.sdk import Sdk

FLAGS = "TF_POPLAR_FLAGS"
STRATEGIES = (
    "ipu.ipu_strategy.IPUStrategyV1",
    "ipu.distributed.popdist_strategy.PopDistStrategy",
)


class System:
    """What the calls before the model make.

    Args:
        sdk: Its modules.
        calls: Of the training program.
    """

    def __init__(self, sdk: Sdk, calls: Sequence[NativeCall]) -> None:
        config = sdk.ipu.config.IPUConfig()
        self._configure = config.configure_ipu_system
        self.names = {"ipu": sdk.ipu, "tf": tf, "config": config}
        """What native code may name."""
        objects = {"config": config, "popdist": sdk.popdist}
        apply_native_calls(calls, objects, self.names)
        self.strategy: Any = self._strategy(sdk, calls)
        seeds = [call for call in calls if call.name.startswith(("tf.random.", "ipu.utils."))]
        apply_native_calls(seeds, {"tf": tf, "ipu": sdk.ipu}, self.names)

    def configure(self) -> None:
        """Configure the process as it is already, which changes nothing unless someone reset it."""
        self._configure()

    def _strategy(self, sdk: Sdk, calls: Sequence[NativeCall]) -> Any:
        call = next(call for call in calls if call.name in STRATEGIES)
        kind = sdk.ipu
        for word in call.name.split(".")[1:]:
            kind = getattr(kind, word)
        positional, keywords = native_arguments(call.value, self.names)
        return kind(*positional, **keywords)


_made: List[Tuple[Sdk, List[NativeCall], System]] = []
_making = threading.Lock()  # ranks that are threads of one process share its system


def system_of(sdk: Sdk, calls: Sequence[NativeCall]) -> System:
    """The system of this process; the calls of another plan configure it anew.

    Args:
        sdk: Its modules.
        calls: Of the training program; those that come before the model count.
    """
    first = ("config.", "popdist.", "ipu.", "tf.")
    own = [call for call in calls if call.name.startswith(first)]
    with _making:
        if _made and _made[0][:2] == (sdk, own):
            _made[0][2].configure()
            return _made[0][2]
        if _made:
            _made[0][0].ipu.config.reset_ipu_configuration()
        _made[:] = [(sdk, own, System(sdk, own))]
        return _made[0][2]


def check_flags(calls: Sequence[NativeCall]) -> None:
    """Refuse a plan whose flags the environment lacks: TensorFlow read them when it was imported.

    Raises:
        ConfigError: With the value to set.
    """
    asked: Optional[str] = None
    if any(call.name == "os.environ.update" for call in calls):
        asked = native_value(calls, "os.environ.update", {})[FLAGS]
    given = current_environment().get(FLAGS)
    if asked is not None and given != asked:
        raise ConfigError(
            f"the plan needs {FLAGS}={asked!r} in the environment before TensorFlow is imported, "
            f"got {given!r}; set it before you start Python"
        )
