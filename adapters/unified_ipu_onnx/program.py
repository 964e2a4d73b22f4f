"""A compiled graph: a list of steps over numbered places, and how it is run.

A step is a function with the places it reads and writes. Attributes were parsed when the graph was
compiled, which is most of what an interpreter of the file would spend its time with.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple, Union

from unified_ipu_onnx.errors import of_node

ABSENT = 0  # place of inputs that are not given; always None
UNWANTED = 1  # place of outputs that nobody reads

Environment = List[Any]
# Function, places read (None: the function is given the environment), place or places written,
# places that nothing reads afterwards, node.
Sealed = Tuple[
    Callable[..., Any],
    Optional[Tuple[int, ...]],
    Union[int, Tuple[int, ...]],
    Tuple[int, ...],
    Tuple[str, str],
]


@dataclass
class Step:
    """One call, while the graph is being compiled.

    Attributes:
        function: Called with the values of ``reads``, or with the environment if it is ``scoped``.
        reads: Places of its inputs; of a scoped one everything that its inner graphs read too.
        writes: Places of its outputs; one if the function returns one value.
        label: Node that it comes from.
        op_type: Of that node.
        scoped: Whether it runs inner graphs.
        returns_tuple: Whether the function returns a value for each of ``writes``.
    """

    function: Callable[..., Any]
    reads: Tuple[int, ...]
    writes: Tuple[int, ...]
    label: str
    op_type: str
    scoped: bool = False
    returns_tuple: bool = False


@dataclass
class Subgraph:
    """Body of an ``If``, ``Loop`` or ``Scan``: steps over the places of the graph around it.

    Attributes:
        inputs: Places of its formal inputs.
        outputs: Places of its results.
        steps: To run in order.
        sealed: The same, as they run.
    """

    inputs: Tuple[int, ...]
    outputs: Tuple[int, ...]
    steps: List[Step] = field(default_factory=list)
    sealed: Tuple[Sealed, ...] = ()

    def run(self, environment: Environment, *arguments: Any) -> List[Any]:
        """Run it once with these inputs; what is around it is visible."""
        for place, argument in zip(self.inputs, arguments):
            environment[place] = argument
        execute(self.sealed, environment)
        return [environment[place] for place in self.outputs]

    def outer_reads(self) -> Tuple[int, ...]:
        """Places of the graph around it that it reads."""
        own = {*self.inputs, *(place for step in self.steps for place in step.writes)}
        read = {place for step in self.steps for place in step.reads} | set(self.outputs)
        return tuple(sorted(read - own))


def execute(steps: Sequence[Sealed], environment: Environment) -> None:
    """Run steps in order; results are left in ``environment``.

    Raises:
        DataError: If an operator cannot compute what it is given.
    """
    node, reads = ("", ""), None
    try:
        for function, reads, writes, free, node in steps:  # noqa: B007  read when it fails
            if reads is None:
                result = function(environment)
            else:
                result = function(*[environment[place] for place in reads])
            if writes.__class__ is int:
                environment[writes] = result
            else:
                for place, value in zip(writes, result):  # type: ignore[arg-type]  # a tuple here
                    environment[place] = value
            for place in free:
                environment[place] = None
    except Exception as error:
        told = of_node(error, *node, [environment[place] for place in reads or ()])
        if told is error:
            raise
        raise told from error


def without_unused(steps: Sequence[Step], outputs: Sequence[int]) -> List[Step]:
    """Leave out steps whose results nobody reads."""
    wanted: Set[int] = set(outputs)
    kept: List[Step] = []
    for step in reversed(steps):
        if wanted.intersection(step.writes):
            wanted.update(step.reads)
            kept.append(step)
    wanted -= {ABSENT}
    return kept[::-1]


def seal(steps: Sequence[Step], keep: Sequence[int], *, free: bool = True) -> Tuple[Sealed, ...]:
    """Put steps into the form that runs, freeing each result after its last use.

    Args:
        steps: In order.
        keep: Places that outlive the steps: outputs, and what the caller owns.
        free: Whether to free at all.
    """
    last: Dict[int, int] = {}
    for index, step in enumerate(steps):
        for place in (*step.reads, *step.writes):
            last[place] = index
    # Only what a step wrote may go: weights, constants and inputs belong to the caller.
    written = {place for step in steps for place in step.writes}
    frees: Dict[int, List[int]] = {}
    for place in written - {ABSENT, UNWANTED, *keep} if free else ():
        frees.setdefault(last[place], []).append(place)
    return tuple(
        (
            step.function,
            None if step.scoped else step.reads,
            step.writes if step.returns_tuple else step.writes[0],
            tuple(frees.get(index, ())),
            (step.label, step.op_type),
        )
        for index, step in enumerate(steps)
    )
