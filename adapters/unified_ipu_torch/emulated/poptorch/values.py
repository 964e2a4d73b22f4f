"""Option values: known by name, held to the type of their default, frozen after first use.

Source: PopTorch 3.4, ``python/_options_impl.py``.
"""

from __future__ import annotations

import copy
from typing import Any, Dict, Iterator, Tuple

from unified_ipu_torch.emulated.poptorch.errors import check_type, require
from unified_ipu_torch.emulated.poptorch.log import logger

FROZEN = "Can't modify frozen Options"


class Freezable:
    """Something that cannot be changed once a model or a loader took it."""

    _is_frozen = False

    def checkIsFrozen(self, option: str = "") -> None:
        """Refuse a change after the first use.

        Args:
            option: What is about to change.

        Raises:
            AttributeError: If frozen.
        """
        if self._is_frozen and option != "_is_frozen":
            raise AttributeError(FROZEN)

    def _freeze(self) -> None:
        self._set_frozen(is_frozen=True)

    def _unfreeze(self) -> None:
        self._set_frozen(is_frozen=False)

    def _set_frozen(self, *, is_frozen: bool) -> None:
        object.__setattr__(self, "_is_frozen", is_frozen)
        for _, part in self._parts():
            part._set_frozen(is_frozen=is_frozen)

    def _parts(self) -> Iterator[Tuple[str, Freezable]]:
        """Groups of options inside this one."""
        for name, value in vars(self).items():
            if isinstance(value, Freezable):
                yield name, value

    def __deepcopy__(self, memory: Dict[int, Any]) -> Any:
        """A copy may be changed, whatever the original."""
        found = type(self).__new__(type(self))
        memory[id(self)] = found
        for name, value in vars(self).items():
            copied = False if name == "_is_frozen" else copy.deepcopy(value, memory)
            object.__setattr__(found, name, copied)
        return found


class OptionsDict(Freezable):
    """Named values; only names known from the start may be set.

    Args:
        values: The names with their defaults.
    """

    _values: Dict[str, Any]

    def __init__(self, **values: Any) -> None:
        object.__setattr__(self, "_values", values)

    def set(self, **values: Any) -> None:
        """Change values.

        Args:
            values: By name.

        Raises:
            AttributeError: If frozen.
            AssertionError: If a name is unknown, or a value is of another type than the default.
        """
        self.checkIsFrozen()
        for name, value in values.items():
            require(
                self.exists(name),
                f"Invalid option {name}, valid options are {self._values.keys()}",
            )
            check_type(name, value, type(self._values[name]))
            self._values[name] = value

    def createOrSet(self, **values: Any) -> None:
        """Change values, unknown names included."""
        self.checkIsFrozen()
        for name, value in values.items():
            if name in self._values:
                self.set(**{name: value})
            else:
                self._values[name] = value

    def exists(self, option: str) -> bool:
        """Whether there is a value of that name."""
        return option in self._values

    def deleteIfExists(self, option: str) -> None:
        """Forget a value."""
        self.checkIsFrozen()
        self._values.pop(option, None)

    def update(self, other: Dict[str, Any]) -> Dict[str, Any]:
        """Put these values into a dictionary that has none of these names yet.

        Args:
            other: The dictionary, changed in place.

        Returns:
            The dictionary.

        Raises:
            AssertionError: If a name is there already.
        """
        require(
            not set(self._values) & set(other),
            "Can't merge dictionaries, they have some keys in common",
        )
        other.update(self._values)
        return other

    def toDict(self) -> Dict[str, Any]:
        """The values as a plain dictionary."""
        return self.update({})

    def __call__(self, option: str) -> Any:
        """The value of that name."""
        return getattr(self, option)

    def __getattr__(self, option: str) -> Any:
        # Only reached when the usual way finds nothing; "_values" itself is missing in a copy.
        values = self.__dict__.get("_values", {})
        if option.startswith("_") or option not in values:
            raise AttributeError(f"Invalid attribute {option}.")
        return values[option]

    def __setattr__(self, option: str, value: Any) -> None:
        if option.startswith("_"):
            self.checkIsFrozen(option)
            if "_values" in self.__dict__ and not hasattr(self, option):
                known = list(self.__dict__)
                raise AttributeError(f"Invalid private attribute {option}. Valid: {known}")
            object.__setattr__(self, option, value)
        else:
            self.set(**{option: value})

    def __repr__(self) -> str:
        shown = [f"{name}={value!r}" for name, value in self._values.items()]
        return f"{type(self).__name__}({', '.join(shown)})"


def deprecated(call: str, reason: str) -> None:
    """Warn of a setter that does nothing any more.

    Args:
        call: The setter.
        reason: Why it is not needed.
    """
    logger.warning("[Deprecated] Do not call options.%s(): %s", call, reason)
