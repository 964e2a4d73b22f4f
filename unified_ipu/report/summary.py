"""What an epoch and a whole fit did, in numbers and in words."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Sequence, Tuple

from unified_ipu.events import finite_or_none

PHASES = ("data", "compute", "communication", "waiting", "other")


@dataclass(frozen=True)
class EpochSummary:
    """One epoch, the same on every rank.

    Args:
        epoch: Index, from 0.
        epochs: Where the fit ends.
        samples: Real samples trained in it over the world.
        updates: That happened.
        skipped: Updates that did not.
        loss: S / W over the epoch.
        metrics: The objective's, sum / weight over the epoch.
        certificate: What was delivered of what was expected; its ``str`` is one line.
        validation: Results of the last evaluation, empty if there was none.
        seconds: Wall seconds, evaluation included.
    """

    epoch: int
    epochs: int
    samples: int
    updates: int
    skipped: int
    loss: float
    metrics: Mapping[str, float]
    certificate: Any
    validation: Mapping[str, float]
    seconds: float

    def to_dict(self) -> Dict[str, Any]:
        """Plain values for a log; what is not finite is None."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        values["certificate"] = str(self.certificate)
        return {name: finite_or_none(value) for name, value in values.items()}

    def __str__(self) -> str:
        parts = [f"loss {self.loss:.4f}"]
        parts += [f"{name} {value:.4f}" for name, value in self.metrics.items()]
        parts += [f"validation {name} {value:.4f}" for name, value in self.validation.items()]
        if self.skipped:
            parts.append(f"{self.skipped} updates skipped")
        parts += [str(self.certificate), f"{self.seconds:.1f} s"]
        return f"epoch {self.epoch + 1}/{self.epochs}: " + ", ".join(parts)


@dataclass(frozen=True)
class Summary:
    """A whole fit; ``str`` is what ``fit`` prints.

    Args:
        epochs: Every epoch that ran, in order.
        num_replicas: Data-parallel copies.
        target: Where it ran.
        seconds: Wall seconds of the fit, the mean over the ranks.
        phases: Those by phase; they add up to all.
        counts: Everything that was dropped, padded, copied or done another way.
        validation: Results of the last evaluation.
        stopped: Why a callback ended the fit early; empty if none did.
    """

    epochs: Tuple[EpochSummary, ...]
    num_replicas: int
    target: str
    seconds: float
    phases: Mapping[str, float]
    counts: Mapping[str, int]
    validation: Mapping[str, float] = field(default_factory=dict)
    stopped: str = ""

    @property
    def samples(self) -> int:
        """Real samples trained over the world, over all epochs."""
        return sum(epoch.samples for epoch in self.epochs)

    @property
    def updates(self) -> int:
        """Updates that happened."""
        return sum(epoch.updates for epoch in self.epochs)

    @property
    def skipped(self) -> int:
        """Updates that did not happen."""
        return sum(epoch.skipped for epoch in self.epochs)

    @property
    def dropped(self) -> int:
        """Samples left out by ``batch.remainder = "drop"``."""
        return sum(getattr(epoch.certificate, "dropped", 0) for epoch in self.epochs)

    @property
    def padded(self) -> int:
        """Rows of weight 0 added by ``batch.remainder = "pad"``."""
        return sum(getattr(epoch.certificate, "padded", 0) for epoch in self.epochs)

    @property
    def copied_per_update(self) -> float:
        """Bytes of batches copied between pipeline and model, over the world, an update."""
        begun = self.updates + self.skipped
        return self.counts.get("bytes_copied", 0) / begun if begun else 0.0

    def shares(self) -> Dict[str, float]:
        """Share of the wall time by phase; the shares add up to 1."""
        total = sum(self.phases.values()) or 1.0
        names = [*PHASES, *sorted(set(self.phases) - set(PHASES))]
        return {name: self.phases[name] / total for name in names if name in self.phases}

    def __str__(self) -> str:
        rate = self.samples / self.seconds if self.seconds else 0.0
        epochs = _counted(len(self.epochs), "epoch")
        replicas = _counted(self.num_replicas, "replica")
        lines: List[Tuple[str, str]] = [
            ("trained", f"{epochs} on {replicas}, target {self.target}"),
            ("samples", f"{self.samples}; {_certificates(self.epochs)}"),
            ("updates", f"{self.updates}, {self.skipped} skipped"),
            ("rows", f"{self.dropped} dropped, {self.padded} padded"),
            ("copied", f"{self.copied_per_update:.0f} bytes an update"),
            ("time", f"{self.seconds:.1f} s, {rate:.0f} samples/s"),
            ("where", ", ".join(f"{name} {share:.0%}" for name, share in self.shares().items())),
        ]
        if self.stopped:
            lines.append(("stopped", self.stopped))
        if self.validation:
            values = (f"{name} {value:.4f}" for name, value in self.validation.items())
            lines.append(("validation", ", ".join(values)))
        shown = {name: count for name, count in self.counts.items() if name != "bytes_copied"}
        lines += [(name.replace("_", " "), str(count)) for name, count in shown.items()]
        width = max(len(name) for name, _ in lines)
        return "\n".join(f"{name:<{width}}  {text}" for name, text in lines)


def _certificates(epochs: Sequence[EpochSummary]) -> str:
    texts = [str(epoch.certificate) for epoch in epochs]
    if not texts:
        return "nothing was left to train"
    if len(set(texts)) == 1:
        return f"in each epoch {texts[0]}"
    return "; ".join(f"epoch {epoch.epoch + 1}: {text}" for epoch, text in zip(epochs, texts))


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
