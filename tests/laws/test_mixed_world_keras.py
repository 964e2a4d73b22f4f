"""A PyTorch rank and a Keras rank train one model: L5 against the float64 oracle, and refusals.

Each rank is a warm process that imports its own framework only.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any, Callable, Dict, List

import numpy as np
import pytest

import unified_ipu as ui
from unified_ipu.testing import oracle
from unified_ipu.testing.pool import WarmPool

FRAMEWORKS = ("torch", "tensorflow")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        not all(importlib.util.find_spec(name) for name in FRAMEWORKS),  # ranks load this file
        reason="needs torch and TensorFlow",
    ),
]

SIZES = (6, 5, 3)
SAMPLES, GLOBAL_BATCH, UPDATES = 48, 13, 50
SGD = ui.optim.SGD(lr=0.05, momentum=0.9, weight_decay=0.01)
ADAMW = ui.optim.AdamW(lr=0.01, weight_decay=0.1)


@pytest.fixture(scope="module")
def pool():
    with WarmPool(2, preload=()) as pool:
        yield pool


def run(pool: WarmPool, function: Callable[..., Any], size: int = 2, **arguments: Any) -> List[Any]:
    """One result a rank; TensorFlow is imported and its graphs made within the time."""
    return pool.run(function, size=size, timeout=140, **arguments)


def start_of() -> Dict[str, Any]:
    rng = np.random.default_rng(11)
    found = {}
    for layer, (rows, columns) in enumerate(zip(SIZES, SIZES[1:])):
        found[f"weight.{layer}"] = rng.normal(size=(rows, columns)) / np.sqrt(rows)
        found[f"bias.{layer}"] = rng.normal(size=columns) / 4
    return found


def canonical(parameters: Dict[str, Any]) -> Dict[str, Any]:
    """The oracle's tensors as torch names them."""
    found = {}
    for layer in range(2):
        found[f"{2 * layer}.weight"] = parameters[f"weight.{layer}"].T
        found[f"{2 * layer}.bias"] = parameters[f"bias.{layer}"]
    return found


def data_of(dtype: str = "float64") -> Any:
    rng = np.random.default_rng(12)
    x, y = rng.normal(size=(SAMPLES, SIZES[0])), rng.normal(size=(SAMPLES, SIZES[-1]))
    return x.astype(dtype), y.astype(dtype)


def session_of(world: Any, **settings: Any) -> ui.Session:
    changes = {name.replace("__", "."): value for name, value in settings.items()}
    plan = ui.Plan().replace({"mesh.data": world.world_size, **changes})
    return ui.Session(plan, world=world, argv=[])


def message_of(body: Callable[[], Any]) -> str:
    """What one of our errors said; the rank goes on."""
    with pytest.raises(ui.UnifiedIpuError) as caught:
        body()
    assert not isinstance(caught.value, ui.PeerLostError), caught.value
    return str(caught.value)


def is_torch(session: ui.Session) -> bool:
    return session.rank == 0


def keras_in(dtype: str) -> Any:
    """Keras, whose new layers and losses compute in this type."""
    import tensorflow as tf

    tf.keras.backend.set_floatx(dtype)
    tf.keras.mixed_precision.set_global_policy(dtype)
    return tf.keras


def compile_mlp(session: ui.Session, dtype: str, optimizer: Any, **changes: Any) -> Any:
    """Rank 0 in torch, rank 1 in Keras; both count elements, as torch's loss does."""
    if is_torch(session):
        import torch
        from torch import nn

        layers = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
        model: Any = layers.to(getattr(torch, dtype))
        return session.compile(model, **{"loss": nn.MSELoss(), "optimizer": optimizer, **changes})
    keras = keras_in(dtype)
    with session.scope():
        model = keras.Sequential(
            [
                keras.layers.InputLayer((6,)),
                keras.layers.Dense(5, activation="tanh", name="z_hidden"),
                keras.layers.Dense(3, name="head"),
            ]
        )
    names = {
        "z_hidden/kernel": ["0.weight", "IO->OI"],
        "z_hidden/bias": "0.bias",
        "head/kernel": ["2.weight", "IO->OI"],
        "head/bias": "2.bias",
    }
    arguments: Dict[str, Any] = {
        "loss": keras.losses.MeanSquaredError(),
        "optimizer": optimizer,
        "names": names,
        "weight": lambda batch: 3.0 * len(batch[0]),
    }
    return session.compile(model, **{**arguments, **changes})


def train_mlp(world: Any, dtype: str, optimizer: Any, **changes: Any) -> Any:
    """One rank: weights before, after 1 and after 50 updates, and the records."""
    x, y = data_of(dtype)
    settings = {
        "batch__global_batch_size": GLOBAL_BATCH,
        "batch__micro_batch_size": 3,
        "update__clip_norm": 0.7,
        "data__shuffle": False,
        **changes,
    }
    with session_of(world, **settings) as session:
        program = compile_mlp(session, dtype, optimizer)
        program.load_weights({n: v.astype(dtype) for n, v in canonical(start_of()).items()})
        loader = session.loader((x, y))
        seen, records = [program.weights()], []
        while program.update < UPDATES:
            for call in loader:
                records.append(program.step(call))
                seen.append(program.weights())
                if program.update == UPDATES:
                    break
        program.check_same_weights()
        numbers = [(r.samples, r.weight, r.grad_norm, r.loss_sum) for r in records]
        loaded = [name for name in FRAMEWORKS if name in sys.modules]
        return seen[0], seen[1], seen[-1], numbers, loaded


def relative(left: Any, right: Any) -> float:
    return float(np.linalg.norm(left - right) / np.linalg.norm(right))


def joined(tensors: Dict[str, Any]) -> Any:
    return np.concatenate([tensors[name].ravel() for name in sorted(tensors)])


@pytest.mark.parametrize(
    ("dtype", "optimizer"), [("float64", SGD), ("float64", ADAMW), ("float32", SGD)]
)
def test_l5_3_a_torch_and_a_keras_rank_train_as_the_oracle(pool, dtype, optimizer):
    x, y = data_of()
    expected = oracle.Oracle(start_of(), oracle.squared_error, optimizer, clip_norm=0.7)
    after_one: Dict[str, Any] = {}
    for number in range(UPDATES):
        rows = slice(number % 4 * GLOBAL_BATCH, (number % 4 + 1) * GLOBAL_BATCH)
        expected.update(x[rows], y[rows])
        after_one = after_one or canonical(expected.parameters)
    one, fifty = (1e-12, 1e-12) if dtype == "float64" else (5e-5, 1e-4)
    start = canonical(start_of())
    ranks = run(pool, train_mlp, dtype=dtype, optimizer=optimizer)
    assert [rank[-1] for rank in ranks] == [["torch"], ["tensorflow"]]
    for begin, first, last, numbers, _ in ranks:
        for name, value in after_one.items():
            change = first[name].astype(np.float64) - begin[name].astype(np.float64)
            assert relative(change, value - start[name]) < one, name
        assert relative(joined(last), joined(canonical(expected.parameters))) < fifty
        assert [number[1] for number in numbers] == expected.weights
        assert [number[0] for number in numbers[:4]] == [13, 13, 13, 9]
        assert numbers == ranks[0][3]


def test_l5_6_ranks_of_two_frameworks_reduce_in_half_precision(pool):
    x, y = data_of()
    expected = oracle.Oracle(start_of(), oracle.squared_error, SGD, clip_norm=0.7)
    for number in range(UPDATES):
        rows = slice(number % 4 * GLOBAL_BATCH, (number % 4 + 1) * GLOBAL_BATCH)
        expected.update(x[rows], y[rows])
    half: Dict[str, Any] = {"precision__compute": "bfloat16", "precision__reduce": "compute"}
    ranks = run(pool, train_mlp, dtype="float32", optimizer=SGD, **half)
    for _, _, last, numbers, _ in ranks:
        error = relative(joined(last), joined(canonical(expected.parameters)))
        assert 1e-4 < error < 0.02, "the oracle does not round"
        assert relative(joined(last), joined(ranks[0][2])) < 1e-5, "the sums are the same bits"
        assert [number[1] for number in numbers] == expected.weights
        assert numbers == ranks[0][3]


PARITY = Path(__file__).parents[2] / "examples" / "parity"


DIGITS = PARITY.with_name("mnist_mixed")


def networks_of(world: Any) -> Any:
    """The networks of the parity example in this rank's framework."""
    sys.path.insert(0, str(PARITY))
    try:
        from networks import networks_of

        return networks_of("torch" if world.rank == 0 else "keras")
    finally:
        sys.path.remove(str(PARITY))


def train_convnet(world: Any, *, permutes_before_flatten: bool) -> Any:
    """The network of the parity example for one update, or what was said instead."""
    networks = networks_of(world)
    rng = np.random.default_rng(1)
    x = rng.normal(size=(8, 1, 28, 28)).astype(np.float32)
    with session_of(world, batch__global_batch_size=8, batch__micro_batch_size=4) as session:
        if is_torch(session):
            model = networks.convnet()
        else:
            keras_in("float32")
            model = networks.convnet(permutes_before_flatten=permutes_before_flatten)
        program = session.compile(
            model,
            loss=networks.loss(),
            optimizer=ui.optim.SGD(lr=0.1),
            names=networks.NAMES["convnet"],
        )
        try:
            for call in session.loader((x, np.arange(8) % 10)):
                program.step(call)
        except ui.ConfigError as error:
            return str(error)
        return program.update


def test_l5_a_missing_permute_before_flatten_is_an_error_on_both_ranks(pool):
    for rank, text in enumerate(run(pool, train_convnet, permutes_before_flatten=False)):
        assert str(text).startswith(f"rank {rank}: the ranks' losses of one micro-batch differ: ")
        assert "rank 0 (torch) has 2." in text
        assert "; rank 1 (tensorflow) has 2." in text
        assert "Permute" in text
    assert run(pool, train_convnet, permutes_before_flatten=True) == [1, 1]


def train_on_digits(world: Any) -> Any:
    """The convnet on digits that a tf.data pipeline in a process of its own turns and shifts."""
    networks = networks_of(world)
    settings = {"batch__global_batch_size": 32, "batch__micro_batch_size": 8}
    changes = {name.replace("__", "."): value for name, value in settings.items()}
    plan = ui.Plan().replace({"mesh.data": world.world_size, **changes})
    rng = np.random.default_rng(7)
    with ui.Session(plan, world=world, argv=[str(DIGITS / "train.py")]) as session:
        if not is_torch(session):
            keras_in("float32")
        program = session.compile(
            networks.convnet(),
            loss=networks.loss(),
            optimizer=ui.optim.SGD(lr=0.05, momentum=0.9),
            names=networks.NAMES["convnet"],
        )
        program.load_weights(
            {
                name: (0.1 * rng.normal(size=value.shape)).astype(np.float32)
                for name, value in sorted(program.weights().items())
            }
        )
        train = session.loader(ui.data.tensorflow("pipeline:train", size=4000))
        program.fit(train, max_updates=5)
        images = rng.random(size=(20, 1, 28, 28)).astype(np.float32)
        test = session.loader((images, np.arange(20) % 10), train=False)
        found = program.evaluate(test, {"accuracy": ui.metrics.accuracy})
        return program.weights(), found, program.predict(test, gather="all")


def test_l5_2_ranks_of_two_frameworks_share_one_pipeline(pool):
    together = run(pool, train_on_digits)
    ((weights, found, outputs),) = run(pool, train_on_digits, size=1)
    for theirs, their_results, their_outputs in together:
        assert relative(joined(theirs), joined(weights)) < 1e-4
        assert their_results["loss"] == pytest.approx(found["loss"], rel=1e-4)
        assert their_results["accuracy"] == found["accuracy"]
        assert their_outputs.shape == (20, 10)
        assert relative(their_outputs, outputs) < 1e-4
    assert np.array_equal(together[0][2], together[1][2])


def train_normalised(world: Any, *, mixed: bool) -> Any:
    """Batch statistics on both ranks; both torch where it is not mixed."""
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(16, 4)), rng.normal(size=(16, 3))
    optimizer = ui.optim.SGD(lr=0.05, momentum=0.9)
    with session_of(world, batch__global_batch_size=8, batch__micro_batch_size=4) as session:
        if is_torch(session) or not mixed:
            from torch import nn

            stack = nn.Sequential(nn.Linear(4, 3, bias=False), nn.BatchNorm1d(3))
            program = session.compile(stack.double(), loss=nn.MSELoss(), optimizer=optimizer)
        else:
            keras = keras_in("float64")
            layers = keras.layers
            model = keras.Sequential(
                [
                    layers.InputLayer((4,)),
                    layers.Dense(3, use_bias=False, name="fc"),
                    layers.BatchNormalization(momentum=0.9, epsilon=1e-5, name="bn"),
                    layers.Dropout(1e-15),  # keeps a state of random numbers of its own
                ]
            )
            program = session.compile(
                model,
                loss=keras.losses.MeanSquaredError(),
                optimizer=optimizer,
                weight=lambda batch: 3.0 * len(batch[0]),
                names={
                    "fc/kernel": ["0.weight", "IO->OI"],
                    "bn/gamma": "1.weight",
                    "bn/beta": "1.bias",
                    "bn/moving_mean": "1.running_mean",
                    "bn/moving_variance": "1.running_var",
                },
            )
        start = {
            "0.weight": np.random.default_rng(3).normal(size=(3, 4)),
            "1.weight": np.ones(3),
            "1.bias": np.zeros(3),
        }
        program.load_weights(start)
        train, test = session.loader((x, y)), session.loader((x, y), train=False)
        summary = program.fit(train, epochs=4, validation=test)
        private = [spec.name for spec in program.executor.tensors() if spec.sync == "none"]
        return program.weights(), summary.validation["loss"], private


def test_l5_batch_statistics_are_shared_and_counters_of_one_framework_stay_its_own(pool):
    torch_rank, keras_rank = run(pool, train_normalised, mixed=True)
    reference = run(pool, train_normalised, mixed=False)[0]
    assert torch_rank[2] == ["1.num_batches_tracked"]
    assert len(keras_rank[2]) == 1  # the state of its dropout layer
    trained = ["0.weight", "1.weight", "1.bias", "1.running_mean"]
    for weights, loss, _ in (torch_rank, keras_rank):
        for name in trained:
            assert relative(weights[name], reference[0][name]) < 1e-12, name
        assert loss == torch_rank[1]
    for name in ("1.running_mean", "1.running_var"):
        assert np.array_equal(torch_rank[0][name], keras_rank[0][name])


def refuse_native(world: Any) -> str:
    with session_of(world) as session:
        optimizer: Any = ui.optim.SGD(lr=0.1)
        if not is_torch(session):
            optimizer = keras_in("float32").optimizers.SGD(0.1)
        return message_of(lambda: compile_mlp(session, "float32", optimizer))


def test_a_keras_optimizer_is_refused_beside_a_torch_rank(pool):
    for text in run(pool, refuse_native):
        assert "rank 1 (tensorflow) has the optimizer SGD of its framework" in text


def refuse_other_names(world: Any) -> str:
    with session_of(world) as session:
        changes = {} if is_torch(session) else {"names": {"head/kernel": ["2.weight", "IO->OI"]}}
        sgd = ui.optim.SGD(lr=0.1)
        return message_of(lambda: compile_mlp(session, "float32", sgd, **changes))


def test_tensors_that_no_name_maps_are_listed_on_both_sides(pool):
    for text in run(pool, refuse_other_names):
        assert (
            "Only rank 0 (torch) has:\n"
            "  0.bias [5] float32, trained\n"
            "  0.weight [5, 6] float32, trained\n"
            "  2.bias [3] float32, trained\n"
            "Only rank 1 (tensorflow) has:\n"
            "  head/bias [3] float32, trained\n"
            "  z_hidden/bias [5] float32, trained\n"
            "  z_hidden/kernel [6, 5] float32, trained\n"
        ) in text
