"""Which cores and how many threads each rank of a host gets; pure: any machine can be drawn.

Binding a rank to one core was measured and lost where other work shares the machine: the scheduler
can balance what is free. Binding to all cores of a memory node costs next to nothing and keeps a
rank beside its memory, so that is what ``auto`` does where there are several nodes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict, List, Mapping, Sequence, Tuple

from unified_ipu.errors import ConfigError
from unified_ipu.world import Core, Processors, format_cpus

BINDINGS = ("auto", "none", "core", "numa")
OPENMP = "OMP_NUM_THREADS"
THREAD_VARIABLES = (OPENMP, "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
TENSORFLOW_VARIABLES = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")


@dataclass(frozen=True)
class Placement:
    """What was decided for the ranks of a host.

    Args:
        bindings: Hardware threads of each rank, by rank; empty where none is bound.
        variables: That give each rank its share of the cores.
        note: What was decided, in a line; empty where nothing was.
    """

    bindings: Tuple[Tuple[int, ...], ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    note: str = ""


def place_ranks(
    processors: Processors, *, num_ranks: int, environ: Mapping[str, str], bind: str = "auto"
) -> Placement:
    """Deal the cores of a host to its ranks.

    Args:
        processors: What may be used of the host.
        num_ranks: Processes on it.
        environ: Its thread settings are kept.
        bind: ``"none"``, ``"core"`` (each rank to its own cores), ``"numa"`` (to the cores of a
            memory node) or ``"auto"``: to nodes, where that costs no rank a thread.

    Raises:
        ConfigError: If ``bind`` is another word, or there are fewer cores than ranks to bind.
    """
    if bind not in BINDINGS:
        raise ConfigError(f"bind: got {bind!r}, expected {' | '.join(BINDINGS)}")
    groups = _groups(processors, num_ranks, bind)
    threads = max(1, processors.count // num_ranks)
    if groups:
        threads = min(threads, *(_share(groups, group) for group in groups))
    bindings = tuple(_cpus(group) for group in groups)
    variables = _variables(environ, threads) if _matters(processors, num_ranks, bindings) else {}
    note = ""
    if variables or bindings or num_ranks > 1:
        note = _note(processors, num_ranks, environ, threads, bindings, bind)
    return Placement(bindings, variables, note)


def _groups(processors: Processors, num_ranks: int, bind: str) -> List[Tuple[Core, ...]]:
    """The cores of each rank; empty where none is bound."""
    if bind == "core":
        return _own_cores(processors, num_ranks)
    nodes = list(processors.nodes.values())
    if bind == "none" or len(nodes) == 1:
        return []
    # Ranks next to each other share a node; each node gets as many as its cores are worth.
    starts = [sum(len(node) for node in nodes[:index]) for index in range(len(nodes))]
    total = len(processors.cores)
    groups = []
    for rank in range(num_ranks):
        middle = ((2 * rank + 1) * total - 1) // (2 * num_ranks)  # of its share, in cores
        groups.append(nodes[max(i for i, start in enumerate(starts) if start <= middle)])
    if bind == "auto":
        most = max(1, processors.count // num_ranks)
        if min(_share(groups, group) for group in groups) < most:
            return []
    return groups


def _own_cores(processors: Processors, num_ranks: int) -> List[Tuple[Core, ...]]:
    total = len(processors.cores)
    if num_ranks > total:
        raise ConfigError(
            f"--bind core: {num_ranks} ranks on {total} usable cores; start at most {total} ranks "
            "here (mesh.data), or leave --bind out"
        )
    # By node, so that no rank lies on two of them where it can be avoided.
    cores = [core for node in processors.nodes.values() for core in node]
    each = total // num_ranks
    return [tuple(cores[rank * each : (rank + 1) * each]) for rank in range(num_ranks)]


def _share(groups: Sequence[Tuple[Core, ...]], group: Tuple[Core, ...]) -> int:
    """Cores a rank of those that have the same group."""
    return max(1, len(group) // groups.count(group))


def _cpus(group: Tuple[Core, ...]) -> Tuple[int, ...]:
    return tuple(sorted(cpu for core in group for cpu in core.cpus))


def _matters(processors: Processors, num_ranks: int, bindings: Tuple[Tuple[int, ...], ...]) -> bool:
    """Whether OpenMP would take more by itself: a thread for each hardware thread it sees."""
    return bool(bindings) or num_ranks * len(processors.cpus) > processors.count


def _variables(environ: Mapping[str, str], threads: int) -> Dict[str, str]:
    """Set what the user has not; MKL and OpenBLAS follow a setting of OpenMP by themselves."""
    found = {}
    given = environ.get(OPENMP, "")
    if not given:
        found = {name: str(threads) for name in THREAD_VARIABLES if not environ.get(name)}
    wanted = given if given.isdigit() and int(given) > 0 else str(threads)
    found.update({name: wanted for name in TENSORFLOW_VARIABLES if not environ.get(name)})
    return found


def _note(
    processors: Processors,
    num_ranks: int,
    environ: Mapping[str, str],
    threads: int,
    bindings: Tuple[Tuple[int, ...], ...],
    bind: str,
) -> str:
    count = processors.count
    given = [f"{name}={environ[name]}" for name in THREAD_VARIABLES if environ.get(name)]
    given += [f"{name}={environ[name]}" for name in TENSORFLOW_VARIABLES if environ.get(name)]
    said = f"{_counted(num_ranks, 'rank')} on {_counted(count, 'core')}"
    said += f", {_counted(threads, 'thread')} each"
    if given:
        said += f" but where the environment says {' '.join(given)}"
    elif num_ranks > count:
        said += ", so they take turns"
    said += f"; {_binding_words(bindings, bind)}"
    return said if given else f"{said} ({OPENMP} and --bind change that)"


def _binding_words(bindings: Tuple[Tuple[int, ...], ...], bind: str) -> str:
    if not bindings:
        return "not bound: one memory node" if bind == "numa" else "not bound to cores"
    spans: List[List[int]] = []
    for rank, cpus in enumerate(bindings):
        if spans and bindings[spans[-1][0]] == cpus:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    parts = [
        f"{'rank' if first == last else 'ranks'} {first if first == last else f'{first}-{last}'} "
        f"on {format_cpus(bindings[first])}"
        for first, last in spans
    ]
    return f"bound to cpus: {', '.join(parts)}"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
