"""What holds the optimizer of a device program: its Keras optimizer, slots, rates and state."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping

from unified_ipu.adapter import optim
from unified_ipu_tensorflow.ipu.optimizers import SlotBook, check_settings, keras_optimizer
from unified_ipu_tensorflow.keras_generation import is_keras3
from unified_ipu_tensorflow.keras_optimizers import KerasOptimizer
from unified_ipu_tensorflow.optimizers import build_optimizer
from unified_ipu_tensorflow.updates import ExactOptimizer


class ExactDriver:
    """One of ``ui.optim``; its state is that of the host's ``ExactOptimizer``.

    Args:
        host: With the settings and the variables.
    """

    def __init__(self, host: ExactOptimizer) -> None:
        check_settings(host.settings)
        self.trained = host.trained
        self._host = host
        self._book = SlotBook(host.settings, host.trained)
        self.native = keras_optimizer(host.settings, self._book)

    def slots(self) -> Dict[str, Any]:
        """All slots; a device program has them from the beginning."""
        return dict(self._book.by_name)

    def make_slot(self, name: str) -> None:
        """Return None: there are no others."""
        del name

    def forget_slots(self) -> None:
        """Begin them at 0."""
        self._book.clear()

    def learning_rates(self) -> List[float]:
        """The one rate."""
        return self._host.learning_rates()

    def end_call(self, num_updates: int) -> None:
        """Do nothing: schedules over ``ui.optim`` are factors."""

    def scalars(self) -> Dict[str, Any]:
        """Kind and settings."""
        return self._host.scalars()

    def load_scalars(self, scalars: Mapping[str, Any]) -> bool:
        """Take over the settings; whether there is a new ``native`` to compile for them."""
        before = self._host.settings
        self._host.load_scalars(scalars)
        if self._host.settings == before:
            return False
        check_settings(self._host.settings)
        book = SlotBook(self._host.settings, self.trained)
        for name, slot in self._book.by_name.items():
            if name in book.by_name:
                book.by_name[name].assign(slot)
        self._book = book
        self.native = keras_optimizer(self._host.settings, book)
        return True

    def close(self) -> None:
        """Do nothing: the user's value is never changed."""


class NativeDriver:
    """The user's own Keras optimizer, lent a variable for its rate where it has a schedule.

    Args:
        host: What the host drives it by.
        native: The user's.
    """

    def __init__(self, host: KerasOptimizer, native: Any) -> None:
        self.trained = host.trained
        self.native = native
        self._host = host
        if host.has_schedule:
            # The host's way, a callable, cannot be assigned to.
            rate = host.rate
            if is_keras3(native):
                native._learning_rate = rate  # noqa: SLF001 the setter refuses to replace a schedule
            elif native.learning_rate is not rate:  # else it is the optimizer's own already
                native.learning_rate = rate

    def slots(self) -> Dict[str, Any]:
        """All slots."""
        return self._host.slots()

    def make_slot(self, name: str) -> None:
        """Return None: there are no others."""
        del name

    def forget_slots(self) -> None:
        """Do nothing: every checkpoint of this optimizer has all slots."""

    def learning_rates(self) -> List[float]:
        """The one rate."""
        return self._host.learning_rates()

    def end_call(self, num_updates: int) -> None:
        """Move on in the schedule."""
        self._host.end_call(num_updates)

    def scalars(self) -> Dict[str, Any]:
        """Kind, settings, counters and rate."""
        return self._host.scalars()

    def load_scalars(self, scalars: Mapping[str, Any]) -> bool:
        """Take them over; nothing has to be compiled anew."""
        self._host.load_scalars(scalars)
        return False

    def close(self) -> None:
        """Give the user's optimizer its own rate or schedule back."""
        self._host.close()


def build_driver(settings: Any, variables: Mapping[str, Any], trainable: Any, schedule: Any) -> Any:
    """Return the driver of a job's optimizer, or None if it has none.

    Args:
        settings: A Keras optimizer, a value of ``ui.optim``, or None.
        variables: The model's own trainable variables by name.
        trainable: As ``choose_trainable``.
        schedule: A Keras ``LearningRateSchedule``, or None.

    Raises:
        ConfigError: As ``build_optimizer``.
        CapabilityError: If a device program cannot do what the settings say.
    """
    host: Any = build_optimizer(settings, variables, trainable, schedule)
    if host is None:
        return None
    if isinstance(settings, (optim.SGD, optim.Adam)):
        return ExactDriver(host)
    return NativeDriver(host, settings)
