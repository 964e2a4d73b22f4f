"""The plan: everything that was decided about a run, frozen and framework-free."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Dict, Literal, Mapping, Optional, Union

import msgspec

from unified_ipu.plan.document import format_toml, read_document
from unified_ipu.plan.ipu_settings import IpuSettings
from unified_ipu.plan.settings import (
    BatchSettings,
    CommsSettings,
    CompileSettings,
    DataSettings,
    MeshAxes,
    Natural,
    PipelineSettings,
    PrecisionSettings,
    UpdateSettings,
)
from unified_ipu.plan.tables import expand_dotted, overlay
from unified_ipu.plan.validation import check_fields, convert


class Plan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was decided about a run; every way to make one checks it.

    Args:
        target: Where programs run.
        seed: Of weights, random layers and the order of samples.
        deterministic: Ask the frameworks for deterministic kernels.
        mesh: Named axes of the world.
        batch: How many samples, where and when.
        update: How gradients become a change of the weights.
        precision: Types of computation and reduction.
        comms: How ranks talk.
        pipeline: How stages take turns.
        data: Where and how samples are made.
        compile: For targets that compile.
        ipu: How a model lies on IPUs; no meaning elsewhere.
    """

    section: ClassVar[str] = ""

    target: Literal["auto", "cpu", "cuda", "ipu", "ipu-emulated"] = "auto"
    seed: Natural = 0
    deterministic: bool = False
    mesh: MeshAxes = MeshAxes()
    batch: BatchSettings = BatchSettings()
    update: UpdateSettings = UpdateSettings()
    precision: PrecisionSettings = PrecisionSettings()
    comms: CommsSettings = CommsSettings()
    pipeline: PipelineSettings = PipelineSettings()
    data: DataSettings = DataSettings()
    compile: CompileSettings = CompileSettings()
    ipu: IpuSettings = IpuSettings()

    def __post_init__(self) -> None:
        check_fields(self, self.section)

    @classmethod
    def load(cls, path: Union[str, Path]) -> Plan:
        """Read a plan from a TOML or JSON file; what is not in it keeps its default.

        Args:
            path: A file that ends in ``.json`` is JSON, any other is TOML.

        Returns:
            The checked plan.

        Raises:
            PlanError: If the file is missing, cannot be parsed, or has a wrong setting.
        """
        return read_document(path, cls.from_dict)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Plan:
        """Make a plan of nested tables of plain values.

        Args:
            data: As in the TOML file; what is not in it keeps its default.

        Returns:
            The checked plan.

        Raises:
            PlanError: Naming the path of the first wrong setting.
        """
        return convert(data, cls)

    def replace(self, changes: Optional[Mapping[str, Any]] = None, **tables: Any) -> Plan:
        """Make a plan with some settings changed.

        ``plan.replace({"batch.micro_batch_size": 8})`` and
        ``plan.replace(batch={"micro_batch_size": 8}, seed=1)`` change one setting and keep the
        rest of the table; a whole table (``batch=BatchSettings(...)``) takes the place of the old
        one. None unsets a setting that can be absent.

        Args:
            changes: Values by dotted path.
            tables: Values by name.

        Returns:
            The checked plan.

        Raises:
            PlanError: Naming the path of the first wrong setting.
        """
        merged = overlay(self.to_dict(), expand_dotted(changes or {}))
        for name, value in tables.items():
            if isinstance(value, msgspec.Struct):
                merged[name] = msgspec.to_builtins(value)
            else:
                merged = overlay(merged, {name: value})
        return type(self).from_dict(merged)

    def to_dict(self) -> Dict[str, Any]:
        """Nested tables of plain values; settings that are absent are None."""
        tables: Dict[str, Any] = msgspec.to_builtins(self)
        return tables

    def to_toml(self) -> str:
        """All settings as TOML; ``Plan.load`` of it is equal to this plan."""
        return format_toml(self.to_dict())

    def explain(
        self,
        samples: Optional[int] = None,
        target: Optional[str] = None,
        replicas: Optional[int] = None,
    ) -> str:
        """Every derived number, as aligned text.

        Args:
            samples: Size of the data set; without it there are no numbers of an epoch.
            target: Instead of the plan's.
            replicas: Over the world; otherwise ``mesh.data``, and 1 while that is "auto".

        Returns:
            Several lines of text.

        Raises:
            PlanError: If no such plan can run.
            ConfigError: If ``samples`` are too few for one update.
        """
        from unified_ipu.plan.explain import explain  # explain needs Plan

        plan = self if target is None else self.replace(target=target)
        return explain(plan, samples=samples, replicas=replicas)
