"""The emulated ``poptorch.Options``: defaults, checks, chaining, freezing."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch

from unified_ipu_torch.emulated import poptorch
from unified_ipu_torch.emulated.poptorch.backend_options import validate_options

DEFAULTS = {
    "replication_factor": 1,
    "input_group_size": 1,
    "input_cgt": poptorch.CommGroupType.Consecutive,
    "broadcast_buffers": True,
    "device_iterations": 1,
    "log_dir": ".",
    "max_repeat_logs": 4,
    "auto_round_num_ipus": False,
    "anchored_tensors": {},
    "output_mode": 4,
    "output_return_period": 1,
    "connection_type": 0,
    "sync_pattern": 0,
    "available_memory_proportion": {},
}


@pytest.fixture
def options():
    return poptorch.Options()


def test_defaults_are_the_sdks(options):
    assert {name: getattr(options, name) for name in DEFAULTS} == DEFAULTS
    assert options.Training.gradient_accumulation == 1
    reduction = options.Training.accumulation_and_replication_reduction_type
    assert reduction == poptorch.ReductionType.Mean
    strategy = options.Training.meanAccumulationAndReplicationReductionStrategy
    assert strategy == poptorch.MeanReductionStrategy.Post
    assert (options.Distributed.processId, options.Distributed.numProcesses) == (0, 1)


def test_setters_chain_on_the_object_they_belong_to(options):
    assert options.deviceIterations(2).replicationFactor(3) is options
    assert options.Training.gradientAccumulation(4) is options.Training
    settings = poptorch.TensorLocationSettings().useOnChipStorage(False)
    assert options.TensorLocations.setWeightLocation(settings) is options.TensorLocations
    assert options.anchorTensor("a", "b") is None


@pytest.mark.parametrize("value", [2.0, "3", np.int64(3)])
def test_a_value_of_another_type_than_the_default_is_refused(options, value):
    with pytest.raises(AssertionError, match="Unexpected type"):
        options.deviceIterations(value)


def test_unknown_names_are_refused(options):
    with pytest.raises(AttributeError, match="Invalid attribute autocastEnabled"):
        _ = options.autocastEnabled
    with pytest.raises(AssertionError, match="Invalid option speed"):
        options.set(speed=1)
    with pytest.raises(AssertionError, match="Invalid option speed"):
        options.speed = 1
    with pytest.raises(AttributeError, match="Invalid private attribute"):
        options._speed = 1


def test_known_names_may_be_assigned(options):
    options.device_iterations = 5
    assert options("device_iterations") == 5


@pytest.mark.parametrize(
    "change",
    [
        lambda o: o.deviceIterations(2),
        lambda o: o.randomSeed(1),
        lambda o: o.set(device_iterations=2),
        lambda o: o.Training.gradientAccumulation(2),
        lambda o: o.Precision.enableStochasticRounding(True),
        lambda o: o.Distributed.configureProcessId(0, 2),
        lambda o: o.TensorLocations.numIOTiles(32),
        lambda o: o._Popart.set("enableOutlining", True),
        lambda o: o.anchorTensor("a", "b"),
        lambda o: o.setExecutionStrategy(poptorch.ShardedExecution()),
        lambda o: o.relaxOptimizerAttributesChecks(),
        lambda o: o.disableModuleNamescope(),
    ],
)
def test_used_options_cannot_be_changed(options, change):
    options._freeze()
    with pytest.raises(AttributeError, match="Can't modify frozen Options"):
        change(options)


def test_a_clone_of_used_options_may_be_changed_and_shares_nothing(options):
    options.deviceIterations(5)
    options.Training.gradientAccumulation(4)
    options.anchorTensor("t", "tensor", poptorch.OutputMode.EveryN, 2)
    options._freeze()
    clone = options.clone()
    clone.deviceIterations(7).Training.gradientAccumulation(1)
    clone.anchorTensor("u", "other")
    clone._Popart.set("autoRecomputation", 3)
    assert (options.device_iterations, options.Training.gradient_accumulation) == (5, 4)
    assert options.anchored_tensors == {"t": ["tensor", False, poptorch.OutputMode.EveryN, 2]}
    assert "autoRecomputation" not in options._Popart.options


def test_options_travel_to_worker_processes(options):
    options.deviceIterations(3)
    again = pickle.loads(pickle.dumps(options))  # noqa: S301  # our own
    assert again.device_iterations == 3


def test_the_table_for_the_backend_needs_an_output_mode(options):
    with pytest.raises(AssertionError, match="output mode must be picked"):
        options.toDict()
    options.outputMode(poptorch.OutputMode.All).replicationFactor(2)
    options.Training.gradientAccumulation(3)
    options.setExecutionStrategy(poptorch.ShardedExecution())
    table = options.toDict()
    chosen = {name: table[name] for name in ("output_mode", "replication_factor", "execution_mode")}
    assert chosen == {"output_mode": 2, "replication_factor": 2, "execution_mode": 1}
    assert table["gradient_accumulation"] == 3


def test_every_n_needs_its_period(options):
    for period in (None, 0, -1):
        with pytest.raises(AssertionError, match="valid positive integer"):
            options.outputMode(poptorch.OutputMode.EveryN, period)
    options.outputMode(poptorch.OutputMode.EveryN, 3)
    assert (options.output_mode, options.output_return_period) == (1, 3)
    assert not options.defaultOutputMode()


@pytest.mark.parametrize(
    ("kind", "size", "words"),
    [("All", 2, "cannot be All"), ("Consecutive", 8, "factor"), ("Orthogonal", 3, "factor")],
)
def test_replicas_are_grouped_evenly_or_not_at_all(options, kind, size, words):
    options.replicationFactor(4)
    with pytest.raises(ValueError, match=words):
        options.inputReplicaGrouping(size, poptorch.CommGroupType[kind])
    options.inputReplicaGrouping(4, poptorch.CommGroupType.NoGrouping)
    assert (options.input_group_size, options.input_cgt) == (1, poptorch.CommGroupType.Consecutive)


@pytest.mark.parametrize("reduction", [poptorch.ReductionType.NoReduction, 0, "Mean"])
def test_gradients_are_summed_or_averaged(options, reduction):
    with pytest.raises(ValueError, match=r"ReductionType\.Mean or poptorch\.ReductionType\.Sum"):
        options.Training.accumulationAndReplicationReductionType(reduction)


@pytest.mark.parametrize("tiles", [10, 33, 193, 194])
def test_io_tiles_are_even_and_32_to_192(options, tiles):
    with pytest.raises(AssertionError, match="even number between 32 and 192"):
        options.TensorLocations.numIOTiles(tiles)
    options.TensorLocations.numIOTiles(192)


def test_memory_shares_are_given_by_ipu(options):
    options.setAvailableMemoryProportion({"IPU0": 0.5, "IPU1": 0.25})
    assert options.available_memory_proportion == {0: 0.5, 1: 0.25}
    for key in ("0", "IPUx", "ipu0"):
        with pytest.raises(AssertionError, match="Invalid key"):
            options.setAvailableMemoryProportion({key: 0.5})


def test_partials_are_float_or_half(options):
    options.Precision.setPartialsType(torch.half)
    table = options._Popart.options
    assert table["partialsTypeMatMuls"] == "half"
    assert table["convolutionOptions"] == {"partialsType": "half"}
    with pytest.raises(ValueError, match="setPartialsType"):
        options.Precision.setPartialsType(torch.float64)


def test_a_seed_also_seeds_torch(options):
    options.randomSeed(42)
    first = torch.rand(3)
    torch.manual_seed(42)
    assert torch.equal(first, torch.rand(3))
    assert options.random_seed == 42


def test_an_offline_target_never_connects(options):
    options.useOfflineIpuTarget()
    assert (options.connection_type, options.ipu_version) == (2, 2)


def test_open_mpi_tells_which_process_this_is(monkeypatch):
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "3")
    options = poptorch.Options()
    assert (options.Distributed.processId, options.Distributed.numProcesses) == (3, 4)
    options.Distributed.disable()
    assert (options.Distributed.processId, options.Distributed.numProcesses) == (0, 1)


def test_tracing_is_gone(options):
    options.Jit.traceModel(False)
    with pytest.raises(ValueError, match="no longer supported"):
        options.Jit.traceModel(True)


def table(**changes):
    options = poptorch.Options().outputMode(poptorch.OutputMode.All)
    for name, value in changes.items():
        options._Popart.set(name, value)
    return options.toDict()


def test_the_backend_takes_what_scripts_set():
    validate_options(
        table(
            engineOptions={"opt.useAutoloader": "true"},
            outlineThreshold=10.0,
            subgraphCopyingStrategy=1,
            disableGradAccumulationTensorStreams=True,
            saveInitializersToFile="weights.onnx",
            hardwareInstrumentations={0, 1},
        )
    )


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("speed", True, "Unknown bool option speed"),
        ("speed", 1, "Unknown uint64 option speed"),
        ("outlineThreshold", 1, "Unknown uint64 option outlineThreshold"),
        ("autoRecomputation", -1, "out of range"),
        ("autoRecomputation", 5, "out of range"),
        ("meanAccumulationAndReplicationReductionStrategyX", 2, "Unknown uint64"),
        ("dotChecks", torch.empty(1), "Unknown value type"),
    ],
)
def test_the_backend_refuses_the_unknown(name, value, words):
    with pytest.raises(poptorch.Error, match=words):
        validate_options(table(**{name: value}))


@pytest.mark.parametrize("count", [0, -1])
def test_counts_below_one_are_refused_when_compiled(count):
    options = poptorch.Options().outputMode(poptorch.OutputMode.All).deviceIterations(count)
    with pytest.raises(poptorch.Error, match="device_iterations"):
        validate_options(options.toDict())


def test_the_deprecated_mean_strategy_has_no_counterpart_in_the_backend():
    options = poptorch.Options().outputMode(poptorch.OutputMode.All)
    options.Training.setMeanAccumulationAndReplicationReductionStrategy(
        poptorch.MeanReductionStrategy.PostAndLoss
    )
    with pytest.raises(poptorch.Error, match="out of range"):
        validate_options(options.toDict())


def test_attributes_for_operations_are_tables():
    with poptorch.Attribute(__outline={"layer": "0"}):
        pass
    with pytest.raises(AssertionError, match="__outline must be a dictionary"):
        poptorch.Attribute(__outline="0")  # type: ignore[arg-type]  # on purpose
