"""Every derived number of a plan, as text."""

from __future__ import annotations

from typing import List, Optional, Sequence, Tuple

from unified_ipu.errors import ConfigError
from unified_ipu.plan.algorithms import algorithm_rows
from unified_ipu.plan.batch import BatchPlan
from unified_ipu.plan.built import not_built
from unified_ipu.plan.device_batch import runs_whole_calls
from unified_ipu.plan.plan import Plan
from unified_ipu.plan.replicas import idle_warnings, replicas_per_process
from unified_ipu.plan.settings import PrecisionSettings
from unified_ipu.plan.validation import shown

MOST_NUMBERS = 12

Row = Tuple[str, str, str]


def explain(plan: Plan, *, samples: Optional[int] = None, replicas: Optional[int] = None) -> str:
    """Write down what follows from a plan.

    Args:
        plan: Any valid plan, features that are not built yet included.
        samples: Size of the data set; without it there are no numbers of an epoch.
        replicas: Over the world; otherwise ``mesh.data``, and while that is "auto" those of one
            process.

    Returns:
        Lines of text, each ended.

    Raises:
        PlanError: If the batch does not fit the replicas.
        ConfigError: If ``samples`` or ``replicas`` is less than 1, or an epoch has no update.
    """
    for name, count in (("samples", samples), ("replicas", replicas)):
        if count is not None and count < 1:
            raise ConfigError(f"{name}: got {count}; expected an integer >= 1")
    data = plan.mesh.data
    if replicas is None:
        replicas = replicas_per_process(plan) if data == "auto" else data
    batch = BatchPlan.from_plan(plan, replicas)
    parts = [_title("batch", _batch_rows(plan, batch))]
    parts.append(_dealt("a full update", batch, batch.global_batch_size))
    if samples is not None:
        batch.check_samples(samples)
        parts.append(_title(f"an epoch of {samples} samples", _epoch_rows(batch, samples)))
        start, stop = batch.update_span(batch.num_updates(samples) - 1, samples)
        if stop - start < batch.global_batch_size:
            parts.append(_dealt("its last update", batch, stop - start))
    parts.append(_title("learning rate", _rate_rows(plan, batch)))
    if plan.precision != PrecisionSettings():
        parts.append(_title("precision", _precision_rows(plan.precision)))
    if batch.num_replicas > 1 and not runs_whole_calls(plan.target):
        parts.append(_title("sums of gradients", algorithm_rows(plan)))
    parts.append(_listed("warnings", idle_warnings(batch)))
    parts.append(_listed("refused: not built yet", not_built(plan)))
    return "\n".join(part for part in parts if part)


def _batch_rows(plan: Plan, batch: BatchPlan) -> List[Row]:
    data = plan.mesh.data
    if data == batch.num_replicas:
        source = "mesh.data"
    elif data == "auto":
        source = 'mesh.data = "auto", decided at launch; this many are counted here'
    else:
        source = f"as asked, instead of mesh.data = {shown(data)}"
    given = plan.batch.global_batch_size is not None
    return [
        (
            "global_batch_size",
            f"G = {batch.global_batch_size}",
            "samples behind one update" if given else "B x A x R",
        ),
        ("micro_batch_size", f"B = {batch.micro_batch_size}", "most samples computed at once"),
        ("replicas", f"R = {batch.num_replicas}", source),
        (
            "accumulation_per_replica",
            f"A = {batch.accumulation_per_replica}",
            "ceil(G / (B x R))" if given else "given",
        ),
        ("updates_per_call", f"D = {batch.updates_per_call}", "updates in one entry"),
        ("remainder", batch.remainder, ""),
        ("reduction", plan.update.reduction, ""),
    ]


def _epoch_rows(batch: BatchPlan, samples: int) -> List[Row]:
    updates = batch.num_updates(samples)
    start, stop = batch.update_span(updates - 1, samples)
    calls = batch.num_calls(samples)
    last_call = updates - (calls - 1) * batch.updates_per_call
    return [
        ("updates", f"{updates}", f"the last has {stop - start} of {batch.global_batch_size}"),
        ("calls", f"{calls}", f"the last has {last_call} of {batch.updates_per_call} updates"),
        ("samples used", f"{batch.used_samples(samples)}", "each once"),
        ("samples dropped", f"{batch.dropped(samples)}", ""),
        ("rows padded", f"{batch.padded(samples)}", "of weight 0, in the last update"),
    ]


def _rate_rows(plan: Plan, batch: BatchPlan) -> List[Row]:
    update = plan.update
    why = "lr_scaling is off"
    if update.lr_scaling != "none":
        ratio = f"{batch.global_batch_size} / {update.base_global_batch_size}"
        why = ratio if update.lr_scaling == "linear" else f"sqrt({ratio})"
    rows = [("factor", f"{update.lr_scale(batch.global_batch_size):g}", why)]
    if update.warmup_updates:
        rows.append(("warm-up", f"{update.warmup_updates}", "updates until the factor is reached"))
    return rows


def _precision_rows(precision: PrecisionSettings) -> List[Row]:
    reduce = precision.compute if precision.reduce == "compute" else precision.reduce
    scale = precision.loss_scale
    if scale == "none":
        what = "a gradient that is not finite is an error"
    elif scale == "dynamic":
        what = "halved by an overflow, whose update is skipped; doubled after 2000 updates without"
    else:
        what = "never moves; an update that overflows is skipped"
    return [
        ("compute", precision.compute, "forward and backward; weights stay in their own type"),
        ("reduce", reduce, "gradients between replicas; sums are made in float32"),
        ("loss_scale", f"{scale}" if isinstance(scale, str) else f"{scale:g}", what),
    ]


def dealt_rows(batch: BatchPlan, rows: int) -> List[Tuple[range, Tuple[Tuple[int, int], ...]]]:
    """How ``rows`` samples of one update are dealt, without listing every micro-batch.

    Args:
        batch: The arithmetic of the world.
        rows: Real samples of the update, at least 1.

    Returns:
        Neighbouring replicas that get the same, and what: ``(rows, micro-batches of so many)``.
    """
    whole, rest = divmod(rows, batch.micro_batch_size)
    each, extra = divmod(whole, batch.num_replicas)
    short_ones = 1 if rest else 0
    groups = []
    # `extra` replicas have one full micro-batch more; the next one has the short one.
    for first, stop, full, short in (
        (0, extra, each + 1, 0),
        (extra, extra + short_ones, each, rest),
        (extra + short_ones, batch.num_replicas, each, 0),
    ):
        if first >= stop:
            continue
        empty = batch.accumulation_per_replica - full - (1 if short else 0)
        runs = ((batch.micro_batch_size, full), (short, 1 if short else 0), (0, empty))
        groups.append((range(first, stop), tuple(run for run in runs if run[1] > 0)))
    return groups


def _dealt(title: str, batch: BatchPlan, rows: int) -> str:
    said: List[Row] = []
    for replicas, runs in dealt_rows(batch, rows):
        first, last = replicas[0], replicas[-1]
        name = f"replica {first}" if first == last else f"replicas {first} to {last}"
        if sum(count for _, count in runs) <= MOST_NUMBERS:
            text = " ".join(str(size) for size, count in runs for _ in range(count))
        else:
            text = ", ".join(f"{count} x {size}" for size, count in runs)
        said.append((name, text, ""))
    padding = batch.global_batch_size - rows
    note = f", {padding} rows of padding on top" if batch.remainder == "pad" and padding else ""
    return _title(f"{title}: real rows in each micro-batch{note}", said)


def _title(title: str, rows: Sequence[Row]) -> str:
    names = max(len(name) for name, _, _ in rows)
    values = max(len(value) for _, value, _ in rows)
    lines = [f"  {name:<{names}}  {value:<{values}}  {why}".rstrip() for name, value, why in rows]
    return "\n".join([title, *lines]) + "\n"


def _listed(title: str, sentences: Sequence[str]) -> str:
    return "\n".join([title, *(f"  {each}" for each in sentences)]) + "\n" if sentences else ""
