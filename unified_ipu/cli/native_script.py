"""A plain script for an SDK, put together: constants, order, data, device, loop."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import Any, Dict, Mapping, Optional, Tuple

import numpy as np

from unified_ipu.adapter import (
    Adapter,
    EjectRequest,
    Ejects,
    Lowering,
    find_adapter,
)
from unified_ipu.cli.recorded import Recorded
from unified_ipu.cli.script_text import left_out, script_text
from unified_ipu.cli.writing import Writer
from unified_ipu.cli.written_data import data_text
from unified_ipu.errors import CapabilityError, ConfigError, PlanError

TARGET = "ipu"
ORDER = "update, then micro-batch of a replica, then replica, then row"

_TAKEN = """\
SEED SAMPLES GLOBAL_BATCH MICRO_BATCH REPLICAS ACCUMULATION UPDATES_PER_CALL UPDATES EPOCHS WEIGHTS
keys_of mixed order_of permuted sample_seeds rows_of calls_of rate_factor units_of seeded main
Data Device Sample Path NamedTuple Any np tf hashlib math random sys keras ipu popart poptorch
"""


@dataclass(frozen=True)
class NativeScript:
    """A script, and what belongs to it.

    Args:
        text: Of the script.
        sdk: That it is for.
        saved: Arrays to be saved beside it under the name ``data_file``, if any.
        data_file: See ``saved``.
        files: What else the adapter has it read, by suffix.
        notes: What a reader should know, one sentence each.
    """

    text: str
    sdk: str
    saved: Optional[Mapping[str, np.ndarray]]
    data_file: str
    files: Mapping[str, bytes]
    notes: Tuple[str, ...]


def native_script(
    recorded: Recorded, *, script: Path, written: Path, adapter: Optional[str] = None
) -> NativeScript:
    """Write what a recorded script would train as a script for one SDK.

    Args:
        recorded: What it compiled, loaded and fitted.
        script: The recorded script.
        written: Where the new one will be.
        adapter: Name, or None: the one that accepts the model.

    Raises:
        ConfigError: If something of it cannot be written as text.
        PlanError: If the SDK cannot do what the plan says.
        CapabilityError: If the adapter cannot write it.
    """
    job = recorded.program.job
    chosen = _adapter(recorded, adapter)
    lowering = _lowering(chosen, recorded)
    writer = Writer(script, recorded.calls, set(_TAKEN.split()))
    model = _model_text(job.model, writer)
    request = EjectRequest(
        job=job,
        model=model,
        rebuilt=lambda: _evaluated(model, writer),
        write=writer.write,
        plan=recorded.plan,
        lowering=lowering,
        stem=written.stem,
        changes_rate=(
            recorded.program.schedule is not None or recorded.plan.update.warmup_updates > 0
        ),
    )
    for name in ("objective", "weight", "trainable", "names"):
        if getattr(job, name) is not None:
            raise ConfigError(f"compile({name}=) is not written; leave it out")
    native = _ejecting(chosen).eject(request)
    data = data_text(recorded.loader, writer, script, f"{written.stem}.npz")
    notes = (*native.notes, *lowering.notes, *left_out(recorded))
    text = script_text(recorded, native, data, writer, script=script, written=written)
    return NativeScript(text, native.sdk, data.saved, f"{written.stem}.npz", native.files, notes)


def _adapter(recorded: Recorded, name: Optional[str]) -> Adapter:
    job, asked = recorded.program.job, recorded.program.adapter
    return find_adapter(job.model, name or asked)


def _ejecting(adapter: Adapter) -> Ejects:
    if not isinstance(adapter, Ejects):
        raise CapabilityError(
            adapter.name, "it writes no scripts; `unified-ipu plan explain` shows its native calls"
        )
    return adapter


def _lowering(adapter: Adapter, recorded: Recorded) -> Lowering:
    found = adapter.lower(recorded.plan, TARGET)
    if found.refused:
        reasons = "; ".join(f"{field}: {reason}" for field, reason in found.refused)
        raise PlanError(f"adapter {adapter.name!r} on {TARGET!r} refuses {reasons}")
    call = found.device_call
    if call is None or call.order != ORDER:
        raise CapabilityError(
            adapter.name, f"the order of rows in a call is not {ORDER!r}, the only one written"
        )
    if call.processes > 1:
        raise PlanError(
            f"mesh.data: {recorded.batch.num_replicas} replicas make {call.processes} processes; "
            "what is written is one process: set ipu.replicas_per_process to "
            f"{recorded.batch.num_replicas}"
        )
    return found


def _model_text(model: Any, writer: Writer) -> str:
    is_factory = callable(model) and not hasattr(type(model), "parameters")
    if is_factory and isinstance(model, (type, FunctionType)):
        return f"{writer.write(model, 'the model')}()"
    return writer.write(model, "the model")


def _evaluated(expression: str, writer: Writer) -> Any:
    names: Dict[str, Any] = {}
    exec("\n".join(writer.imports), names)  # noqa: S102 - what the new script will do
    return eval(expression, names)  # noqa: S307
