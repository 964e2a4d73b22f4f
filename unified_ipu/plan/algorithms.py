"""How gradients of several ranks are summed: what is possible where, and what "auto" means."""

from __future__ import annotations

from typing import List, Sequence, Tuple

from unified_ipu.plan.plan import Plan

Row = Tuple[str, str, str]

_ONE, _SINGLE, _SEVERAL = (4,), (1, 1), (2, 2)
_TOPOLOGIES = (
    ("one host", _ONE),
    ("several hosts, one rank on each", _SINGLE),
    ("several hosts, more ranks on one", _SEVERAL),
)


def why_no_algorithm(algorithm: str, transport: str, ranks_per_host: Sequence[int]) -> str:
    """Why these ranks cannot sum gradients that way, or "".

    Args:
        algorithm: "direct", "ring" or "hierarchical".
        transport: "shm" or "c10d".
        ranks_per_host: Number of ranks of each host.
    """
    if algorithm == "ring" and transport == "shm":
        return (
            "ranks that share memory add up where the gradients lie; a ring would move each twice, "
            "and is slower the more ranks there are"
        )
    if algorithm == "hierarchical" and len(ranks_per_host) == 1:
        return "it joins several hosts, and all ranks are on one"
    return ""


def automatic_algorithms(
    transport: str, ranks_per_host: Sequence[int], *, deterministic: bool = False
) -> Tuple[str, ...]:
    """What "auto" chooses from: several are measured, and the first is taken unless one is faster.

    Args:
        transport: "shm" or "c10d".
        ranks_per_host: Number of ranks of each host.
        deterministic: Whether nothing may depend on a measurement.
    """
    if transport == "shm" or len(ranks_per_host) == 1:
        return ("direct",)
    names: Tuple[str, ...] = ("direct", "ring")
    if max(ranks_per_host) > 1:
        names = ("hierarchical", *names)
    return names[:1] if deterministic else names


def algorithm_rows(plan: Plan) -> List[Row]:
    """Topology, algorithm and why, for ``Plan.explain``."""
    rows: List[Row] = []
    for title, ranks_per_host in _TOPOLOGIES:
        transport = plan.comms.transport
        if transport == "auto":
            transport = "shm" if len(ranks_per_host) == 1 else "c10d"
        if transport == "shm" and len(ranks_per_host) > 1:
            rows.append((title, "refused", "hosts share no memory"))
            continue
        rows.append((title, *_algorithm_of(plan, transport, ranks_per_host)))
    return rows


def _algorithm_of(plan: Plan, transport: str, ranks_per_host: Sequence[int]) -> Tuple[str, str]:
    asked = plan.comms.algorithm
    if asked != "auto":
        problem = why_no_algorithm(asked, transport, ranks_per_host)
        return ("refused", problem) if problem else (asked, f"as asked, over {transport}")
    names = automatic_algorithms(transport, ranks_per_host, deterministic=plan.deterministic)
    if len(names) > 1:
        return " | ".join(names), f"over {transport}, by measurement before the first update"
    why = "; not measured, since deterministic = true" if len(ranks_per_host) > 1 else ""
    return names[0], f"over {transport}{why}"
