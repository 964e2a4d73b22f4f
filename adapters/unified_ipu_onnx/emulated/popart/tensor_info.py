"""Shape and type of a tensor."""

from __future__ import annotations

from typing import Any, Dict, List, Sequence, Tuple, Union

import numpy as np

from unified_ipu_onnx.emulated.popart.enums import DataType
from unified_ipu_onnx.emulated.popart.errors import popart_exception

_BY_NUMPY: Dict[Any, DataType] = {
    np.uint8: DataType.UINT8,
    np.uint16: DataType.UINT16,
    np.uint32: DataType.UINT32,
    np.uint64: DataType.UINT64,
    np.int8: DataType.INT8,
    np.int16: DataType.INT16,
    np.int32: DataType.INT32,
    np.int64: DataType.INT64,
    np.float16: DataType.FLOAT16,
    np.float32: DataType.FLOAT,
    np.float64: DataType.DOUBLE,
    np.bool_: DataType.BOOL,
}
NUMPY_TYPES = {kind: np.dtype(scalar) for scalar, kind in _BY_NUMPY.items()}
ON_DEVICE = frozenset(
    {
        DataType.BOOL,
        DataType.FLOAT,
        DataType.FLOAT16,
        DataType.INT8,
        DataType.INT16,
        DataType.INT32,
        DataType.UINT8,
        DataType.UINT16,
        DataType.UINT32,
    }
)
"""Types that a device computes with: no float64, no int64, no strings."""


class TensorInfo:
    """Shape and type of a tensor.

    Args:
        args: A type (its PopART name, a numpy type or a ``DataType``) and a shape, or an array.

    Raises:
        TypeError: For other arguments.
        popart_exception: If the type is unknown.
    """

    def __init__(self, *args: Any) -> None:
        kind, shape = _unpacked(args)
        self._kind = data_type_of(kind)
        self._shape = [int(size) for size in shape]

    def shape(self) -> List[int]:
        """Sizes of the axes."""
        return list(self._shape)

    def rank(self) -> int:
        """Return the number of axes."""
        return len(self._shape)

    def nelms(self) -> int:
        """Return the number of elements."""
        return int(np.prod(self._shape, dtype=np.int64))

    def nbytes(self) -> int:
        """Return the number of bytes."""
        return self.nelms() * int(NUMPY_TYPES[self._kind].itemsize)

    def dim(self, i: int) -> int:
        """Size of one axis."""
        return self._shape[i]

    def dataType(self) -> DataType:
        """Type of the elements."""
        return self._kind

    def data_type(self) -> str:
        """PopART's name of the type, as ``"FLOAT"``."""
        return self._kind.name

    def data_type_lcase(self) -> str:
        """Numpy's name of the type, as ``"float32"``."""
        return str(NUMPY_TYPES[self._kind].name)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TensorInfo):
            return NotImplemented
        return (self._kind, self._shape) == (other._kind, other._shape)

    def __hash__(self) -> int:
        return hash((self._kind, tuple(self._shape)))

    def __repr__(self) -> str:
        return f"TensorInfo({self.data_type()}, {self._shape})"


def _unpacked(args: Tuple[Any, ...]) -> Tuple[Any, Sequence[int]]:
    if len(args) == 2:
        return args[0], args[1]
    if len(args) == 1 and isinstance(args[0], np.ndarray):
        return args[0].dtype, args[0].shape
    raise TypeError(f"Can not create TensorInfo with args {args}")


def data_type_of(kind: Union[str, type, np.dtype, DataType]) -> DataType:
    """PopART's type of a name, a numpy type or itself.

    Raises:
        popart_exception: If it is unknown.
    """
    if isinstance(kind, DataType):
        return kind
    if isinstance(kind, (np.dtype, type)):
        scalar = np.dtype(kind).type
        if scalar in _BY_NUMPY:
            return _BY_NUMPY[scalar]
    elif kind in DataType.__members__:
        return DataType[kind]
    raise popart_exception(f"no tensor type {kind!r}; use a name such as 'FLOAT' or a numpy type")
