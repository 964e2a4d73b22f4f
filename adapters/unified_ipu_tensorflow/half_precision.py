"""Forward in half precision by Keras' own dtype policies; weights, losses, results in float32."""

from __future__ import annotations

import copy
import sys
from contextlib import ExitStack, contextmanager
from typing import Any, Iterator, List, Mapping

import tensorflow as tf

from unified_ipu.errors import CapabilityError, ConfigError
from unified_ipu_tensorflow.errors import NAME
from unified_ipu_tensorflow.keras_generation import PACKAGES, is_keras, trainable_of
from unified_ipu_tensorflow.names import all_layers

_HALF = (tf.float16, tf.bfloat16)
_HALF_NAMES = ("float16", "bfloat16")
_MASK = "_keras_mask"


@contextmanager
def dtype_policy(compute: str) -> Iterator[None]:
    """Make Keras layers compute in that type inside; ``"float32"`` leaves the user's policy.

    Args:
        compute: ``"float32"``, ``"bfloat16"`` or ``"float16"``; weights are float32 in any case.
    """
    with ExitStack() as stack:
        if compute != "float32":
            for policies in _generations():
                stack.callback(policies.set_global_policy, policies.global_policy())
                policies.set_global_policy(f"mixed_{compute}")
        yield


def _generations() -> List[Any]:
    """Modules that hold a global policy; TensorFlow's own Keras first."""
    found = [tf.keras.mixed_precision]
    for name in PACKAGES:
        keras = sys.modules.get(name)
        policies = getattr(keras, "mixed_precision", None)
        # Keras 3 may run on another framework, whose adapter has rules of its own; the package
        # behind TensorFlow 2.6 shares the policy of tf.keras, and has no name for it.
        if hasattr(policies, "set_global_policy") and _runs_on_tensorflow(keras):
            found.append(policies)
    return found


def _runs_on_tensorflow(keras: Any) -> bool:
    backend = getattr(getattr(keras, "config", None), "backend", None)
    return backend is None or str(backend()) == "tensorflow"


def check_types(model: Any, compute: str) -> None:
    """Refuse a model whose layers do not compute in the type that the plan asks for.

    Layers in float32 are allowed beside the others: that is how Keras keeps a softmax exact.

    Args:
        model: The user's.
        compute: Of the plan.

    Raises:
        CapabilityError: If no layer computes in that type, or one in another half type.
        ConfigError: If something is trained that is not float32.
    """
    kinds = {name: str(getattr(layer, "compute_dtype", "") or "") for name, layer in _leaves(model)}
    for name, kind in kinds.items():
        if kind in _HALF_NAMES and kind != compute:
            raise CapabilityError(
                NAME,
                f"layer {name!r} computes in {kind}, but the plan says {compute}; set "
                f'precision.compute = "{kind}", or the dtype policy of Keras to "float32"',
            )
    if compute == "float32":
        return
    if compute not in kinds.values():
        raise CapabilityError(
            NAME,
            f"no layer of the model computes in {compute}, which precision.compute asks for; build "
            "the model of Keras layers inside session.scope(), which sets the dtype policy, or set "
            'precision.compute = "float32"',
        )
    for variable in trainable_of(model):
        if tf.as_dtype(variable.dtype) != tf.float32:
            raise ConfigError(
                f"variable {variable.name!r} has dtype {tf.as_dtype(variable.dtype).name}; "
                f'precision.compute = "{compute}" keeps master weights in float32'
            )


def _leaves(model: Any) -> Iterator[Any]:
    found = [each for each in all_layers(model) if type(each[1]).__name__ != "InputLayer"]
    return iter(found or ([("model", model)] if is_keras(model) else []))


def widened(tree: Any) -> Any:
    """The same tree with float32 in the place of half precision; other objects stay."""
    if tf.is_tensor(tree):
        return _widened_tensor(tree) if tree.dtype in _HALF else tree
    if isinstance(tree, dict):
        wide = {key: widened(child) for key, child in tree.items()}
        return _with_items(tree, wide) if any(wide[key] is not tree[key] for key in tree) else tree
    if isinstance(tree, (tuple, list)):
        children = [widened(child) for child in tree]
        if all(wide is child for wide, child in zip(children, tree)):
            return tree
        return type(tree)(*children) if hasattr(tree, "_fields") else type(tree)(children)
    return tree


def _with_items(tree: Any, items: Mapping[Any, Any]) -> Any:
    found = copy.copy(tree)  # of its own class, which may give its items as attributes too
    for key, item in items.items():
        found[key] = item
    return found


def _widened_tensor(tensor: Any) -> Any:
    wide = tf.cast(tensor, tf.float32)
    mask = getattr(tensor, _MASK, None)
    if mask is not None:
        setattr(wide, _MASK, mask)
    return wide
