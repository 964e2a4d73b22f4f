"""What is compiled: the user's model with its loss and coefficients, or the model alone."""

from __future__ import annotations

from typing import Any, Callable, List, Sequence, Tuple

import torch

from unified_ipu.adapter import Tree, inputs_of, map_tree
from unified_ipu_torch.batches import call_model
from unified_ipu_torch.ipu.forms import Form
from unified_ipu_torch.objectives import take_loss


def leaves_of(tree: Tree) -> List[Any]:
    """Leaves in the order of ``filled``."""
    found: List[Any] = []

    def keep(leaf: Any) -> Any:
        found.append(leaf)
        return leaf

    map_tree(tree, keep)
    return found


def filled(tree: Tree, leaves: Sequence[Any]) -> Tree:
    """A tree of the same structure with other leaves."""
    values = iter(leaves)
    return map_tree(tree, lambda _: next(values))


class TrainingModule(torch.nn.Module):
    """Sees a divided loss: the values of the loss times coefficients that come in as an input.

    Args:
        model: A copy of the user's.
        form: Of the loss.
        structure: A batch, of which only the structure counts.
        identity_loss: Of PopTorch: marks what is differentiated.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        form: Form,
        structure: Tree,
        identity_loss: Callable[..., torch.Tensor],
    ) -> None:
        super().__init__()
        self.model = model
        self.criterion = getattr(form, "module", None)  # its class weights are buffers
        self.metric_names: List[str] = []  # filled in place: PopTorch runs a shallow copy
        self._form = form
        self._structure = map_tree(structure, lambda _: None)
        self._identity_loss = identity_loss

    def forward(
        self, coefficients: torch.Tensor, scale: torch.Tensor, *leaves: torch.Tensor
    ) -> Tuple[torch.Tensor, ...]:
        """Run one micro-batch.

        Args:
            coefficients: ``[rows]``, or ``[1]`` for a loss of one number.
            scale: ``[1]``: what makes the multiplied loss S again.
            leaves: Of the batch.

        Returns:
            The loss that is differentiated, S, and sum and weight of each metric.
        """
        values = self._form.forward(self.model, filled(self._structure, leaves))
        if self._form.weighs_rows:
            total = (values.loss * coefficients.to(values.loss.dtype)).sum()
        else:
            total = values.loss * coefficients[0].to(values.loss.dtype)
        self.metric_names[:] = [name for name, _, _ in values.pairs]
        # A number of Python would be compiled in and not be summed over micro-batches.
        zero = scale[0] * 0.0
        numbers = [zero + number for _, *pair in values.pairs for number in pair]
        return (self._identity_loss(total, reduction="none"), total * scale[0], *numbers)


class InferenceModule(torch.nn.Module):
    """The model alone; of one that returns its loss, the loss and the outputs.

    Args:
        model: A copy of the user's.
        structure: What it is called with, of which only the structure counts.
        returns_loss: Whether the whole batch goes in and a loss comes out.
    """

    def __init__(self, model: torch.nn.Module, structure: Tree, *, returns_loss: bool) -> None:
        super().__init__()
        self.model = model
        self._structure = map_tree(structure, lambda _: None)
        self._returns_loss = returns_loss

    def forward(self, *leaves: torch.Tensor) -> Any:
        """Run one micro-batch."""
        result = call_model(self.model, filled(self._structure, leaves))
        if not self._returns_loss:
            return result
        value, outputs = take_loss(result)
        return value if outputs is None else (value, outputs)


def inputs(tree: Tree, *, returns_loss: bool) -> Tree:
    """What a model is called with in evaluation."""
    return tree if returns_loss else inputs_of(tree)
