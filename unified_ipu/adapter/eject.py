"""What an adapter needs to write a plan as a plain script of its SDK, and what it hands back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Mapping, Protocol, Tuple, runtime_checkable

from unified_ipu.adapter.contract import Job, Lowering
from unified_ipu.plan import Plan


@dataclass(frozen=True)
class EjectRequest:
    """What a script compiled and fitted, with the means to write its objects as text.

    Args:
        job: As ``session.compile`` got it.
        model: Expression that makes the model anew.
        rebuilt: Makes it anew, to be compared with the one that the job has.
        write: ``(value, what it is) -> expression``: imports what the expression needs, and
            refuses by name what cannot be written as text.
        plan: Of the run.
        lowering: The plan as the SDK's own calls.
        stem: Name of the new script, without ``.py``; of the files beside it too.
        changes_rate: Whether the factor on the learning rate changes from call to call.
    """

    job: Job
    model: str
    rebuilt: Callable[[], Any]
    write: Callable[[Any, str], str]
    plan: Plan
    lowering: Lowering
    stem: str = "native"
    changes_rate: bool = False


@dataclass(frozen=True)
class NativeText:
    """The part of a script that talks to an SDK.

    Args:
        sdk: What readers call it: ``"PopTorch"``.
        imports: Lines, in any order.
        definitions: Two things, and what they need: a function ``units_of(targets)`` that returns
            the weight in W of each row, float64 ``[rows]``; and a class ``Device`` without
            arguments, with ``run(factor, inputs, targets, coefficients) -> loss`` (one call, every
            array with all its rows on axis 0, every learning rate times ``factor``; the loss is
            the sum over its updates) and ``save(path)``.
        suffix: Of the file that ``save`` writes, such as ``".pt"``.
        notes: What a reader should know, one sentence each.
        files: What the script reads, by the suffix of the files beside it.
    """

    sdk: str
    imports: Tuple[str, ...]
    definitions: str
    suffix: str
    notes: Tuple[str, ...] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)


@runtime_checkable
class Ejects(Protocol):
    """An adapter that can write its lowering as a script; not every adapter has to."""

    def eject(self, request: EjectRequest) -> NativeText:
        """Write what runs one process of the device.

        Raises:
            CapabilityError: If something of the job cannot be written, with what to change.
        """
        ...
