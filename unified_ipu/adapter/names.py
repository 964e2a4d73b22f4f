"""Canonical names and axes: what ``compile(names=)`` says about a model's tensors.

Models of two frameworks hold the same weights under other names and with other axes. A map from a
model's own names to canonical ones makes them the same: ``{"fc/kernel": ["fc.weight", "IO->OI"]}``.
Nothing is guessed: whether a matrix is kept as ``[in, out]`` cannot be seen from its shape.
"""

from __future__ import annotations

import difflib
from collections import Counter
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from unified_ipu.errors import ConfigError
from unified_ipu.plan import TensorSpec

_ARROW = "->"
_SHOWN = 8


@dataclass(frozen=True)
class CanonicalTensor:
    """What one native tensor is called, and how its axes lie, outside its framework.

    Args:
        name: Canonical name.
        permutation: ``canonical = native.transpose(permutation)``; None: the axes are the same.
    """

    name: str
    permutation: Optional[Tuple[int, ...]] = None

    def shape(self, native: Sequence[int]) -> Tuple[int, ...]:
        """The canonical shape of a tensor of this native shape."""
        if self.permutation is None:
            return tuple(native)
        return tuple(native[axis] for axis in self.permutation)

    @property
    def inverse(self) -> Optional[Tuple[int, ...]]:
        """``native = canonical.transpose(inverse)``; None: the axes are the same."""
        if self.permutation is None:
            return None
        return tuple(self.permutation.index(axis) for axis in range(len(self.permutation)))


def canonical_tensors(
    names: Mapping[str, Any], specs: Sequence[TensorSpec]
) -> Dict[str, CanonicalTensor]:
    """Read ``names=`` for the tensors of one model.

    Args:
        names: Native name to canonical name, or to ``[canonical name, "HWIO->OIHW"]``: one letter
            an axis, the native axes first. Tensors left out keep their names and axes.
        specs: All tensors of the model; those with role ``"slot"`` follow their parameter.

    Returns:
        One entry a parameter or buffer, by native name.

    Raises:
        ConfigError: If a native name is unknown, two tensors get one name, or axes do not fit.
    """
    if not isinstance(names, Mapping):
        raise ConfigError(
            f"names={names!r}; expected a mapping of this model's names to canonical ones"
        )
    shapes = {spec.name: spec.shape for spec in specs if spec.role != "slot"}
    found = {name: CanonicalTensor(name) for name in shapes}
    for native, value in names.items():
        if native not in shapes:
            raise ConfigError(
                f"names= has {native!r}, which is no tensor of this model; "
                f"{_nearest(str(native), list(shapes))}"
            )
        found[native] = _entry(native, value, shapes[native])
    counts = Counter(entry.name for entry in found.values())
    for name, count in counts.items():
        if count > 1:
            owners = [native for native, entry in found.items() if entry.name == name]
            raise ConfigError(
                f"names= gives the name {name!r} to {count} tensors, {_listed(owners)}; canonical "
                "names must differ"
            )
    return found


def _entry(native: str, value: Any, shape: Tuple[int, ...]) -> CanonicalTensor:
    axes = None
    name = value
    if isinstance(value, (list, tuple)):
        if len(value) != 2:  # noqa: PLR2004 a name and its axes
            raise ConfigError(_expected(native, value))
        name, axes = value
    if not isinstance(name, str) or not name or not isinstance(axes, (str, type(None))):
        raise ConfigError(_expected(native, value))
    return CanonicalTensor(name, None if axes is None else _permutation(native, axes, shape))


def _permutation(native: str, axes: str, shape: Tuple[int, ...]) -> Optional[Tuple[int, ...]]:
    left, arrow, right = axes.replace(" ", "").partition(_ARROW)
    is_valid = arrow and left.isalpha() and len(set(left)) == len(left)
    if not is_valid or sorted(left) != sorted(right):
        raise ConfigError(
            f"names= gives {native!r} the axes {axes!r}; expected the same letters on both sides, "
            'each once, the native axes first: "HWIO->OIHW"'
        )
    if len(left) != len(shape):
        raise ConfigError(
            f"names= gives {native!r} the axes {axes!r}, which are {len(left)}; the tensor has "
            f"{len(shape)}, of shape {list(shape)}"
        )
    permutation = tuple(left.index(letter) for letter in right)
    return None if permutation == tuple(range(len(shape))) else permutation


def _expected(native: str, value: Any) -> str:
    return (
        f"names= gives {value!r} for {native!r}; expected a canonical name, or "
        '[canonical name, axes] such as ["conv.weight", "HWIO->OIHW"]'
    )


def _nearest(name: str, known: List[str]) -> str:
    close = difflib.get_close_matches(name, known, n=3)
    if close:
        return f"did you mean {' or '.join(repr(one) for one in close)}?"
    return f"it has {_listed(known)}"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(repr(name) for name in names[:_SHOWN]) + more
