"""Devices in a session: whether a program can have one, and the links of emulated ones."""

from __future__ import annotations

from typing import Any

from unified_ipu.adapter import Adapter
from unified_ipu.comms import Communicator
from unified_ipu.device import connect_fabric
from unified_ipu.errors import PlanError
from unified_ipu.plan import Plan, runs_whole_calls
from unified_ipu.report import missing_for_ipus


class Links:
    """The processes of a session as the links between their emulated devices.

    Args:
        communicator: Of all processes.
    """

    def __init__(self, communicator: Communicator) -> None:
        self.rank = communicator.rank
        self.size = communicator.size
        self._communicator = communicator

    def sum(self, array: Any, name: str = "") -> Any:
        """The sum of a numpy array over all processes.

        Raises:
            CollectiveError: If another process sums something else: graphs that are not the same.
        """
        return self._communicator.all_reduce(array, name=f"device sum {name}".strip())


def link_devices(plan: Plan, communicator: Communicator) -> None:
    """Give the emulated devices of this process their links; real ones have their own."""
    if plan.target == "ipu-emulated":
        connect_fabric(Links(communicator))


def unlink_devices(plan: Plan) -> None:
    """Take the links away when the session ends."""
    if plan.target == "ipu-emulated":
        connect_fabric(None)


def choose_target(adapter: Adapter, plan: Plan) -> str:
    """The target of a program; "auto" is the best host target.

    Raises:
        PlanError: If the adapter cannot use it here, with what is missing, or refuses the plan.
    """
    targets = adapter.targets()
    target: str = plan.target
    if target == "auto":
        target = next((name for name in targets if not runs_whole_calls(name)), "auto")
    if target not in targets:
        missing = missing_for_ipus() if target == "ipu" else ()
        why = f"; {'; '.join(missing)}" if missing else ""
        raise PlanError(
            f"target = {target!r}: adapter {adapter.name!r} can use {', '.join(targets)} here{why}"
        )
    refused = adapter.lower(plan, target).refused
    if refused:
        reasons = "; ".join(f"{field}: {reason}" for field, reason in refused)
        raise PlanError(f"adapter {adapter.name!r} on {target!r} refuses {reasons}")
    return target
