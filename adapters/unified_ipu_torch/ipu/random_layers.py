"""Random numbers in forward, which a device draws by itself: found before anything is trained."""

from __future__ import annotations

from typing import Any, Dict, List, Tuple

import torch
from torch.nn.modules.dropout import _DropoutNd
from torch.utils._python_dispatch import TorchDispatchMode

from unified_ipu_torch.tensors import plain_name

_CHANGE = (
    "a device draws by itself and cannot be given keys; set the rate to 0, or ipu.random_layers = "
    '"native" to train with its own masks all the same'
)


def random_layers(model: torch.nn.Module) -> List[str]:
    """Names of layers that are known to draw in training."""
    found = []
    for name, module in model.named_modules():
        rate = module.p if isinstance(module, _DropoutNd) else 0.0
        if isinstance(module, (torch.nn.MultiheadAttention, torch.nn.RNNBase)):
            rate = module.dropout
        is_training = module.training or not model.training  # then all of it is put into training
        if is_training and (rate > 0.0 or isinstance(module, torch.nn.RReLU)):
            found.append(plain_name(name))
    return found


def refusal(where: str) -> str:
    """What to say of random numbers."""
    return f"random numbers are drawn in {where}; {_CHANGE}"


class Drawing(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch gives it no types
    """Notes the operations that draw random numbers while it is active."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # likewise
        self.operations: List[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run the operation as ever."""
        del types
        if torch.Tag.nondeterministic_seeded in func.tags:
            self.operations.append(str(func))
        keywords: Dict[str, Any] = kwargs or {}
        return func(*args, **keywords)
