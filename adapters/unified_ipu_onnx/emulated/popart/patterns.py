"""Graph rewrites of PopART: names are kept, nothing is rewritten."""

from __future__ import annotations

from typing import Dict, Sequence, Union

from unified_ipu_onnx.emulated.popart.enums import PatternsLevel


class Patterns:
    """A set of graph rewrites, which change speed and not results.

    Args:
        level: A level, or names of rewrites.
    """

    def __init__(self, level: Union[PatternsLevel, Sequence[str]] = PatternsLevel.Default) -> None:
        self.level = level
        self._set: Dict[str, bool] = {}

    def enablePattern(self, name: str, enabled: bool) -> Patterns:
        """Switch one on or off."""
        self._set[name] = bool(enabled)
        return self

    def isPatternEnabled(self, name: str) -> bool:
        """Whether it was switched on, by name or by its level."""
        named = name in self.level if not isinstance(self.level, PatternsLevel) else True
        return self._set.get(name, named and self.level is not PatternsLevel.NoPatterns)

    def enableRuntimeAsserts(self, enabled: bool) -> Patterns:
        """Without effect."""
        self._set["RuntimeAsserts"] = bool(enabled)
        return self

    def __getattr__(self, name: str) -> bool:
        if not name[:1].isupper():
            raise AttributeError(name)
        return self.isPatternEnabled(name)

    def __setattr__(self, name: str, value: object) -> None:
        if name[:1].isupper():
            self.enablePattern(name, bool(value))
        else:
            object.__setattr__(self, name, value)
