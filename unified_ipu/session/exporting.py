"""A program's model as an ONNX file: the first rank writes, all ranks agree on how it went."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, Optional, Union

from unified_ipu.adapter import Capability, Executor, Support, load_adapter
from unified_ipu.comms import Communicator
from unified_ipu.errors import CapabilityError, ConfigError, UnifiedIpuError
from unified_ipu.session.agreement import shared_buffers


def export_onnx(
    executor: Executor, path: Union[str, Path], *, adapter: str, communicator: Communicator
) -> None:
    """Write the model as it is now, with the buffers as all ranks together see them; collective.

    Args:
        executor: Of the program.
        path: Where to; an existing file is replaced.
        adapter: Name of the program's adapter.
        communicator: Of all replicas.

    Raises:
        CapabilityError: If the adapter cannot export.
        ConfigError: On all ranks, if the first one could not.
    """
    write: Any = getattr(executor, "export_onnx", None)
    level = load_adapter(adapter).support.get(Capability.ONNX_EXPORT, Support.NOT_WRITTEN)
    if write is None or not level.is_usable:
        raise CapabilityError(
            adapter,
            f"export to ONNX is {level.value}; keep the weights with program.save(folder), or use "
            "the exporter of the framework on the trained model",
        )
    communicator.barrier(name="program.export_onnx, which every rank must call")
    error: Optional[Exception] = None
    with communicator.phase("saving"):
        with shared_buffers(executor, communicator):
            if communicator.rank == 0:
                try:
                    write(Path(path))
                except (UnifiedIpuError, OSError) as caught:
                    error = caught
        mine: Dict[str, str] = {} if error is None else {"error": str(error)}
        told = communicator.all_gather_value(mine)[0]
    if isinstance(error, UnifiedIpuError):
        raise error
    if told:
        raise ConfigError(
            f"the first rank could not write {str(path)!r}: {told['error']}"
        ) from error
