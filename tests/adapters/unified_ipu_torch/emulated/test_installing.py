"""The emulation in ``sys.modules``, its companions, the hardware switch, scripts."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import pytest

from unified_ipu.cli.main import main
from unified_ipu.errors import ConfigError
from unified_ipu_torch.emulated import install, is_installed, popart, popdist, poptorch, uninstall
from unified_ipu_torch.emulated.popdist import poptorch as popdist_poptorch

POPRUN = {
    "POPDIST_NUM_TOTAL_REPLICAS": "8",
    "POPDIST_NUM_LOCAL_REPLICAS": "4",
    "POPDIST_REPLICA_INDEX_OFFSET": "4",
    "POPDIST_NUM_IPUS_PER_REPLICA": "2",
    "POPDIST_LOCAL_INSTANCE_INDEX": "1",
}


@pytest.fixture
def installed(capsys):
    install()
    yield capsys.readouterr()
    uninstall()


def test_an_import_of_ours_installs_nothing():
    assert not is_installed()
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("poptorch")


def test_installed_the_sdks_names_mean_the_emulation(installed):
    assert importlib.import_module("poptorch") is poptorch
    assert importlib.import_module("poptorch.enums") is poptorch.enums
    assert importlib.import_module("poptorch.poptorch_core").Error is poptorch.Error
    assert importlib.import_module("popdist.poptorch") is popdist_poptorch
    assert importlib.import_module("popart") is popart
    assert poptorch.__emulated__ is True
    assert "poptorch is unified_ipu's emulation" in installed.err


def test_the_banner_is_said_once(installed, capsys):
    install()
    assert "emulation" not in capsys.readouterr().err


def test_a_companion_that_is_not_emulated_says_why(installed):
    with pytest.raises(ModuleNotFoundError, match="poptorch_geometric is a package of its own"):
        importlib.import_module("poptorch_geometric")


def test_a_real_sdk_is_not_replaced(tmp_path, monkeypatch):
    (tmp_path / "poptorch.py").write_text("", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match="a real poptorch can be imported"):
        install()


def test_enumerations_of_popart_are_integers():
    assert int(popart.RecomputationType.Pipeline) == 3
    assert int(popart.SubgraphCopyingStrategy.JustInTime) == 1
    assert int(popart.AccumulateOuterFragmentSchedule.OverlapMemoryOptimized) == 3
    assert int(popart.SyntheticDataMode.RandomNormal) == 2


def test_one_process_needs_nothing_of_poprun():
    assert not popdist.isPopdistEnvSet()
    numbers = (popdist.getInstanceIndex(), popdist.getNumInstances(), popdist.getNumLocalReplicas())
    assert numbers == (0, 1, 1)
    assert popdist.execute_on_instances({0}, lambda x: x + 1, 2) == 3
    popdist.synchronize()
    with pytest.raises(RuntimeError, match="isPopdistEnvSet"):
        popdist.init()


def test_the_options_of_poprun_cannot_be_changed():
    options: Any = popdist_poptorch.Options(ipus_per_replica=2)
    assert (options.Distributed.processId, options.Distributed.numProcesses) == (0, 1)
    for call, name in (
        (options.useIpuId, "useIpuId"),
        (options.replicationFactor, "replicationFactor"),
        (lambda _: options.Distributed.disable(), "Distributed.disable"),
        (options.Distributed.setEnvVarNames, "Distributed.setEnvVarNames"),
        (options.Distributed.configureProcessId, "Distributed.configureProcessId"),
    ):
        with pytest.raises(RuntimeError, match=f"Cannot call `{name}` with popdist"):
            call(1)
    options.outputMode(poptorch.OutputMode.All)._freeze()
    assert options.toDict()["ipu_id"] == 0
    with pytest.raises(AttributeError, match="frozen"):
        options.deviceIterations(2)
    assert options.clone().deviceIterations(2).device_iterations == 2


def test_poprun_tells_replicas_and_processes(monkeypatch):
    for name, value in POPRUN.items():
        monkeypatch.setenv(name, value)
    options = popdist_poptorch.Options(ipus_per_replica=2)
    assert (options.Distributed.processId, options.Distributed.numProcesses) == (1, 2)
    assert options.replication_factor == 4
    assert (popdist.getNumTotalReplicas(), popdist.getReplicaIndexOffset()) == (8, 4)
    assert popdist.getLocalInstanceIndex() == 1
    assert popdist.checkNumIpusPerReplica(2)
    assert popdist.execute_on_instances({0}, lambda: 1) is None
    with pytest.raises(RuntimeError, match="--ipus-per-replica"):
        popdist_poptorch.Options(ipus_per_replica=4)
    with pytest.raises(RuntimeError, match="no links between processes"):
        popdist.synchronize()
    popdist.init()
    try:
        assert popdist.isBackendInitialized()
        with pytest.raises(RuntimeError, match="already"):
            popdist.init()
    finally:
        popdist.finalizeBackend()


def test_there_is_no_hardware_unless_a_switch_says_so(monkeypatch):
    assert not poptorch.ipuHardwareIsAvailable()
    with pytest.raises(AssertionError, match="No IPU hardware"):
        poptorch.ipuHardwareVersion()
    monkeypatch.setenv("UNIFIED_IPU_EMULATED_HARDWARE", "1")
    assert poptorch.ipuHardwareIsAvailable(64)
    assert poptorch.ipuHardwareVersion() == 2
    monkeypatch.setenv("POPTORCH_IPU_MODEL", "1")
    assert not poptorch.ipuHardwareIsAvailable()


@pytest.mark.parametrize(("level", "number"), [("DEBUG", 10), ("OFF", 50), (2, 20), (4, 40)])
def test_levels_of_logging_have_names_and_numbers(level, number):
    before = poptorch.logger.level
    try:
        poptorch.setLogLevel(level)
        assert poptorch.logger.level == number
    finally:
        poptorch.logger.setLevel(before)


@pytest.mark.parametrize("level", ["LOUD", 5])
def test_other_levels_are_refused(level):
    with pytest.raises(ValueError, match="log level"):
        poptorch.setLogLevel(level)


SCRIPT = """
import sys
import popdist
import poptorch
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1, bias=False)
        torch.nn.init.ones_(self.layer.weight)

    def forward(self, x, target):
        return torch.nn.functional.mse_loss(self.layer(x), target)

options = poptorch.Options().deviceIterations(2)
model = Net()
training = poptorch.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=0.25))
x = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
training(x, torch.zeros(2, 1))
print(model.layer.weight.tolist(), sys.argv[1:], popdist.getNumInstances())
"""


def test_a_script_of_the_sdk_runs_as_it_is(tmp_path, monkeypatch, capsys):
    # loss (w . x)^2, the mean of one row: each of the two updates halves one weight.
    for name in ("argv", "path", "meta_path"):
        monkeypatch.setattr(sys, name, list(getattr(sys, name)))
    script = tmp_path / "script.py"
    script.write_text(SCRIPT, encoding="utf-8")
    try:
        assert main(["run", "--emulate", str(script), "--lr", "1"]) == 0
    finally:
        uninstall()
    shown = capsys.readouterr()
    assert shown.out == "[[0.5, 0.5]] ['--lr', '1'] 1\n", shown.err
    assert not is_installed()
