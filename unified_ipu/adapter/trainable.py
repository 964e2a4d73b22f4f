"""Which tensors a program trains, by their names: what ``compile(trainable=)`` means everywhere."""

from __future__ import annotations

import difflib
from typing import Any, List, Sequence

from unified_ipu.errors import ConfigError

_MOST_SHOWN = 8


def nearest(name: str, known: Sequence[str]) -> str:
    """Hint at the names most like one, or list the first of them."""
    close = difflib.get_close_matches(name, known, n=3)
    if close:
        return f"did you mean {' or '.join(repr(one) for one in close)}?"
    more = ", ..." if len(known) > _MOST_SHOWN else ""
    return f"known: {', '.join(known[:_MOST_SHOWN])}{more}"


def choose_trainable(trainable: Any, names: Sequence[str], *, kind: str = "parameter") -> List[str]:
    """Choose the names that are trained.

    Args:
        trainable: A name, names, a predicate over names, or None: all.
        names: Of all that can be trained.
        kind: What the framework calls one, for messages.

    Returns:
        A part of ``names`` in their order.

    Raises:
        ConfigError: If a name does not exist, or nothing is left.
    """
    if trainable is None:
        return list(names)
    if callable(trainable):
        chosen = [name for name in names if trainable(name)]
    else:
        asked = [trainable] if isinstance(trainable, str) else list(trainable)
        for name in asked:
            if name not in names:
                raise ConfigError(
                    f"trainable= names {name!r}, which is no {kind} of the model that can be "
                    f"trained; {nearest(str(name), names)}"
                )
        chosen = [name for name in names if name in set(asked)]
    if not chosen:
        raise ConfigError(f"trainable= leaves no {kind} to train; name at least one")
    return chosen
