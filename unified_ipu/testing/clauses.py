"""The clauses of the six laws by number, and which of them an adapter cannot break."""

from __future__ import annotations

import re
from typing import Dict, Iterable, Tuple

NO_CLAUSE = "other"

CLAUSES: Dict[str, str] = {
    "L1.1": "a loss is a pair (S, W)",
    "L1.2": "a mean stands for (mean x W, W)",
    "L1.3": "one update uses sum of dS / sum of W",
    "L1.4": "the division happens once",
    "L1.5": "what does not count is not run",
    "L1.6": "W = 0: the update does not happen",
    "L1.7": "a gradient that is not finite ends all ranks",
    "L1.8": "the order inside an update",
    "L1.9": "the norm counts each parameter once",
    "L1.10": "what no rank used has no gradient",
    "L1.11": "penalties enter as W times the term",
    "L1.12": "batch statistics are of a micro-batch",
    "L2.1": "every sample once an epoch",
    "L2.2": "the order is keyed",
    "L2.3": "update u takes its own positions",
    "L2.4": "micro-batches are dealt in turn",
    "L2.5": "R counts replicas over the world",
    "L2.6": "no divisibility is asked for",
    "L2.7": "idle replicas are avoided or named",
    "L2.8": "evaluation keeps the source's order",
    "L2.9": "dropped and padded only where asked",
    "L2.10": "the last updates run as a shorter call",
    "L2.11": "the learning rate holds for a call",
    "L2.12": "a call never spans two epochs",
    "L2.13": "ids travel with the rows",
    "L2.14": "an epoch ends with a certificate",
    "L3.1": "what state is",
    "L3.2": "random numbers are keyed",
    "L3.3": "random numbers of the pipeline are keyed",
    "L3.4": "masks without state, or declared",
    "L3.5": "the same world goes on bit for bit",
    "L3.6": "another world goes on to rounding",
    "L3.7": "saving changes nothing",
    "L4.1": "collectives carry signatures",
    "L4.2": "a mismatch is an error on every rank",
    "L4.3": "a missing rank is named",
    "L4.4": "a rank that dies ends the job",
    "L4.5": "nothing waits longer than the time-out",
    "L4.6": "no input ends a process by a signal",
    "L4.7": "automatic choices are the first rank's",
    "L4.8": "every rank gets the same bits",
    "L5.1": "samples, W, rates and counts are equal",
    "L5.2": "one update is equal to rounding",
    "L5.3": "fifty updates are equal to rounding",
    "L5.4": "running statistics follow a known rule",
    "L5.5": "what cannot be done is refused first",
    "L5.6": "half precision is of forward and backward",
    "L6.1": "each sample counts once",
    "L6.2": "no collective in a step of evaluation",
    "L6.3": "a metric is a pair (sum, weight)",
    "L6.4": "predictions in the order of the samples",
    "L6.5": "structure and dtypes of predictions",
    "L6.6": "padding is cut off again",
    "L6.7": "evaluation changes no state",
}
"""What each clause says, in a few words; the laws themselves are in the documentation."""

CORE: Dict[str, str] = {
    "L2.5": "replicas are counted by the plan and the mesh",
    "L2.7": "the launcher and the plan choose the number of replicas",
    "L2.13": "ids are compared by the loader",
    "L3.3": "pipelines are seeded by the loader",
    "L4.1": "signatures are the transport's",
    "L4.3": "waits are the transport's",
    "L4.5": "time-outs are the transport's",
    "L4.7": "choices are made before an adapter is asked",
}
"""Clauses that hold whatever an adapter does, and why; tests of the core hold them."""


def clauses_of(name: str, marked: Iterable[str] = ()) -> Tuple[str, ...]:
    """Clauses of a test: the one in its name, and those it is marked with.

    Args:
        name: ``test_l1_3_...``, or a name without a clause.
        marked: Arguments of its mark ``holds``.

    Returns:
        Clauses, each once; ``("other",)`` without any.
    """
    found = re.match(r"test_l(\d)_(\d+)_", name)
    own = [f"L{found[1]}.{found[2]}"] if found else []
    return tuple(dict.fromkeys([*own, *marked])) or (NO_CLAUSE,)
