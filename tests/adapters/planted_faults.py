"""Faults planted into a device: tests of the conformance kit that hold without them must fail."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Mapping

import pytest

from unified_ipu.testing.float_types import float_type
from unified_ipu.testing.ranks import rank_of
from unified_ipu.world import World


class OneRank:
    """The one rank of a scenario in the process of the test, where a fault is a patch.

    Args:
        subject: Of the adapter.
    """

    target = "ipu-emulated"

    def __init__(self, subject: Any) -> None:
        self._subject = subject
        self.dtype = float_type(subject, self.target)

    def run(self, scenario: Callable[..., Any], size: int = 1, **arguments: Any) -> List[Any]:
        """As of ``Ranks``."""
        assert size == 1
        rank = rank_of(self._subject, World(0, 0, 1, 1), target=self.target)
        return [scenario(rank, **arguments)]


@dataclass(frozen=True)
class Fault:
    """One way to get a device wrong.

    Args:
        plant: Patches it in.
        suite: Of the kit.
        test: That must notice, on one rank.
        arguments: Of the test.
    """

    plant: Callable[[Any], None]
    suite: Any
    test: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


def assert_noticed(fault: Fault, subject: Any, monkeypatch: Any, tmp_path: Any) -> None:
    """Run the test without the fault, which must hold, and with it, which must fail."""
    test = getattr(fault.suite(), fault.test)
    code = test.__code__
    wants_folder = "tmp_path" in code.co_varnames[: code.co_argcount]

    def run(name: str) -> None:
        folder: Dict[str, Any] = {"tmp_path": tmp_path / name} if wants_folder else {}
        test(ranks=OneRank(subject), **fault.arguments, **folder)

    run("without")
    fault.plant(monkeypatch)
    with pytest.raises(AssertionError):
        run("with")
