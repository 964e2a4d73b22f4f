from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

from unified_ipu.adapter import Adapter, Capability, Job, Place, Replica, optim
from unified_ipu.errors import AdapterLoadError, CapabilityError, ConfigError
from unified_ipu.plan import Plan, flat_fields
from unified_ipu_torch import create
from unified_ipu_torch.adapter import TorchAdapter
from unified_ipu_torch.lower import HOST_FIELDS


def test_it_is_an_adapter_that_declares_every_capability():
    adapter = create()
    assert isinstance(adapter, Adapter)
    assert set(adapter.support) == set(Capability)
    replica = TorchAdapter().build_replica(Job(nn.Linear(1, 1), loss=nn.MSELoss()), Plan(), Place())
    assert isinstance(replica, Replica)


def test_creating_it_and_asking_it_imports_no_torch():
    code = (
        "import sys; sys.modules['torch'] = None; import unified_ipu_torch; "
        "a = unified_ipu_torch.create(); del sys.modules['torch']; "
        "assert not a.accepts(object()); a.seed(1); assert a.denominator(None) is None; "
        "from unified_ipu.plan import Plan; a.lower(Plan(), 'cpu'); "
        "from unified_ipu.adapter import Place; "
        "a.scope(Plan(deterministic=True), Place()).__enter__(); "
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_it_accepts_modules_only():
    adapter = create()
    assert adapter.accepts(nn.Linear(1, 1))
    assert not adapter.accepts(nn.Linear)
    assert not adapter.accepts(lambda x: x)


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_lower_knows_every_field_of_the_plan(target):
    fields = {name for name in flat_fields(Plan()) if not name.startswith("ipu.")}
    assert set(HOST_FIELDS) == fields
    lowering = create().lower(Plan(seed=7), target)
    assert lowering.refused == ()
    assert lowering.settings == {
        "device": target,
        "torch.manual_seed": 7,
        "torch.use_deterministic_algorithms": False,
        "torch.autocast": "float32",
        "stages": 1,
        "rows of forward": 16,
    }


def test_lower_refuses_what_is_not_built():
    refused = create().lower(Plan().replace({"mesh.stage": 2}), "cpu").refused
    assert [path for path, _ in refused] == ["mesh.stage"]


def test_an_ipu_needs_the_wheel_of_the_sdk():
    job = Job(nn.Linear(1, 1), loss=nn.MSELoss())
    with pytest.raises(AdapterLoadError, match="poptorch cannot be imported"):
        create().build(job, Plan(target="ipu"), Place())


def test_the_emulated_device_is_the_last_target():
    assert create().targets()[-1] == "ipu-emulated"
    assert "ipu" not in create().targets()


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a device")
def test_cuda_without_a_device_is_refused():
    with pytest.raises(CapabilityError, match="no CUDA device"):
        TorchAdapter().build_replica(
            Job(nn.Linear(1, 1), loss=nn.MSELoss()), Plan(target="cuda"), Place()
        )


def test_scope_makes_the_same_weights_for_one_seed():
    adapter = create()
    weights = []
    for seed in (1, 1, 2):
        with adapter.scope(Plan(seed=seed), Place()):
            weights.append(nn.Linear(4, 4).weight.detach())
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_denominators_are_told_in_words():
    adapter = create()
    assert "class weights" in str(adapter.denominator(nn.CrossEntropyLoss()))
    assert "elements" in str(adapter.denominator(nn.functional.mse_loss))
    assert adapter.denominator(lambda o, y: o) is None


def test_sync_batch_norm_is_refused_with_several_replicas():
    model = nn.Sequential(nn.Linear(2, 2), nn.SyncBatchNorm(2))
    job = Job(model, loss=nn.MSELoss())
    TorchAdapter().build_replica(job, Plan(), Place())
    with pytest.raises(ConfigError, match="'1' is a SyncBatchNorm"):
        TorchAdapter().build_replica(job, Plan(), Place(num_replicas=2))


def test_layers_that_see_the_micro_batch_are_named():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Dropout(0.1), nn.Dropout(0.2))
    notes = TorchAdapter().build_replica(Job(model, loss=nn.MSELoss()), Plan(), Place()).notes
    assert len(notes) == 2
    assert "'1'" in notes[0]
    assert "'2' and 1 more" in notes[1]
    plain = TorchAdapter().build_replica(Job(nn.Linear(1, 1), loss=nn.MSELoss()), Plan(), Place())
    assert plain.notes == ()


def test_a_wrapped_model_is_refused():
    class DataParallel(nn.Module):
        """Stands in for torch's, which asks for devices."""

    with pytest.raises(ConfigError, match=r"model\.module"):
        TorchAdapter().build_replica(Job(DataParallel(), loss=nn.MSELoss()), Plan(), Place())


def test_building_runs_no_forward():
    class Never(nn.Linear):
        def forward(self, input):  # noqa: A002 torch's name
            raise AssertionError(input)

    TorchAdapter().build_replica(Job(Never(1, 1), optim.SGD(0.1), nn.MSELoss()), Plan(), Place())
