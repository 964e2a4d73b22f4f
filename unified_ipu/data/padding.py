"""Samples of different lengths in one micro-batch: padded to the longest, with a mask."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Sequence, Union

import numpy as np

from unified_ipu.data.leaves import as_array, map_leaves
from unified_ipu.data.source import Tree
from unified_ipu.errors import ConfigError, DataError

Key = Union[str, int]
Value = Union[int, float]


class Pad:
    """Puts samples together whose axis 0 differs; see ``pad``.

    Args:
        values: What stands behind the end, by leaf; one number is for every leaf with an axis.
        length: Of the result; None takes the longest sample.
        multiple: The length is rounded up to a multiple of it.
        mask_of: The leaf whose lengths the mask shows; None if they are the same in all leaves.

    Raises:
        ConfigError: If ``length`` or ``multiple`` cannot be right.
    """

    def __init__(
        self,
        values: Union[Value, Mapping[Key, Value]],
        *,
        length: Optional[int],
        multiple: int,
        mask_of: Optional[Key],
    ) -> None:
        if length is not None and length < 1:
            raise ConfigError(f"pad: got length={length}; expected an integer >= 1, or None")
        if multiple < 1:
            raise ConfigError(f"pad: got multiple={multiple}; expected an integer >= 1")
        if mask_of is not None and isinstance(values, Mapping) and mask_of not in values:
            raise ConfigError(f"pad: got mask_of={mask_of!r}, which is not in {[*values]}")
        self._values = values
        self._length = length
        self._multiple = multiple
        self._mask_of = mask_of

    def __call__(self, samples: List[Any]) -> Tree:
        """Return one tree with ``[rows, ...]`` leaves and the mask.

        Raises:
            DataError: If the samples are not alike, or a length is not what it may be.
        """
        columns = _columns(samples)
        lengths: Dict[Key, List[int]] = {}
        result: Dict[Key, Any] = {}
        for key, column in columns.items():
            value = self._value_for(key, column)
            if value is None:
                result[key] = _stacked(key, column)
            else:
                lengths[key] = [len(array) for array in column]
                result[key] = self._padded(key, column, value)
        mask = self._mask(lengths, result)
        if isinstance(samples[0], dict):
            return {**result, "mask": mask}
        leaves = [*result.values(), mask]
        return leaves if isinstance(samples[0], list) else tuple(leaves)

    def _value_for(self, key: Key, column: Sequence[np.ndarray]) -> Optional[Value]:
        """What a leaf is padded with; None for a leaf that is not padded."""
        if isinstance(self._values, Mapping):
            return self._values.get(key)
        return self._values if column[0].ndim else None

    def _padded(self, key: Key, column: Sequence[np.ndarray], value: Value) -> np.ndarray:
        first = column[0]
        for k, array in enumerate(column):
            if array.ndim == 0 or array.shape[1:] != first.shape[1:] or array.dtype != first.dtype:
                raise DataError(
                    f"pad: leaf [{key!r}] is {first.dtype} {first.shape} in the first sample of a "
                    f"micro-batch and {array.dtype} {array.shape} in sample {k} of it; only axis 0 "
                    "may differ"
                )
        longest = max(len(array) for array in column)
        length = longest if self._length is None else self._length
        if longest > length:
            raise DataError(
                f"pad: leaf [{key!r}] has a sample of length {longest}, more than length={length}; "
                "cut it in the dataset, or give a larger length"
            )
        length += -length % self._multiple
        padded = np.full((len(column), length, *first.shape[1:]), value, dtype=first.dtype)
        for row, array in zip(padded, column):
            row[: len(array)] = array
        return padded

    def _mask(self, lengths: Mapping[Key, List[int]], result: Mapping[Key, Any]) -> np.ndarray:
        """1 where a sample is, 0 behind its end, float32 ``[rows, length]``.

        Raises:
            DataError: If it is not clear whose lengths count.
        """
        if not lengths:
            raise DataError(
                f"pad: none of the leaves {[*result]} is padded; name those that are, as in "
                "pad({'tokens': 0})"
            )
        key = next(iter(lengths)) if self._mask_of is None else self._mask_of
        if key not in lengths:
            raise DataError(f"pad: mask_of={key!r} is none of the padded leaves {[*lengths]}")
        for other, theirs in lengths.items():
            if self._mask_of is None and theirs != lengths[key]:
                raise DataError(
                    f"pad: the leaves [{key!r}] and [{other!r}] of a sample have the lengths "
                    f"{lengths[key]} and {theirs}; say whose the mask is for with mask_of="
                )
        positions = np.arange(result[key].shape[1])
        mask: np.ndarray = positions < np.array(lengths[key])[:, np.newaxis]
        return mask.astype(np.float32)


def pad(
    values: Union[Value, Mapping[Key, Value]] = 0,
    *,
    length: Optional[int] = None,
    multiple: int = 1,
    mask_of: Optional[Key] = None,
) -> Pad:
    """Collate samples of different lengths: ``dataset(samples, collate=pad({"tokens": 0}))``.

    The leaves of a sample (an array, or a dict, tuple or list of arrays) are padded on axis 0 to
    the longest of the micro-batch. The batch gets a mask, float32 ``[rows, length]``, 1 where a
    sample is: under the key ``"mask"`` of a dict, else as the last element. An ``objective`` that
    counts units weighs them with it, so that its loss does not depend on what was padded.

    Args:
        values: The number behind the end: one for every leaf that has an axis, or by key (of a
            tuple: by index) of the leaves to pad; the others are stacked as they are.
        length: Of the result; by default that of the longest sample, another one each time.
        multiple: The length is rounded up to a multiple of it: fewer shapes to compile for.
        mask_of: The leaf whose lengths the mask shows, where leaves differ in length.

    Returns:
        The function for ``collate=``; data processes can load it.

    Raises:
        ConfigError: If an argument cannot be right.
    """
    return Pad(values, length=length, multiple=multiple, mask_of=mask_of)


def _columns(samples: Sequence[Any]) -> Dict[Key, List[np.ndarray]]:
    """Leaves of the samples by key.

    Raises:
        DataError: If the samples have other keys, or leaves inside of leaves.
    """
    tables = [_table(sample) for sample in samples]
    for k, table in enumerate(tables):
        if [*table] != [*tables[0]]:
            raise DataError(
                f"pad: the first sample of a micro-batch has the leaves {[*tables[0]]} and sample "
                f"{k} of it {[*table]}; samples must be trees of the same form"
            )
    return {key: [table[key] for table in tables] for key in tables[0]}


def _table(sample: Any) -> Dict[Key, np.ndarray]:
    entries: Dict[Key, Any] = {0: sample}
    if isinstance(sample, dict):
        entries = dict(sample)
    elif isinstance(sample, (tuple, list)):
        entries = dict(enumerate(sample))
    if "mask" in entries:
        raise DataError("pad: a sample has a leaf 'mask' already; name it otherwise")
    for key, leaf in entries.items():
        if isinstance(leaf, (dict, tuple, list)):
            raise DataError(
                f"pad: leaf [{key!r}] is a {type(leaf).__name__}; expected an array: samples are "
                "arrays, or dicts, tuples and lists of arrays"
            )
    table: Dict[Key, np.ndarray] = map_leaves(
        entries, lambda path, leaf: as_array(leaf, path, "pad")
    )
    return table


def _stacked(key: Key, column: Sequence[np.ndarray]) -> np.ndarray:
    for array in column:
        if array.shape != column[0].shape:
            raise DataError(
                f"pad: leaf [{key!r}] has the shapes {column[0].shape} and {array.shape} and is "
                "not padded; name it among the leaves to pad, or give all samples one shape"
            )
    return np.stack(column)
