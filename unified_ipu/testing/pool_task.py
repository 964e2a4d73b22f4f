"""What a worker of the pool calls; alone in its module, which the worker loads by its file."""

from __future__ import annotations

from typing import Any, Dict

from unified_ipu.testing.ranks import Scenario, rank_of
from unified_ipu.testing.subject import Subject
from unified_ipu.world import World


def call_scenario(
    world: World, *, subject: Subject, target: str, scenario: Scenario, arguments: Dict[str, Any]
) -> Any:
    """Return ``scenario(rank, **arguments)``."""
    return scenario(rank_of(subject, world, target=target), **arguments)
