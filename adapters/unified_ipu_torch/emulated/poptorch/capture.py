"""What is watched while a model runs: its losses always, its operators while it is compiled.

A compiled program has no host in the middle of it: a value that is read there, or a shape that
depends on values, is refused. PopTorch refuses reads in the same words; of shapes it says that the
operator is not supported.

Source: PopTorch 3.4, ``poptorch/source/popart_canonicalization/LossOps.cpp`` (what is a loss),
``RemoveSurplusIdentityLosses.cpp`` (which one counts), ``RegisterAtenOverloads.cpp`` (reads).
"""

from __future__ import annotations

from typing import Any, Callable, Dict, FrozenSet, Iterable, List, Tuple

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from unified_ipu_torch.emulated.poptorch.context import Run
from unified_ipu_torch.emulated.poptorch.errors import Error

_LOSSES = (
    "nll_loss", "cross_entropy", "mse_loss", "l1_loss", "smooth_l1_loss", "binary_cross_entropy",
    "binary_cross_entropy_with_logits", "kl_div", "poisson_nll_loss", "hinge_embedding_loss",
    "soft_margin_loss", "multilabel_soft_margin_loss", "cosine_embedding_loss",
    "margin_ranking_loss", "triplet_margin_loss", "ctc_loss",
)  # fmt: skip
LOSS_FUNCTIONS = frozenset(getattr(torch.nn.functional, name) for name in _LOSSES)

_READ = "aten::_local_scalar_dense"
_FREE = frozenset({"aten::detach", "aten::alias", "aten::lift_fresh"})  # no operator of a device
_DYNAMIC = frozenset({"aten::nonzero", "aten::masked_select", "aten::_unique2", "aten::unique_dim"})


class LossWatch(TorchFunctionMode):
    """Tells a run of every loss of torch's own that it computes.

    Args:
        run: The pass.
    """

    def __init__(self, run: Run) -> None:
        super().__init__()
        self._run = run

    def __torch_function__(
        self, func: Any, types: Any, args: Tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run the function; keep its result if it is a loss."""
        if func is torch.nn.functional.one_hot:
            return _one_hot(*args, **(kwargs or {}))
        result = func(*args, **(kwargs or {}))
        if func in LOSS_FUNCTIONS and isinstance(result, torch.Tensor):
            self._run.add_loss(result)
        return result


class OperatorWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's
    """Knows of every tensor whether it is on the device, and which losses it depends on.

    Args:
        on_device: Parameters, buffers and inputs.
        on_operator: Told of everything the program computes.
    """

    def __init__(self, on_device: Iterable[torch.Tensor], on_operator: Callable[[], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self._on_operator = on_operator
        # Kept alive, so that no identity is used twice.
        self._alive: List[torch.Tensor] = []
        self._losses_behind: Dict[int, FrozenSet[int]] = {}
        self._num_losses = 0
        for tensor in on_device:
            self._mark(tensor, frozenset())

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run the operator, follow its result."""
        given = [t for t in _leaves((args, kwargs or {})) if isinstance(t, torch.Tensor)]
        is_on_device = not given or any(self.is_on_device(tensor) for tensor in given)
        if is_on_device:
            _refuse(func, args)
        result = func(*args, **(kwargs or {}))
        if is_on_device:
            if func.name().split(".")[0] not in _FREE:
                self._on_operator()
            behind = frozenset().union(*(self._behind(tensor) for tensor in given))
            for tensor in _leaves(result):
                if isinstance(tensor, torch.Tensor):
                    self._mark(tensor, behind | self._behind(tensor))
        return result

    def is_on_device(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor is computed by the program, rather than a constant of the host."""
        return id(tensor) in self._losses_behind

    def take_loss(self, loss: torch.Tensor) -> None:
        """Everything computed from this tensor depends on one more loss from now on."""
        self._mark(loss, self._behind(loss) | {self._num_losses})
        self._num_losses += 1

    def final_loss(self, losses: List[torch.Tensor]) -> int:
        """The position of the one loss that no other loss is computed from.

        Args:
            losses: In the order of ``take_loss``.

        Raises:
            Error: If there is none or more than one.
        """
        if not losses:
            raise Error("Couldn't find a loss in graph!", "poptorch_cpp_error")
        inner: FrozenSet[int] = frozenset()
        for position, loss in enumerate(losses):
            inner |= self._behind(loss) - {position}
        final = [position for position in range(len(losses)) if position not in inner]
        if len(final) != 1:
            raise Error(
                "Multiple independent losses found in graph. Graph must have one final loss. Wrap "
                "final graph loss in poptorch.identity_loss.",
                "poptorch_cpp_error",
            )
        return final[0]

    def _behind(self, tensor: torch.Tensor) -> FrozenSet[int]:
        return self._losses_behind.get(id(tensor), frozenset())

    def _mark(self, tensor: torch.Tensor, behind: FrozenSet[int]) -> None:
        self._alive.append(tensor)
        self._losses_behind[id(tensor)] = behind


def _one_hot(tensor: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    """As torch's, whose kernel reads the largest class on the host, to check or to find it.

    Raises:
        Error: If the number of classes would depend on values.
    """
    if num_classes < 1:
        raise Error(
            "OneHot num classes must be specified and must be constant. A compiled program has "
            "static shapes.",
            "poptorch_cpp_error",
        )
    found = torch.zeros(*tensor.shape, num_classes, dtype=torch.int64)
    return found.scatter_(-1, tensor.to(torch.int64).unsqueeze(-1), 1)


def _refuse(func: Any, args: Tuple[Any, ...]) -> None:
    name = func.name().split(".")[0]
    if name == _READ:
        raise Error(
            "aten::item is only supported in eager mode, but was intercepted in a static graph. "
            "This means an IPU to CPU copy was triggered before the end of the graph, for example "
            "by calling tensor.item(). Please ensure that any such copies are removed.",
            "poptorch_cpp_error",
        )
    if name in _DYNAMIC or (name == "aten::index" and _has_mask(args)):
        raise Error(
            f"{name} is not supported: the shape of its result depends on values, and a compiled "
            "program has static shapes. Use torch.where, or multiply with the mask.",
            "poptorch_cpp_error",
        )


def _has_mask(args: Tuple[Any, ...]) -> bool:
    return any(index is not None and index.dtype == torch.bool for index in args[1])


def _leaves(structure: Any) -> Iterable[Any]:
    if isinstance(structure, dict):
        structure = structure.values()
    elif not isinstance(structure, (list, tuple)):
        return [structure]
    return [leaf for item in structure for leaf in _leaves(item)]
