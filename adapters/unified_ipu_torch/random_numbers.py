"""torch's generators: keyed by micro-batch in training, left as they were by evaluation."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Iterator

import torch

_LARGEST = (1 << 63) - 1


def key_generators(seed: int, device: torch.device) -> None:
    """Make all random numbers that follow a function of ``seed``, on the CPU and ``device``."""
    torch.default_generator.manual_seed(seed & _LARGEST)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index or 0].manual_seed(seed & _LARGEST)


@contextmanager
def keyed_generators(seed: int, device: torch.device) -> Iterator[None]:
    """Key the generators inside, put their state back afterwards."""
    host = torch.default_generator.get_state()
    on_device = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    try:
        key_generators(seed, device)
        yield
    finally:
        torch.default_generator.set_state(host)
        if on_device is not None:
            torch.cuda.set_rng_state(on_device, device)
