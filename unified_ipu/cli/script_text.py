"""The text of a script for an SDK: what is the same for all, around what an adapter wrote."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any, List, Set, Tuple

from unified_ipu.adapter import NativeText, literal
from unified_ipu.cli.local_modules import file_of
from unified_ipu.cli.recorded import Recorded
from unified_ipu.cli.writing import Writer
from unified_ipu.cli.written_data import DataText
from unified_ipu.cli.written_order import order_imports, order_text
from unified_ipu.cli.written_rate import rate_text

STANDARD = ("functools", "hashlib", "math", "pathlib", "random", "sys", "typing")

_MAIN = '''\
def main():
    """Train, and save the weights in the working directory."""
    data, device = Data(), Device()
    happened = 0
    for epoch in range(EPOCHS):
        loss, first = 0.0, happened
        for inputs, targets, coefficients in calls_of(data, epoch):
            loss += device.run(rate_factor(happened), inputs, targets, coefficients)
            happened += len(coefficients) // GLOBAL_BATCH
        print(f"epoch {epoch}: loss {loss / max(1, happened - first):.6f} an update")
    device.save(WEIGHTS)


if __name__ == "__main__":
    main()
'''


def left_out(recorded: Recorded) -> List[str]:
    """What of ``fit`` is not in the script, a sentence or none."""
    if not recorded.left_out:
        return []
    words = ", ".join(f"{name}=" for name in recorded.left_out)
    return [f"not written of fit: {words}"]


def script_text(
    recorded: Recorded,
    native: NativeText,
    data: DataText,
    writer: Writer,
    *,
    script: Path,
    written: Path,
) -> str:
    """Put a script together.

    Args:
        recorded: What the lowered script did.
        native: What the adapter wrote.
        data: How rows are read.
        writer: Knows the imports of what was written.
        script: The lowered script.
        written: Where the new one will be.

    Raises:
        ConfigError: If the schedule cannot be written.
    """
    plan, size = recorded.plan, recorded.loader.size or 0
    shuffle, seeds = plan.data.shuffle, data.seeds
    rate = rate_text(
        recorded.program.schedule,
        plan,
        size=recorded.batch.global_batch_size,
        writer=writer,
        script=script,
    )
    imports = {
        "import numpy as np",
        *order_imports(size, shuffle=shuffle, seeds=seeds),
        *data.imports,
        *native.imports,
        *writer.imports,
    }
    top = [
        _head(recorded, native, script),
        _import_text(imports, script.parent, written),
        _constants(recorded, native, written),
    ]
    rest = [
        order_text(size, shuffle=shuffle, seeds=seeds, reduction=plan.update.reduction),
        data.text,
        rate,
        native.definitions,
        _MAIN,
    ]
    blocks = ["\n\n".join(part.strip("\n") for part in top), *(part.strip("\n") for part in rest)]
    return "\n\n\n".join(blocks) + "\n"


def _head(recorded: Recorded, native: NativeText, script: Path) -> str:
    wrapped = [
        "\n".join(textwrap.wrap(f"{note[:1].upper()}{note[1:]}.", 86))
        for note in (*native.notes, *left_out(recorded))
    ]
    first = f"Train with {native.sdk} what {script.name} trains; `unified-ipu lower` wrote it."
    rest = (
        f"It needs {native.sdk} and nothing of unified_ipu. Behind a setting stands the field of\n"
        "the plan that it comes from."
    )
    return '"""' + "\n\n".join([first, rest, *wrapped]) + '\n"""\n'


def _import_text(imports: Set[str], folder: Path, written: Path) -> str:
    local = {line for line in imports if file_of(line.split()[1], folder) is not None}
    is_elsewhere = bool(local) and written.parent.resolve() != folder.resolve()
    if is_elsewhere:
        imports = {*imports, "import sys"}
    standard = {line for line in imports if line.split()[1].partition(".")[0] in STANDARD}
    path = {f"sys.path.insert(0, {literal(str(folder))})"} if is_elsewhere else set()
    blocks = (standard, imports - standard - local, path, local)
    return "\n\n".join("\n".join(sorted(block, key=_import_order)) for block in blocks if block)


def _import_order(line: str) -> Tuple[bool, str]:
    return line.startswith("from"), line


def _constants(recorded: Recorded, native: NativeText, written: Path) -> str:
    plan, batch = recorded.plan, recorded.batch
    size = recorded.loader.size or 0
    filled = batch.padded(size)
    what = f"of an epoch; {filled} rows of weight 0 complete the last" if filled else "of an epoch"
    values: List[Tuple[str, Any, str]] = [
        ("SEED", plan.seed, "seed"),
        ("SAMPLES", size, "of the training data"),
        ("GLOBAL_BATCH", batch.global_batch_size, "batch.global_batch_size"),
        ("MICRO_BATCH", batch.micro_batch_size, "batch.micro_batch_size"),
        ("REPLICAS", batch.num_replicas, "ipu.replicas_per_process"),
        ("ACCUMULATION", batch.accumulation_per_replica, "micro-batches of a replica an update"),
        ("UPDATES_PER_CALL", batch.updates_per_call, "batch.updates_per_call"),
        ("UPDATES", batch.num_updates(size), f"{what} (batch.remainder)"),
        ("EPOCHS", recorded.epochs, "of fit"),
    ]
    lines = [
        f"{name} = {value}  # {comment}"
        for name, value, comment in values
        if name != "ACCUMULATION" or name in native.definitions
    ]
    return "\n".join([*lines, f"WEIGHTS = {literal(written.stem + native.suffix)}"]) + "\n"
