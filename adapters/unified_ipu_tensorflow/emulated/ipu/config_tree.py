"""The attributes of ``IPUConfig``: names, types, defaults, and how they may be set.

Source: Graphcore's TensorFlow of SDK 3.4, ``python/ipu/config.py``; names and defaults were read
from a live object.
"""

from __future__ import annotations

import difflib
import enum
from typing import Any, Dict, List, NamedTuple, Tuple, Type


class SelectionOrder(enum.Enum):
    """How IPUs are numbered."""

    AUTO = 0
    ZIGZAG = 1
    SNAKE = 2
    HOOF = 3


class DeviceConnectionType(enum.Enum):
    """When a process attaches to its devices."""

    ALWAYS = 0
    ON_DEMAND = 1
    NEVER = 2
    PRE_COMPILE = 3


class StochasticRoundingBehaviour(enum.Enum):
    """Whether float16 results are rounded at random."""

    OFF = 0
    ON = 1
    REPLICA_IDENTICAL_ONLY = 2

    @classmethod
    def from_bool(cls, value: bool) -> StochasticRoundingBehaviour:
        """``ON`` or ``OFF``."""
        return cls.ON if value else cls.OFF


class MergeRemoteBuffersBehaviour(enum.Enum):
    """Whether remote buffers are merged."""

    NO_MERGING = 0
    MERGE = 1
    IF_BENEFICIAL = 2


class SchedulingAlgorithm(enum.Enum):
    """How the compiler orders operations."""

    CHOOSE_BEST = 0
    CLUSTERING = 1
    POST_ORDER = 2
    LOOK_AHEAD = 3
    SHORTEST_PATH = 4


class Attribute(NamedTuple):
    """One attribute: its types, and its default."""

    types: Tuple[Type[Any], ...]
    default: Any


def _one(default: Any) -> Attribute:
    return Attribute((type(default),), default)


_IPUS = Attribute((int, list, tuple), [])

ATTRIBUTES: Dict[str, Attribute] = {
    "auto_select_ipus": _IPUS,
    "select_ipus": _IPUS,
    "allow_recompute": _one(False),
    "selection_order": _one(SelectionOrder.AUTO),
    "serialization_output_folder": _one(""),
    "compilation_poplar_options": _one({}),
    "gcl_poplar_options": _one({}),
    "convolutions.poplar_options": _one({}),
    "matmuls.poplar_options": _one({}),
    "matmuls.clear_pass_type": _one(False),
    "pooling.poplar_options": _one({}),
    "slices.poplar_options": _one({}),
    "device_connection.type": _one(DeviceConnectionType.ALWAYS),
    "device_connection.version": _one(""),
    "device_connection.enable_remote_buffers": _one(False),
    "experimental.always_rearrange_copies_on_the_host": _one(False),
    "experimental.enable_remote_buffer_embedding": _one(False),
    "experimental.enable_prng_stability": _one(False),
    "experimental.multi_replica_distribution.process_count": _one(0),
    "experimental.multi_replica_distribution.process_index": _one(0),
    "floating_point_behaviour.inv": _one(False),
    "floating_point_behaviour.div0": _one(False),
    "floating_point_behaviour.oflo": _one(False),
    "floating_point_behaviour.nanoo": _one(False),
    "floating_point_behaviour.set_all": _one(False),
    "floating_point_behaviour.esr": _one(StochasticRoundingBehaviour.OFF),
    "io_tiles.num_io_tiles": _one(0),
    "io_tiles.place_ops_on_io_tiles": _one(False),
    "io_tiles.available_memory_proportion": _one(0.9),
    "ipu_model.compile_ipu_code": _one(True),
    "ipu_model.tiles_per_ipu": _one(0),
    "ipu_model.version": _one("ipu2"),
    "norms.use_stable_statistics": _one(False),
    "norms.experimental.distributed_batch_norm_replica_group_size": _one(1),
    "optimizations.math.fast": _one(False),
    "optimizations.math.dot_strength": _one(True),
    "optimizations.prefetch_data_streams": _one(True),
    "optimizations.combine_embedding_lookups": _one(False),
    "optimizations.combine_matmuls": _one(False),
    "optimizations.enable_graph_outlining": _one(True),
    "optimizations.merge_infeed_io_copies": _one(True),
    "optimizations.enable_gather_simplifier": _one(True),
    "optimizations.enable_dynamic_slice_replacement": _one(True),
    "optimizations.maximum_cross_replica_sum_buffer_size": _one(0),
    "optimizations.maximum_reduce_scatter_buffer_size": _one(0),
    "optimizations.maximum_all_gather_buffer_size": _one(0),
    "optimizations.maximum_inter_ipu_copies_buffer_size": _one(0),
    "optimizations.maximum_send_recv_cluster_size": _one(0),
    "optimizations.maximum_reduce_many_buffer_size": _one(0),
    "optimizations.minimum_remote_tensor_size": _one(128),
    "optimizations.merge_remote_buffers": _one(MergeRemoteBuffersBehaviour.IF_BENEFICIAL),
    "optimizations.triangular_solve_expander_block_size": _one(0),
    "optimizations.cholesky_block_size": _one(0),
    "optimizations.enable_fast_math": _one(False),
    "scheduling.algorithm": _one(SchedulingAlgorithm.CHOOSE_BEST),
    "scheduling.maximum_scheduler_lookahead_depth": _one(5),
    "scheduling.maximum_scheduler_search_space_size": _one(64),
}


class Group:
    """One category of attributes, the whole configuration included.

    Args:
        path: Its dotted name with a dot at the end; empty for the whole.
        values: The values of all attributes, shared by all categories.
    """

    _path: str
    _values: Dict[str, Any]

    def __init__(self, path: str, values: Dict[str, Any]) -> None:
        object.__setattr__(self, "_path", path)
        object.__setattr__(self, "_values", values)

    def __getattr__(self, name: str) -> Any:
        """A value, or a category below this one.

        Raises:
            AttributeError: If there is none of that name.
        """
        path = f"{self._path}{name}"
        if path in self._values:
            return self._values[path]
        if _is_category(path):
            return Group(f"{path}.", self._values)
        raise AttributeError(_unknown(path))

    def __setattr__(self, name: str, value: Any) -> None:
        """Set one value.

        Raises:
            ValueError: If there is none of that name, or options are not all text.
            TypeError: If the value has another type, subclasses included.
            AttributeError: If a whole category is assigned.
        """
        path = f"{self._path}{name}"
        if _is_category(path):
            raise AttributeError(f"{path} is a category of IPUConfig; set the attributes in it")
        attribute = ATTRIBUTES.get(path)
        if attribute is None:
            raise ValueError(_unknown(path))
        if type(value) not in attribute.types:
            expected = " or ".join(one.__name__ for one in attribute.types)
            raise TypeError(f"{path} has to be of type {expected}, got {type(value).__name__}")
        _check_items(path, value)
        self._values[path] = value


def defaults() -> Dict[str, Any]:
    """A new set of default values."""
    return {
        path: one.default.copy() if isinstance(one.default, (dict, list)) else one.default
        for path, one in ATTRIBUTES.items()
    }


def _check_items(path: str, value: Any) -> None:
    if isinstance(value, dict) and not all(type(word) is str for word in value.values()):
        raise ValueError(f"values of {path} have to be strings, got {value!r}")
    if isinstance(value, (list, tuple)) and not all(type(one) is int for one in value):
        raise TypeError(f"{path} has to be a list of int, got {value!r}")


def _is_category(path: str) -> bool:
    return any(known.startswith(f"{path}.") for known in ATTRIBUTES)


def _unknown(path: str) -> str:
    names: List[str] = list(ATTRIBUTES)
    names += [name.rpartition(".")[0] for name in ATTRIBUTES if "." in name]
    near = difflib.get_close_matches(path, names, 1)
    return f"IPUConfig has no attribute {path!r}" + (f"; did you mean {near[0]!r}?" if near else "")
