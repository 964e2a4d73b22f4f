"""What a model must not be, and what its user should know about it before training."""

from __future__ import annotations

from typing import Any, List, Sequence, Tuple

from unified_ipu.errors import ConfigError
from unified_ipu_tensorflow.names import all_layers, is_batch_normalization


def check_model(model: Any, num_replicas: int) -> None:
    """Refuse layers that reduce over replicas by themselves.

    Args:
        model: The user's.
        num_replicas: Over the world.

    Raises:
        ConfigError: Naming the layer.
    """
    for name, layer in all_layers(model):
        if num_replicas > 1 and bool(getattr(layer, "synchronized", False)):
            raise ConfigError(
                f"layer {name!r} has synchronized=True, which needs a tf.distribute strategy that "
                "is not there; set synchronized=False (statistics are then those of one "
                "micro-batch), or run with mesh.data = 1"
            )


def layers_that_see_the_micro_batch(model: Any) -> Tuple[str, ...]:
    """Sentences about layers whose result depends on how rows are cut into micro-batches."""
    norms: List[str] = []
    drops: List[str] = []
    for name, layer in all_layers(model):
        if is_batch_normalization(layer) and layer.trainable:
            norms.append(name)
        if is_random(layer):
            drops.append(name)
    notes = []
    if norms:
        notes.append(
            f"batch statistics are those of a micro-batch ({_listed(norms)}): results depend on "
            "batch.micro_batch_size"
        )
    if drops:
        notes.append(
            f"random layers are drawn for a micro-batch ({_listed(drops)}): masks depend on "
            "batch.micro_batch_size, not on the number of replicas"
        )
    return tuple(notes)


def is_random(layer: Any) -> bool:
    """Whether a layer draws random numbers in training."""
    kinds = {kind.__name__ for kind in type(layer).__mro__}
    is_noise = any("Dropout" in kind or kind.startswith("Gaussian") for kind in kinds)
    rates = [getattr(layer, name, 0.0) or 0.0 for name in ("rate", "stddev")]
    recurrent = [getattr(layer, name, 0.0) for name in ("dropout", "recurrent_dropout")]
    by_rate = [rate for rate in recurrent if isinstance(rate, float)]
    return (is_noise and any(rates)) or any(by_rate)


def _listed(names: Sequence[str]) -> str:
    return f"{names[0]!r}" if len(names) == 1 else f"{names[0]!r} and {len(names) - 1} more"
