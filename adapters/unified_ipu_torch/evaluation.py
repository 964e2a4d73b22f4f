"""Evaluation mode that leaves a model exactly as it was."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Iterator, List, Tuple

import torch


@contextmanager
def evaluation_mode(model: torch.nn.Module) -> Iterator[None]:
    """Evaluate without gradients; flags and buffers of every module come back as they were.

    A module that the user put into evaluation mode by itself stays so, and a buffer that moves in
    evaluation too (a counter in ``forward``) is put back.
    """
    modules = list(model.modules())
    flags = [module.training for module in modules]
    buffers = _buffers(modules)
    copies = [buffer.clone() for _, _, buffer in buffers]
    versions = [version_of(buffer) for _, _, buffer in buffers]
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        if was_training:
            model.train()
        for module, flag in zip(modules, flags):
            if module.training != flag:
                module.training = flag
        with torch.no_grad():
            for (owner, name, buffer), copy, version in zip(buffers, copies, versions):
                if version_of(buffer) != version:
                    buffer.copy_(copy)
                if getattr(owner, name, None) is not buffer:
                    setattr(owner, name, buffer)


def version_of(tensor: torch.Tensor) -> int:
    """How often a tensor was changed in place."""
    # Tensors made under torch.inference_mode count no versions; they can't be changed outside it.
    return 0 if tensor.is_inference() else tensor._version  # noqa: SLF001 torch has no other way


def _buffers(modules: List[torch.nn.Module]) -> List[Tuple[torch.nn.Module, str, torch.Tensor]]:
    return [
        (module, name, buffer)
        for module in modules
        for name, buffer in module.named_buffers(recurse=False)
    ]
