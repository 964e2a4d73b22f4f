"""The doctor: what can run here, and for what cannot, why and what to change."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Tuple

from unified_ipu.plan import Plan, not_built, runs_whole_calls
from unified_ipu.report.sdk import sdk_problems
from unified_ipu.world import conflicts

if TYPE_CHECKING:
    from unified_ipu.report.machine import Machine

TARGETS = ("cpu", "cuda", "ipu", "ipu-emulated")
_MIB = 1 << 20


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Args:
        subject: What, in a word or two.
        status: ``"ok"``, ``"note"`` (it may matter) or ``"problem"`` (the plan cannot run so).
        found: What there is.
        change: What to change, or empty.
    """

    subject: str
    status: str
    found: str
    change: str = ""


@dataclass(frozen=True)
class Diagnosis:
    """What the doctor found.

    Args:
        findings: In order.
        targets: Each target, and why it is not usable; empty text: it is.
    """

    findings: Tuple[Finding, ...]
    targets: Mapping[str, str]

    @property
    def can_run(self) -> bool:
        """Whether the plan that was asked about can run here."""
        return not any(finding.status == "problem" for finding in self.findings)

    def to_dict(self) -> Dict[str, Any]:
        """JSON values: ``can_run``, ``targets`` and ``findings``."""
        return {
            "can_run": self.can_run,
            "targets": dict(self.targets),
            "findings": [asdict(finding) for finding in self.findings],
        }

    def __str__(self) -> str:
        width = max(len(finding.subject) for finding in self.findings)
        lines = []
        for finding in self.findings:
            mark = {"ok": " ", "note": "-", "problem": "!"}[finding.status]
            lines.append(f"{mark} {finding.subject:<{width}}  {finding.found}")
            if finding.change:
                lines.append(f"  {'':<{width}}  change: {finding.change}")
        lines.append("")
        for name, why in self.targets.items():
            lines.append(f"target {name:<12}  {why or 'usable'}")
        lines += ["", f"the plan can {'' if self.can_run else 'NOT '}run here"]
        return "\n".join(lines)


def doctor(plan: Optional[Plan] = None) -> Diagnosis:
    """Look at this machine and say what can run on it; takes seconds, starts child processes.

    Args:
        plan: What is to run; None asks about a plan of defaults.
    """
    from unified_ipu.report.machine import read_machine  # it imports what few runs need

    plan = plan or Plan()
    return diagnose(read_machine(plan), plan)


def diagnose(machine: Machine, plan: Plan) -> Diagnosis:
    """Judge a machine; pure.

    Args:
        machine: As it was read.
        plan: What is to run.
    """
    targets = {name: _why_not(name, machine) for name in TARGETS}
    findings = [
        Finding("python", "ok", f"{'.'.join(map(str, machine.python))}, {machine.system}"),
        Finding("numpy", "ok", machine.packages.versions.get("numpy", "not installed")),
        *_adapters(machine),
        *_pairs(machine, plan),
        *_host(machine, plan),
        *_sdk(machine, plan),
        *_plan(machine, plan, targets),
    ]
    return Diagnosis(tuple(findings), targets)


def _adapters(machine: Machine) -> List[Finding]:
    found = []
    for name, state in machine.adapters.items():
        subject = f"adapter {name}"
        if state.error:
            change = f"pip install 'unified-ipu[{name}]', if it is wanted"
            found.append(Finding(subject, "note", f"cannot be used: {state.error}", change))
            continue
        facts = "".join(f"; {key} {value}" for key, value in state.facts.items())
        found.append(Finding(subject, "ok", f"can use {', '.join(state.targets)}{facts}"))
    if not machine.adapters:
        found.append(Finding("adapters", "problem", "none is registered", "install unified-ipu"))
    return found


def _pairs(machine: Machine, plan: Plan) -> List[Finding]:
    found = []
    for conflict in conflicts(machine.packages, has_sdk=machine.has_sdk):
        is_problem = conflict.is_fatal and plan.data.isolate == "never"
        status = "problem" if is_problem else "note"
        subject = " + ".join(conflict.packages)
        found.append(Finding(subject, status, conflict.problem, conflict.change))
    if machine.start_method != "spawn":
        found.append(
            Finding(
                "multiprocessing",
                "note",
                f"its start method is {machine.start_method}: children of a process in which torch "
                "or TensorFlow has computed may hang. Our own processes are spawned",
                'multiprocessing.set_start_method("spawn") for processes of your own',
            )
        )
    return found


def _host(machine: Machine, plan: Plan) -> List[Finding]:
    found = []
    cores = machine.processors.count
    found.append(Finding("cores", "ok", _cores(machine)))
    data = plan.mesh.data
    if data != "auto" and data > cores:
        found.append(
            Finding(
                "replicas",
                "note",
                f"mesh.data = {data} on {cores} cores: replicas of one host take turns",
                f"mesh.data = {cores}, or more hosts",
            )
        )
    for name, value in machine.threads.items():
        found.append(Finding(name, "note", f"{value}: it holds in every rank", f"unset {name}"))
    if machine.memory_bytes is not None:
        found.append(Finding("memory", "ok", f"{machine.memory_bytes // _MIB} MiB available"))
    is_needed = plan.comms.transport == "shm"
    if not machine.has_memfd or not machine.system.startswith("Linux x86_64"):
        found.append(
            Finding(
                "shared memory",
                "problem" if is_needed else "note",
                f"ranks cannot share memory without a name on {machine.system}",
                'comms.transport = "c10d", which needs torch',
            )
        )
    else:
        found.append(Finding("shared memory", "ok", "ranks of one host share memory"))
    return found


def _cores(machine: Machine) -> str:
    """How many can be kept busy, and why no more."""
    processors = machine.processors
    cpus, cores, nodes = len(processors.cpus), len(processors.cores), len(processors.nodes)
    words = [str(processors.count)]
    if cpus > cores:
        words.append(f"{cpus} hardware threads on {cores} cores count as {cores}")
    if nodes > 1:
        words.append(f"{nodes} memory nodes (see unified-ipu run --bind)")
    if cpus < machine.all_cpus:
        words.append(f"{cpus} of {machine.all_cpus} hardware threads are allowed to this process")
    if processors.quota is not None and processors.quota < cores:
        words.append(f"the control group allows the time of {processors.quota:g}")
    return "; ".join(words)


def _sdk(machine: Machine, plan: Plan) -> List[Finding]:
    if not machine.has_sdk and plan.target != "ipu":
        return [Finding("Poplar SDK", "ok", "not enabled in this shell")]
    problems = sdk_problems(machine)
    if not problems:
        return [Finding("Poplar SDK", "ok", f"enabled, {machine.ipus} IPUs")]
    status = "problem" if plan.target == "ipu" else "note"
    return [Finding("Poplar SDK", status, problem) for problem in problems]


def _plan(machine: Machine, plan: Plan, targets: Mapping[str, str]) -> List[Finding]:
    found = [Finding("plan", "problem", sentence) for sentence in not_built(plan)]
    if plan.comms.transport == "c10d" and "torch" not in machine.packages.versions:
        found.append(
            Finding("transport", "problem", "c10d needs torch", "pip install 'unified-ipu[torch]'")
        )
    wanted: List[str] = [plan.target]
    if plan.target == "auto":
        wanted = [name for name in TARGETS if not runs_whole_calls(name)]
    able = []
    for name, state in machine.adapters.items():
        usable = [target for target in wanted if target in state.targets]
        refused = [pair for target in usable[:1] for pair in state.refused.get(target, ())]
        if usable and not refused:
            able.append(f"{name} on {usable[0]}")
        for field, reason in refused:
            found.append(Finding(f"adapter {name}", "note", f"refuses {field}: {reason}"))
    if able:
        return [*found, Finding("plan", "ok", f"can be run by {', '.join(able)}")]
    reason = "; ".join(f"{name}: {targets[name]}" for name in wanted if targets[name])
    return [*found, Finding("plan", "problem", f"no adapter can run it: {reason or 'see above'}")]


def _why_not(target: str, machine: Machine) -> str:
    if any(target in state.targets for state in machine.adapters.values()):
        return ""
    if target == "ipu":
        problems = sdk_problems(machine)
        return "; ".join(problems) or "no adapter can import the SDK's package of its framework"
    errors = [f"{name}: {state.error}" for name, state in machine.adapters.items() if state.error]
    if target == "cuda" and len(errors) < len(machine.adapters):
        return "no framework here sees a GPU: install its CUDA or ROCm build and the driver"
    unable = "no adapter here has an emulated device" if machine.adapters else ""
    return "; ".join(errors) or unable or "no adapter is registered"
