"""``tensorflow.python.ipu.utils``, of which the lowering uses little.

Source: Graphcore's TensorFlow of SDK 3.4, ``python/ipu/utils.py``.
"""

from __future__ import annotations

from unified_ipu_tensorflow.emulated.ipu.config import (
    configure_ipu_system as configure_ipu_system,
    configured,
    ipus_of_device,
)
from unified_ipu_tensorflow.emulated.notes import note_once, refuse_others


def reset_ipu_seed(
    seed: int,
    device: str = "/device:IPU:0",
    cpu_device: str = "cpu",
    experimental_identical_replicas: bool = False,
) -> None:
    """Seed the random numbers of a device: here layers draw from the host's generators.

    Raises:
        TypeError: If the seed is no int.
        NotImplementedError: If all replicas should draw the same.
    """
    del device, cpu_device
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise TypeError(f"seed has to be an int, got {type(seed).__name__}")
    if experimental_identical_replicas:
        raise NotImplementedError("identical random numbers on all replicas are not emulated")
    note_once("reset_ipu_seed", "random layers draw from TensorFlow's own generators")


def get_num_of_ipus_in_device(ipu_device: str, device: str = "cpu") -> int:
    """How many IPUs a device has.

    Raises:
        RuntimeError: If the system is not configured.
    """
    del device
    values = configured()
    if values is None:
        raise RuntimeError("the IPU system is not configured; call configure_ipu_system first")
    return ipus_of_device(values, int(ipu_device.rpartition(":")[2]))


def running_on_ipu_model() -> bool:
    """False: an emulation is not Graphcore's IPU Model."""
    return False


__getattr__ = refuse_others("tensorflow.python.ipu.utils")
