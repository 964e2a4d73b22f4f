"""Ranks with several adapters train one model: L5, and what must be refused.

Torch and numpy ranks are threads of this process; the numpy models keep other names and axes. One
file, since all tests share these models and the way to run them.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Sequence

import numpy as np
import pytest
import torch
from torch import nn

import unified_ipu as ui
from unified_ipu.testing import oracle
from unified_ipu.testing.threads import RanksFailedError, run_ranks
from unified_ipu_numpy import MeanSquaredError, SoftmaxCrossEntropy

SIZES = (6, 5, 3)
SAMPLES = 48
GLOBAL_BATCH = 13  # the fourth update of an epoch has 9 samples
UPDATES = 50

NAMES = {
    "hidden_kernel": ["0.weight", "IO->OI"],
    "hidden_offset": "0.bias",
    "a_head_kernel": ("2.weight", "IO -> OI"),  # sorts otherwise than its canonical name
    "head_offset": "2.bias",
}
BACK = {
    "0.weight": ["hidden_kernel", "OI->IO"],
    "0.bias": "hidden_offset",
    "2.weight": ["a_head_kernel", "OI->IO"],
    "2.bias": "head_offset",
}


class InOutMlp:
    """tanh(x @ hidden) @ head, the matrices kept as ``[in, out]``."""

    def __init__(self, start: Dict[str, Any], dtype: str) -> None:
        self.parameters = {
            "hidden_kernel": np.array(start["weight.0"], dtype),
            "head_offset": np.array(start["bias.1"], dtype),
            "a_head_kernel": np.array(start["weight.1"], dtype),
            "hidden_offset": np.array(start["bias.0"], dtype),
        }

    def forward(self, x: Any, rng: Any = None) -> Any:
        del rng
        p = self.parameters
        x = np.asarray(x).astype(p["hidden_kernel"].dtype, copy=False)
        hidden = np.tanh(x @ p["hidden_kernel"] + p["hidden_offset"])

        def backward(d: Any) -> Dict[str, Any]:
            back = (d @ p["a_head_kernel"].T) * (1 - hidden * hidden)
            return {
                "a_head_kernel": hidden.T @ d,
                "head_offset": d.sum(axis=0),
                "hidden_kernel": x.T @ back,
                "hidden_offset": back.sum(axis=0),
            }

        return hidden @ p["a_head_kernel"] + p["head_offset"], backward


def start_of() -> Dict[str, Any]:
    rng = np.random.default_rng(11)
    found = {}
    for layer, (rows, columns) in enumerate(zip(SIZES, SIZES[1:])):
        found[f"weight.{layer}"] = rng.normal(size=(rows, columns)) / np.sqrt(rows)
        found[f"bias.{layer}"] = rng.normal(size=columns) / 4
    return found


def data_of() -> Any:
    rng = np.random.default_rng(12)
    return rng.normal(size=(SAMPLES, SIZES[0])), rng.normal(size=(SAMPLES, SIZES[-1]))


def torch_mlp(start: Dict[str, Any], dtype: str) -> Any:
    model: Any = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    model.to(getattr(torch, dtype))
    with torch.no_grad():
        for layer, module in enumerate((model[0], model[2])):
            module.weight.copy_(torch.from_numpy(start[f"weight.{layer}"].T))
            module.bias.copy_(torch.from_numpy(start[f"bias.{layer}"]))
    return model


def compile_mlp(session: ui.Session, kind: str, dtype: str, optimizer: Any) -> Any:
    """Compile ``"torch"`` or ``"numpy"`` in torch's words, other kinds in those of numpy."""
    is_torch = kind.startswith("torch")
    return session.compile(
        torch_mlp(start_of(), dtype) if is_torch else InOutMlp(start_of(), dtype),
        loss=nn.MSELoss() if is_torch else MeanSquaredError(),
        optimizer=optimizer,
        names={"numpy": NAMES, "torch, renamed": BACK}.get(kind),
    )


def in_worlds(
    kinds: Sequence[str], body: Callable[[ui.Session, str], Any], **settings: Any
) -> List[Any]:
    """Run ``body(session, kind)`` on each rank."""

    def rank(world: Any, communicator: Any) -> Any:
        changes = {name.replace("__", "."): value for name, value in settings.items()}
        plan = ui.Plan().replace({"mesh.data": len(kinds), **changes})
        with ui.Session(plan, world=world, communicator=communicator, argv=[]) as session:
            return body(session, kinds[session.rank])

    return run_ranks(len(kinds), rank, timeout_seconds=20.0)


def raised_by_all(kinds: Sequence[str], body: Callable[[ui.Session, str], Any]) -> List[str]:
    """Messages of an error that every rank must raise by itself."""
    with pytest.raises(RanksFailedError) as caught:
        in_worlds(kinds, body, batch__global_batch_size=8, batch__micro_batch_size=4)
    errors = caught.value.errors
    assert sorted(errors) == list(range(len(kinds)))
    assert not any(isinstance(error, ui.PeerLostError) for error in errors.values()), errors
    assert all(isinstance(error, ui.UnifiedIpuError) for error in errors.values()), errors
    return [str(errors[rank]) for rank in range(len(kinds))]


def canonical(parameters: Dict[str, Any]) -> Dict[str, Any]:
    """The oracle's tensors as the ranks name them."""
    found = {}
    for layer in range(2):
        found[f"{2 * layer}.weight"] = parameters[f"weight.{layer}"].T
        found[f"{2 * layer}.bias"] = parameters[f"bias.{layer}"]
    return found


def relative(left: Any, right: Any) -> float:
    return float(np.linalg.norm(left - right) / np.linalg.norm(right))


SGD = ui.optim.SGD(lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01)
ADAMW = ui.optim.AdamW(lr=0.01, weight_decay=0.1)
RUNS = [
    ("torch numpy", "float64", SGD),
    ("torch numpy", "float64", ADAMW),
    ("torch numpy", "float32", SGD),
    ("numpy torch", "float32", ADAMW),
    ("numpy torch numpy", "float64", SGD),
]


def train_by_oracle(optimizer: Any) -> Any:
    """The oracle after 50 updates, and its tensors after one."""
    x, y = data_of()
    expected = oracle.Oracle(start_of(), oracle.squared_error, optimizer, clip_norm=0.7)
    after_one: Dict[str, Any] = {}
    for number in range(UPDATES):
        rows = slice(number % 4 * GLOBAL_BATCH, (number % 4 + 1) * GLOBAL_BATCH)
        expected.update(x[rows], y[rows])
        after_one = after_one or canonical(expected.parameters)
    return expected, after_one


def train_by_ranks(kinds: Sequence[str], dtype: str, optimizer: Any) -> List[Any]:
    """Weights before, after 1 and after 50 updates, and the records, by rank."""
    x, y = (array.astype(dtype) for array in data_of())

    def body(session: ui.Session, kind: str) -> Any:
        program = compile_mlp(session, kind, dtype, optimizer)
        loader = session.loader((x, y))
        seen, records = [program.weights()], []
        while program.update < UPDATES:
            for call in loader:
                records.append(program.step(call))
                seen.append(program.weights())
                if program.update == UPDATES:
                    break
        program.check_same_weights()
        return seen[0], seen[1], seen[-1], records

    return in_worlds(
        kinds,
        body,
        batch__global_batch_size=GLOBAL_BATCH,
        batch__micro_batch_size=3,
        update__clip_norm=0.7,
        data__shuffle=False,
    )


def joined(tensors: Dict[str, Any]) -> Any:
    return np.concatenate([tensors[name].ravel() for name in sorted(tensors)])


@pytest.mark.parametrize(("kinds", "dtype", "optimizer"), RUNS)
def test_l5_3_ranks_of_two_adapters_train_as_the_oracle(kinds, dtype, optimizer):
    expected, after_one = train_by_oracle(optimizer)
    one, fifty = (1e-12, 1e-12) if dtype == "float64" else (5e-5, 1e-4)
    start = canonical(start_of())
    ranks = train_by_ranks(kinds.split(), dtype, optimizer)
    for begin, first, last, records in ranks:
        assert list(begin) == sorted(after_one)
        for name, value in after_one.items():
            change = first[name].astype(np.float64) - begin[name].astype(np.float64)
            assert relative(change, value - start[name]) < one, name
        assert relative(joined(last), joined(canonical(expected.parameters))) < fifty
        assert [record.weight for record in records] == expected.weights
        assert [record.samples for record in records[:4]] == [13, 13, 13, 9]
    for _, _, _, records in ranks[1:]:  # what one reduction gave, the same bits on all
        assert [r.grad_norm for r in records] == [r.grad_norm for r in ranks[0][3]]
        assert [r.loss_sum for r in records] == [r.loss_sum for r in ranks[0][3]]


@pytest.mark.parametrize("world", [0, 1])
def test_l5_3_any_adapter_may_be_the_one_whose_axes_are_turned(world):
    optimizer = SGD
    kinds = (["torch, renamed", "numpy, by its own names"], ["torch, renamed", "torch, renamed"])
    expected = train_by_oracle(optimizer)[0].parameters
    wanted = {
        "hidden_kernel": expected["weight.0"],
        "hidden_offset": expected["bias.0"],
        "a_head_kernel": expected["weight.1"],
        "head_offset": expected["bias.1"],
    }
    for begin, _, last, _ in train_by_ranks(kinds[world], "float64", optimizer):
        assert begin["hidden_kernel"].shape == (6, 5)
        assert list(begin) == sorted(wanted)
        assert relative(joined(last), joined(wanted)) < 1e-12


def test_names_alone_make_weights_canonical_in_a_world_of_one():
    def body(session: ui.Session, kind: str) -> Any:
        program = compile_mlp(session, kind, "float64", SGD)
        before = program.weights()
        program.load_weights({"0.weight": before["0.weight"] * 2})
        return before, program.weights(), program.executor.read(["0.weight"])

    (found,) = in_worlds(["numpy"], body)
    assert np.array_equal(found[0]["0.weight"], start_of()["weight.0"].T)
    assert np.array_equal(found[1]["0.weight"], 2 * start_of()["weight.0"].T)


class ChannelsLast:
    """dense(flatten(x)) with the features flattened channels last; ``is_right`` puts them back."""

    def __init__(self, kernel: Any, *, is_right: bool) -> None:
        self.parameters = {"kernel": np.array(kernel)}
        self._axes = (0, 1, 2, 3) if is_right else (0, 2, 3, 1)

    def forward(self, x: Any, rng: Any = None) -> Any:
        del rng
        flat = np.ascontiguousarray(x.transpose(self._axes)).reshape(len(x), -1)
        return flat @ self.parameters["kernel"], lambda d: {"kernel": flat.T @ d}


def train_images(session: ui.Session, kind: str, *, is_right: bool, head: Any) -> Any:
    rng = np.random.default_rng(5)
    x, y = rng.normal(size=(16, 2, 3, 3)), rng.integers(0, 4, 16)
    optimizer = ui.optim.SGD(lr=0.1)
    if kind == "torch":
        model: Any = nn.Sequential(nn.Flatten(), nn.Linear(18, 4, bias=False)).double()
        with torch.no_grad():
            model[1].weight.copy_(torch.from_numpy(head.T))
        program = session.compile(model, loss=nn.CrossEntropyLoss(), optimizer=optimizer)
    else:
        program = session.compile(
            ChannelsLast(head, is_right=is_right),
            loss=SoftmaxCrossEntropy(),
            optimizer=optimizer,
            names={"kernel": ["1.weight", "IO->OI"]},
        )
    for call in session.loader((x, y)):
        program.step(call)
    return program.weights()["1.weight"], program.update


def test_l5_a_missing_permute_before_flatten_is_an_error_on_all_ranks_with_their_losses():
    head = np.random.default_rng(6).normal(size=(18, 4))

    def body(session: ui.Session, kind: str) -> Any:
        return train_images(session, kind, is_right=False, head=head)

    for rank, text in enumerate(raised_by_all(["torch", "numpy"], body)):
        assert text.startswith(f"rank {rank}: ")
        assert "the ranks' losses of one micro-batch differ: rank 0 (torch) has " in text
        assert "; rank 1 (numpy) has " in text
        assert "Flatten" in text
    kinds = ["torch", "numpy"]
    ranks = in_worlds(
        kinds,
        lambda session, kind: train_images(session, kind, is_right=True, head=head),
        batch__global_batch_size=8,
        batch__micro_batch_size=4,
    )
    assert relative(ranks[0][0], ranks[1][0]) < 1e-14
    assert ranks[0][1] == 2


def test_l5_a_head_of_zeros_hides_a_missing_permute_for_one_update_only():
    def body(session: ui.Session, kind: str) -> Any:
        return train_images(session, kind, is_right=False, head=np.zeros((18, 4)))

    for text in raised_by_all(["numpy", "torch"], body):
        assert "losses of one micro-batch differ: rank 0 (numpy) has " in text


def test_ranks_that_count_other_units_are_told_the_weights():
    def body(session: ui.Session, kind: str) -> Any:
        is_torch = kind == "torch"
        program = session.compile(
            torch_mlp(start_of(), "float64") if is_torch else InOutMlp(start_of(), "float64"),
            loss=nn.MSELoss() if is_torch else MeanSquaredError(),
            optimizer=ui.optim.SGD(lr=0.1),
            names=None if is_torch else NAMES,
            weight=(lambda batch: float(len(batch[0]))) if is_torch else None,
        )
        for call in session.loader(data_of()):
            program.step(call)

    for text in raised_by_all(["torch", "numpy"], body):
        assert "rank 0 (torch) counts 4; rank 1 (numpy) counts 12" in text
        assert "weight=" in text


def test_other_tensors_are_listed_for_both_ranks():
    def body(session: ui.Session, kind: str) -> Any:
        if kind == "torch":
            model = torch_mlp(start_of(), "float64")
            session.compile(model, loss=nn.MSELoss(), optimizer=ui.optim.SGD(lr=0.1))
            return
        names = {name: value for name, value in NAMES.items() if name != "hidden_offset"}
        session.compile(
            InOutMlp(start_of(), "float64"),
            loss=MeanSquaredError(),
            optimizer=ui.optim.SGD(lr=0.1),
            names={**names, "hidden_kernel": "0.weight"},
        )

    for text in raised_by_all(["torch", "numpy"], body):
        assert (
            "rank 1 (numpy) has other tensors than rank 0 (torch).\n"
            "Only rank 0 (torch) has:\n"
            "  0.bias [5] float64, trained\n"
            "  0.weight [5, 6] float64, trained\n"
            "Only rank 1 (numpy) has:\n"
            "  0.weight [6, 5] float64, trained\n"
            "  hidden_offset [5] float64, trained\n"
        ) in text
        assert "compile(names=)" in text


def test_a_frameworks_own_optimizer_is_refused_where_adapters_differ():
    def body(session: ui.Session, kind: str) -> Any:
        if kind == "torch":
            model = torch_mlp(start_of(), "float64")
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            session.compile(model, loss=nn.MSELoss(), optimizer=optimizer)
        else:
            compile_mlp(session, kind, "float64", ui.optim.SGD(lr=0.1))

    for text in raised_by_all(["numpy", "torch"], body):
        assert "rank 1 (torch) has the optimizer SGD of its framework" in text
        assert "numpy, torch" in text
        assert "ui.optim" in text


@pytest.mark.parametrize("kinds", [("torch", "numpy"), ("numpy", "numpy")], ids="-".join)
def test_other_settings_of_the_optimizer_on_a_rank_are_refused(kinds):
    def body(session: ui.Session, kind: str) -> Any:
        compile_mlp(session, kind, "float64", ui.optim.SGD(lr=0.1 * (1 + session.rank)))

    for text in raised_by_all(kinds, body):
        assert f"rank 0 ({kinds[0]}) has the optimizer SGD(lr=0.1, " in text
        assert f"rank 1 ({kinds[1]}) SGD(lr=0.2, " in text


def test_a_rank_that_cannot_take_the_batch_is_named_on_all():
    def body(session: ui.Session, kind: str) -> Any:
        program = compile_mlp(session, kind, "float64", ui.optim.SGD(lr=0.1))
        x, y = data_of()
        wide = np.concatenate([x, x], axis=1) if session.rank == 0 else x
        for call in session.loader((wide, y)):
            program.step(call)

    for text in raised_by_all(["torch", "numpy"], body):
        assert "rank 0 (torch) cannot evaluate the first micro-batch" in text


def test_l6_fit_evaluates_and_predicts_in_a_mixed_world_and_leaves_the_weights_in_each_model():
    x, y = data_of()

    def body(session: ui.Session, kind: str) -> Any:
        program = compile_mlp(session, kind, "float64", ui.optim.Adam(lr=0.01))
        train = session.loader((x, y))
        test = session.loader((x, y), train=False)
        summary = program.fit(train, epochs=2, validation=test)
        return (
            summary.validation["loss"],
            [str(epoch.certificate) for epoch in summary.epochs],
            program.predict(test, gather="all"),
            program.weights(),
        )

    ranks = in_worlds(
        ["torch", "numpy"], body, batch__global_batch_size=GLOBAL_BATCH, batch__micro_batch_size=4
    )
    for loss, certificates, outputs, weights in ranks:
        canonical_names = {
            "weight.0": weights["0.weight"].T,
            "bias.0": weights["0.bias"],
            "weight.1": weights["2.weight"].T,
            "bias.1": weights["2.bias"],
        }
        expected = oracle.outputs_of(canonical_names, x)
        assert relative(outputs, expected) < 1e-12
        assert loss == pytest.approx(((expected - y) ** 2).mean(), rel=1e-12)
        assert certificates == ["48 of 48 samples, each once"] * 2


@pytest.mark.parametrize("kinds", [("torch", "numpy"), ("numpy", "numpy")], ids="-".join)
def test_weights_that_only_one_rank_changed_are_found_at_the_end_of_the_epoch(kinds):
    class Meddler(ui.Callback):
        def on_call_end(self, context: Any, record: Any) -> None:
            if context.rank == 1 and record.update == 2:
                weights = context.program.weights()
                weights["2.bias"][1] += 1e-3
                context.program.load_weights({"2.bias": weights["2.bias"]})

    def body(session: ui.Session, kind: str) -> Any:
        program = compile_mlp(session, kind, "float64", ui.optim.SGD(lr=0.01))
        program.fit(session.loader(data_of()), epochs=2, callbacks=[Meddler()])

    for text in raised_by_all(kinds, body):
        assert "2.bias" in text
        assert "0.weight" not in text
        assert "rank 1" in text


def test_checkpoints_of_a_mixed_world_are_refused_before_training(tmp_path):
    def body(session: ui.Session, kind: str) -> Any:
        program = compile_mlp(session, kind, "float64", ui.optim.SGD(lr=0.01))
        train = session.loader(data_of())
        messages = []
        for call in (
            lambda: program.fit(train, checkpoint=tmp_path / "run"),
            lambda: program.fit(train, resume=tmp_path / "run"),
            lambda: program.save(tmp_path / "run"),
            lambda: program.restore(tmp_path / "run"),
        ):
            with pytest.raises(ui.ConfigError) as caught:
                call()
            messages.append(str(caught.value))
        return messages, program.update

    for messages, updates in in_worlds(["torch", "numpy"], body):
        assert all("several adapters (numpy, torch)" in text for text in messages)
        assert updates == 0
    assert list(tmp_path.iterdir()) == []


class NumpyBranch:
    """x * z; x and y are not used."""

    def __init__(self) -> None:
        self.parameters = {"z": np.array([1.0]), "y": np.array([1.0]), "x": np.array([1.0])}

    def forward(self, x: Any, rng: Any = None) -> Any:
        del rng
        return x * self.parameters["z"], lambda d: {"z": (d * x).sum(axis=0)}


class TorchBranch(nn.Module):
    """x * b in training; a and c are not used."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("a", "b", "c"):
            self.register_parameter(name, nn.Parameter(torch.ones(1, dtype=torch.float64)))

    def forward(self, x: Any) -> Any:
        return x * (self.b if self.training else self.a)


def test_l1_10_what_no_rank_uses_stays_and_what_one_uses_moves_on_all():
    def body(session: ui.Session, kind: str) -> Any:
        optimizer = ui.optim.SGD(lr=0.1, weight_decay=0.5)
        is_torch = kind == "torch"
        program = session.compile(
            TorchBranch() if is_torch else NumpyBranch(),
            loss=nn.MSELoss() if is_torch else MeanSquaredError(),
            optimizer=optimizer,
            names=None if is_torch else {"x": "b", "y": "c", "z": "a"},
        )
        batch: Any = (np.array([[2.0]]), np.array([[0.0]]))
        if is_torch:  # each rank may pass what its own framework has
            batch = tuple(torch.from_numpy(array) for array in batch)
        record = program.step(batch)
        return {name: float(value[0]) for name, value in program.weights().items()}, record

    for weights, record in in_worlds(["torch", "numpy"], body):
        # Torch uses b and numpy a, each with dS = 2 * 2 * 2 * 1 = 8 over W = 2; decay 0.5.
        assert weights == pytest.approx({"a": 0.55, "b": 0.55, "c": 1.0}, rel=1e-15)
        assert record.weight == 2.0


def test_l1_7_a_gradient_that_is_not_finite_has_its_canonical_name():
    def body(session: ui.Session, kind: str) -> Any:
        program = compile_mlp(session, kind, "float64", ui.optim.SGD(lr=0.1))
        x, y = data_of()
        for start in (0, 4):
            program.step((x[start : start + 4], y[start : start + 4]))
        bad = y[8:12] * (np.nan if session.rank == 1 else 1.0)
        with pytest.raises(ui.NumericsError) as caught:
            program.step((x[8:12], bad))
        return str(caught.value)

    for text in in_worlds(["torch", "numpy"], body):
        assert "update 2: the gradient of '0.bias' is not finite on rank(s) 1;" in text
