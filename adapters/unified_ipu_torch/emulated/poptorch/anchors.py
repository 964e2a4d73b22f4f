"""Tensors of the graph that come back besides the outputs.

A graph of PopART has many more; these are the ones that the emulation has under the same names.

Source: PopART 3.4, ``willow/include/popart/names.hpp`` (prefixes).
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterable, List, Mapping, Sequence

import torch

from unified_ipu.device import Outputs, Position
from unified_ipu_torch.emulated.poptorch import host_tensors
from unified_ipu_torch.emulated.poptorch.errors import Error
from unified_ipu_torch.emulated.poptorch.settings import Anchor

GRADIENT, UPDATED, LOSS = "Gradient___", "UpdatedVar___", "loss"


def tensor_names(parameters: Iterable[str], inputs: Sequence[str], *, training: bool) -> List[str]:
    """Names of a program's tensors.

    Args:
        parameters: Of the model.
        inputs: Of its arguments.
        training: Whether the program trains.
    """
    weights = list(parameters)
    found = [f"input/{name}" for name in inputs] + weights
    if training:
        found += [LOSS, *(f"{GRADIENT}{name}" for name in weights)]
        found += [f"{UPDATED}{name}" for name in weights]
        found += ["scaledLearningRate0___default___FLOAT"]
        found += ["weightDecayScaleFactor0___default___FLOAT"]
    return found


def check(anchors: Sequence[Anchor], trained: Iterable[str], *, training: bool) -> None:
    """Refuse anchors that the emulation does not have.

    Args:
        anchors: Of the options.
        trained: Names of the weights that get a gradient.
        training: Whether the program trains.

    Raises:
        Error: Naming the first one, and those there are.
    """
    weights = list(trained)
    known = [LOSS, *weights, *(f"{p}{name}" for p in (GRADIENT, UPDATED) for name in weights)]
    for anchor in anchors:
        if not training or anchor.long_name not in known:
            raise Error(
                f"cannot anchor {anchor.long_name!r}; the emulation has, in training only: "
                f"{', '.join(known)}",
                "unified_ipu_emulation",
            )
        is_updated = anchor.long_name.startswith(UPDATED)
        if is_updated and anchor.selection.mode != "final":
            raise Error(
                f"{anchor.long_name!r} is anchored with OutputMode.Final only: it exists once an "
                "update, not once a micro-batch",
                "unified_ipu_emulation",
            )


class Anchors:
    """The anchored tensors of one call.

    Args:
        anchors: Which.
        add: The sum of two values.
    """

    def __init__(self, anchors: Sequence[Anchor], add: Callable[[Any, Any], Any]) -> None:
        self._kept = [(anchor, Outputs(anchor.selection, add)) for anchor in anchors]

    def take_pass(
        self,
        position: Position,
        loss: torch.Tensor,
        gradients: Mapping[str, torch.Tensor],
        weights: Mapping[str, torch.Tensor],
    ) -> None:
        """A micro-batch has been run.

        Args:
            position: Of it.
            loss: Its final loss.
            gradients: Of this micro-batch, times the loss scale; zero where it used no weight.
            weights: Before the update.
        """
        for anchor, outputs in self._kept:
            name = anchor.long_name
            if name == LOSS:
                value = loss
            elif name.startswith(GRADIENT):
                weight = name[len(GRADIENT) :]
                value = gradients.get(weight, torch.zeros_like(weights[weight]))
            elif name in weights:
                value = weights[name]
            else:
                continue
            outputs.take(position, [host_tensors.keep(value)])

    def take_update(
        self, positions: Iterable[Position], weights: Mapping[str, torch.Tensor]
    ) -> None:
        """An update has been applied.

        Args:
            positions: The last micro-batch of each replica.
            weights: After it.
        """
        places = list(positions)
        for anchor, outputs in self._kept:
            if anchor.long_name.startswith(UPDATED):
                value = weights[anchor.long_name[len(UPDATED) :]]
                for position in places:
                    outputs.take(position, [host_tensors.keep(value)])

    def joined(self) -> Dict[str, torch.Tensor]:
        """Each anchored tensor of the call by its short name."""
        return {
            anchor.short_name: host_tensors.join(outputs.blocks()[0])
            for anchor, outputs in self._kept
        }
