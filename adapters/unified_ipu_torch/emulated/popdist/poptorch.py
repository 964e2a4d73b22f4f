"""``popdist.poptorch``: options whose replicas and processes are PopRun's.

Source: PopTorch 3.4, ``tests/popdist_test.py`` (what is refused, and with which words).
"""

from __future__ import annotations

from typing import Any, Dict, NoReturn, Optional

from unified_ipu_torch.emulated import popdist
from unified_ipu_torch.emulated.poptorch.option_groups import _DistributedOptions
from unified_ipu_torch.emulated.poptorch.options import Options as _Options
from unified_ipu_torch.emulated.poptorch.values import OptionsDict


def _refuse(name: str) -> NoReturn:
    raise RuntimeError(f"Cannot call `{name}` with popdist.poptorch.Options")


class _FromPopRun(_DistributedOptions):
    """Processes as PopRun started them; cannot be changed."""

    def __init__(self) -> None:
        OptionsDict.__init__(
            self,
            num_distributed_processes=popdist.getNumInstances(),
            distributed_process_id=popdist.getInstanceIndex(),
            ipuof_configs={},
        )

    def disable(self) -> NoReturn:
        """Refused."""
        _refuse("Distributed.disable")

    def setEnvVarNames(self, *_: Any, **__: Any) -> NoReturn:
        """Refused."""
        _refuse("Distributed.setEnvVarNames")

    def configureProcessId(self, *_: Any, **__: Any) -> NoReturn:
        """Refused."""
        _refuse("Distributed.configureProcessId")


class Options(_Options):
    """``poptorch.Options`` with what PopRun decides already decided.

    Args:
        ipus_per_replica: IPUs of one replica of the model; None: as PopRun was told.

    Raises:
        RuntimeError: If PopRun was told another number.
    """

    def __init__(self, ipus_per_replica: Optional[int] = None) -> None:
        if ipus_per_replica is not None and popdist.isPopdistEnvSet():
            told = popdist.getNumIpusPerReplica()
            if ipus_per_replica != told:
                raise RuntimeError(
                    f"ipus_per_replica={ipus_per_replica} differs from the {told} of poprun's "
                    "--ipus-per-replica"
                )
        super().__init__()
        self._distributed = _FromPopRun()
        self.set(replication_factor=popdist.getNumLocalReplicas())

    def replicationFactor(self, *_: Any, **__: Any) -> NoReturn:
        """Refused."""
        _refuse("replicationFactor")

    def useIpuId(self, *_: Any, **__: Any) -> NoReturn:
        """Refused."""
        _refuse("useIpuId")

    def toDict(self) -> Dict[str, Any]:
        """Everything in one table, the device included."""
        was_frozen = self._is_frozen
        self._unfreeze()
        self.createOrSet(ipu_id=popdist.getDeviceId())
        if was_frozen:
            self._freeze()
        return super().toDict()
