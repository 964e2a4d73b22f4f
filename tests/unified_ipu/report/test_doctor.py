"""The doctor judges drawn machines; one test looks at the real one."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest

import unified_ipu as ui
from unified_ipu.report import diagnose
from unified_ipu.report.machine import AdapterState, Machine, answer, read_machine
from unified_ipu.report.sdk import sdk_problems
from unified_ipu.world import Core, Packages, Processors

PLAN = ui.Plan()
CPU = AdapterState(("cpu",), facts={"torch": "2.13.0"})
HEALTHY = Machine(
    python=(3, 11, 7),
    system="Linux x86_64",
    packages=Packages({"numpy": "2.4.6", "torch": "2.13.0"}, frozenset({"torch"})),
    adapters={"torch": CPU},
    processors=Processors((Core((0,)), Core((1,)))),
    all_cpus=2,
    memory_bytes=1 << 30,
)
SDK = replace(
    HEALTHY,
    python=(3, 8, 18),
    packages=Packages({"numpy": "1.19.5", "torch": "2.0.1"}, frozenset({"torch", "poptorch"})),
    sdk={"POPLAR_SDK_ENABLED": "/sdk"},
    ipus=4,
)


def problems(machine, plan=PLAN):
    return [f for f in diagnose(machine, plan).findings if f.status == "problem"]


def notes(machine, plan=PLAN):
    return {f.subject: f for f in diagnose(machine, plan).findings if f.status == "note"}


def test_a_plan_that_an_adapter_can_use_can_run():
    diagnosis = diagnose(HEALTHY, PLAN)
    assert diagnosis.can_run
    assert not problems(HEALTHY)
    assert not notes(HEALTHY)
    assert diagnosis.targets["cpu"] == ""
    assert "no framework here sees a GPU" in diagnosis.targets["cuda"]
    assert "POPLAR_SDK_ENABLED" in diagnosis.targets["ipu"]
    assert "no adapter here has an emulated device" in diagnosis.targets["ipu-emulated"]
    assert str(diagnosis).endswith("the plan can run here")
    assert "can be run by torch on cpu" in str(diagnosis)


def test_a_target_that_is_not_there_is_a_problem_with_its_reason():
    plan = PLAN.replace(target="cuda")
    (problem,) = problems(HEALTHY, plan)
    assert problem.subject == "plan"
    assert "cuda: no framework here sees a GPU" in problem.found
    assert "the plan can NOT run here" in str(diagnose(HEALTHY, plan))


def test_an_adapter_that_refuses_a_setting_cannot_run_the_plan():
    state = AdapterState(("cpu",), refused={"cpu": (("deterministic", "no such kernels"),)})
    machine = replace(HEALTHY, adapters={"torch": state})
    assert "refuses deterministic: no such kernels" in notes(machine)["adapter torch"].found
    assert len(problems(machine)) == 1
    assert not problems(replace(machine, adapters={"torch": state, "numpy": CPU}))


def test_a_framework_that_is_absent_is_said_with_what_to_install():
    missing = AdapterState(error="torch cannot be imported")
    machine = replace(HEALTHY, adapters={"torch": missing})
    note = notes(machine)["adapter torch"]
    assert note.found == "cannot be used: torch cannot be imported"
    assert "pip install 'unified-ipu[torch]'" in note.change
    assert diagnose(machine, PLAN).targets["cpu"] == "torch: torch cannot be imported"
    assert problems(machine)


def test_what_is_not_built_is_a_problem():
    (problem,) = problems(HEALTHY, PLAN.replace({"comms.compression": "topk"}))
    assert "comms.compression" in problem.found


def test_a_fatal_pair_matters_where_one_process_uses_both():
    versions = {"numpy": "2.4.6", "torch": "2.13.0", "triton": "3.9", "tensorflow": "2.21.0"}
    machine = replace(HEALTHY, packages=Packages(versions))
    assert not problems(machine)
    assert "tensorflow + torch + triton" in notes(machine)
    (problem,) = problems(machine, PLAN.replace({"data.isolate": "never"}))
    assert "SIGSEGV" in problem.found


@pytest.mark.parametrize(
    ("changes", "subject"),
    [
        ({"start_method": "fork"}, "multiprocessing"),
        ({"threads": {"OMP_NUM_THREADS": "8"}}, "OMP_NUM_THREADS"),
        ({"has_memfd": False}, "shared memory"),
        ({"system": "Linux aarch64"}, "shared memory"),
    ],
)
def test_what_may_matter_is_a_note(changes, subject):
    machine = replace(HEALTHY, **changes)
    assert subject in notes(machine)
    assert not problems(machine)


def test_memory_that_cannot_be_shared_is_a_problem_if_the_plan_wants_it():
    machine = replace(HEALTHY, has_memfd=False)
    (problem,) = problems(machine, PLAN.replace({"comms.transport": "shm"}))
    assert problem.subject == "shared memory"


def test_c10d_needs_torch():
    machine = replace(HEALTHY, packages=Packages({"numpy": "2.4.6"}))
    (problem,) = problems(machine, PLAN.replace({"comms.transport": "c10d"}))
    assert problem.found == "c10d needs torch"


def test_auto_never_means_a_device():
    only = AdapterState(targets=("ipu-emulated",))
    machine = replace(HEALTHY, adapters={"numpy": only})
    assert not diagnose(machine, PLAN).can_run
    plan = PLAN.replace(target="ipu-emulated")
    assert "can be run by numpy on ipu-emulated" in str(diagnose(machine, plan))


SERVER = tuple(Core((core, core + 8), node=core // 4) for core in range(8))


@pytest.mark.parametrize(
    ("processors", "all_cpus", "words"),
    [
        (HEALTHY.processors, 2, "2"),
        (
            Processors(SERVER),
            16,
            (
                "8; 16 hardware threads on 8 cores count as 8; 2 memory nodes (see unified-ipu run "
                "--bind)"
            ),
        ),
        (
            Processors((Core((3,)), Core((4,)), Core((5,)))),
            16,
            "3; 3 of 16 hardware threads are allowed to this process",
        ),
        (
            Processors(HEALTHY.processors.cores, quota=1.5),
            2,
            "1; the control group allows the time of 1.5",
        ),
    ],
)
def test_cores_are_told_with_what_limits_them(processors, all_cpus, words):
    machine = replace(HEALTHY, processors=processors, all_cpus=all_cpus)
    (found,) = [f.found for f in diagnose(machine, PLAN).findings if f.subject == "cores"]
    assert found == words


def test_more_replicas_than_cores_is_a_note_with_both_numbers():
    note = notes(HEALTHY, PLAN.replace({"mesh.data": 4}))["replicas"]
    assert "mesh.data = 4 on 2 cores" in note.found


def test_an_sdk_that_matches_has_no_problems():
    assert sdk_problems(SDK) == ()
    assert "no adapter can import the SDK's package" in diagnose(SDK, PLAN).targets["ipu"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"python": (3, 11, 7)}, "Python 3.8, this is 3.11"),
        ({"ipus": None}, "gc-inventory is absent"),
        ({"ipus": 0}, "lists no device"),
        ({"packages": Packages({}, frozenset())}, "none of poptorch, popart"),
        (
            {"packages": Packages({"torch": "2.1.0"}, frozenset({"poptorch"}))},
            "torch 2.1.0 is installed, the SDK was built for 2.0",
        ),
        (
            {"packages": Packages({"numpy": "1.24.0"}, frozenset({"poptorch"}))},
            "numpy 1.24.0 is installed, the SDK was built for 1.19",
        ),
    ],
)
def test_an_sdk_that_does_not_match_says_what_to_change(changes, words):
    (problem,) = sdk_problems(replace(SDK, **changes))
    assert words in problem


def test_the_json_has_a_stable_form():
    value = diagnose(HEALTHY, PLAN).to_dict()
    assert set(value) == {"can_run", "targets", "findings"}
    assert set(value["targets"]) == {"cpu", "cuda", "ipu", "ipu-emulated"}
    assert all(set(f) == {"subject", "status", "found", "change"} for f in value["findings"])
    json.dumps(value)


def test_an_adapter_that_nobody_registered_answers_with_the_error():
    assert "no such adapter" in answer("absent", PLAN)["error"]


@pytest.mark.timeout(120)
def test_a_child_that_dies_is_told_with_its_signal(monkeypatch):
    code = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
    run = subprocess.run

    def crash(command, **options):
        return run([sys.executable, "-c", code], **{**options, "input": ""})

    monkeypatch.setattr("unified_ipu.report.machine.available_adapters", lambda: ("torch",))
    monkeypatch.setattr("unified_ipu.report.machine.subprocess.run", crash)
    monkeypatch.setattr("unified_ipu.report.machine.shutil.which", lambda _: None)
    state = read_machine(PLAN).adapters["torch"]
    assert state.targets == ()
    assert "signal 11" in state.error


@pytest.mark.timeout(200)
@pytest.mark.slow
def test_the_command_prints_json_and_its_status_says_whether_the_plan_can_run(tmp_path):
    def run(*words):
        command = [sys.executable, "-m", "unified_ipu.cli.main", "doctor", "--json", *words]
        return subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=180, cwd=tmp_path
        )

    done = run("--set", "target=ipu")
    assert done.returncode == 1, done.stderr
    value = json.loads(done.stdout)
    assert not value["can_run"]
    assert "Poplar SDK" in {f["subject"] for f in value["findings"] if f["status"] == "problem"}
