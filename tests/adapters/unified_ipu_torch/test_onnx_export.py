"""``program.export_onnx`` of torch models: own names and layouts, checked, trainable again."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import numpy_helper
from torch import nn

import unified_ipu as ui
from unified_ipu.errors import CapabilityError, ConfigError, ContractError

pytestmark = pytest.mark.timeout(120)
RNG = np.random.default_rng(0)


class Named(nn.Module):
    """A linear layer under a name, on three axes, where exporters like to fold a transposition."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(3, 3)

    def forward(self, x):
        return self.lin(x)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, token):
        return self.head(self.embedding(token))


class Convolutional(nn.Module):
    """Every layer whose form differs between training and inference."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.drop = nn.Dropout(0.5)
        self.first = nn.Parameter(torch.zeros(4))
        self.second = nn.Parameter(torch.zeros(4))  # equal to the first, and yet another

    def forward(self, image):
        features = torch.relu(self.norm(self.conv(image))).mean((2, 3))
        return self.drop(features + self.first) * 2 + self.second


def stored(path):
    return {t.name: numpy_helper.to_array(t) for t in onnx.load(str(path)).graph.initializer}


def run(path, **feeds):
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


def exported(path, model, x, y, *, loss=None, updates=1, optimizer=None):
    """Train a model for some updates, export it, and return its weights then."""
    with ui.Session(ui.Plan(), argv=[]) as session:
        program = session.compile(
            model, loss=loss or nn.MSELoss(), optimizer=optimizer or ui.optim.SGD(lr=0.1)
        )
        for _ in range(updates):
            program.step((x, y))
        program.export_onnx(path)
        return program.weights()


@pytest.mark.case("O-X3")
def test_names_shapes_and_layouts_are_the_modules(tmp_path):
    path = tmp_path / "m.onnx"
    x, y = RNG.random((4, 2, 3), np.float32), RNG.random((4, 2, 3), np.float32)
    weights = exported(path, Named(), x, y)
    found = stored(path)
    assert set(found) == {"lin.weight", "lin.bias"}
    for name, value in weights.items():
        assert found[name].tobytes() == value.tobytes()
        assert found[name].shape == value.shape
    model = onnx.load(str(path))
    assert [value.name for value in model.graph.input] == ["x"]
    onnx.checker.check_model(model)


@pytest.mark.case("O-X2")
def test_tied_weights_are_one_initializer(tmp_path):
    path = tmp_path / "m.onnx"
    tokens = np.array([1, 2, 6, 0])
    weights = exported(path, Tied(), tokens, tokens, loss=nn.CrossEntropyLoss())
    found = stored(path)
    assert list(found) == ["embedding.weight"]
    assert found["embedding.weight"].tobytes() == weights["head.weight"].tobytes()


def test_layers_are_in_the_form_of_inference_and_nothing_is_merged(tmp_path):
    path = tmp_path / "m.onnx"
    image, y = RNG.random((6, 1, 5, 5), np.float32), RNG.random((6, 4), np.float32)
    model = Convolutional()
    weights = exported(path, model, image, y)
    found = stored(path)
    trained = {n: v for n, v in weights.items() if v.dtype == np.float32}
    assert {n: v.tobytes() for n, v in found.items()} == {
        n: v.tobytes() for n, v in trained.items()
    }
    operators = [node.op_type for node in onnx.load(str(path)).graph.node]
    assert "BatchNormalization" in operators
    assert "Dropout" in operators
    with torch.no_grad():
        expected = model.eval()(torch.from_numpy(image[:5])).numpy()
    np.testing.assert_allclose(run(path, image=image[:5])[0], expected, rtol=1e-4, atol=1e-6)


def test_exporting_changes_nothing(tmp_path):
    model = Convolutional()
    image, y = RNG.random((6, 1, 5, 5), np.float32), RNG.random((6, 4), np.float32)
    with ui.Session(ui.Plan(), argv=[]) as session:
        program = session.compile(model, loss=nn.MSELoss(), optimizer=ui.optim.SGD(lr=0.1))
        program.step((image, y))
        before, state = program.weights(), torch.get_rng_state()
        program.export_onnx(tmp_path / "m.onnx")
        after = program.weights()
        assert torch.equal(torch.get_rng_state(), state)
        assert model.training
    assert {n: v.tobytes() for n, v in before.items()} == {n: v.tobytes() for n, v in after.items()}


def test_the_file_trains_on_from_where_the_model_stood(tmp_path):
    path = tmp_path / "m.onnx"
    torch.manual_seed(3)
    layers = [nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)]
    model = nn.Sequential(*layers)
    x, y = RNG.random((8, 3), np.float32), RNG.random((8, 2), np.float32)
    with ui.Session(ui.Plan(), argv=[]) as session:
        torch_program = session.compile(
            model, loss=ui.losses.mean_squared_error(), optimizer=ui.optim.SGD(lr=0.1)
        )
        torch_program.step((x, y))
        torch_program.export_onnx(path)
        onnx_program = session.compile(
            str(path), loss=ui.losses.mean_squared_error(), optimizer=ui.optim.SGD(lr=0.1)
        )
        for program in (torch_program, onnx_program):
            for _ in range(5):
                program.step((x, y))
        by_torch, by_onnx = torch_program.weights(), onnx_program.weights()
    assert set(by_torch) == set(by_onnx)
    for name, value in by_torch.items():
        np.testing.assert_allclose(by_onnx[name], value, rtol=1e-4, atol=1e-7)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(4, 5, batch_first=True)
        self.head = nn.Linear(5, 2)

    def forward(self, x):
        return self.head(self.rnn(x)[0][:, -1])


class Attentive(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.encoder(x).mean(1))


@pytest.mark.parametrize("kind", [Recurrent, Attentive])
def test_layers_whose_weights_exporters_reorder_keep_names_and_train_alike(kind, tmp_path):
    path = tmp_path / "m.onnx"
    torch.manual_seed(0)
    x, y = RNG.random((6, 3, 4), np.float32), RNG.random((6, 2), np.float32)
    with ui.Session(ui.Plan(), argv=[]) as session:
        loss, optimizer = ui.losses.mean_squared_error(), ui.optim.SGD(lr=0.1)
        own = session.compile(kind(), loss=loss, optimizer=optimizer)
        own.step((x, y))
        own.export_onnx(path)
        exported_program = session.compile(path, loss=loss, optimizer=optimizer)
        for _ in range(3):
            own.step((x, y))
            exported_program.step((x, y))
        found = exported_program.weights()
        assert set(found) == set(own.weights())
        for name, value in own.weights().items():
            np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-6)


def test_several_inputs_and_outputs_have_their_names(tmp_path):
    class Several(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(2))

        def forward(self, left, right):
            return {"sum": (left + right) * self.scale, "product": left * right}

    path = tmp_path / "m.onnx"
    left, right = RNG.random((3, 2), np.float32), RNG.random((3, 2), np.float32)
    batch = ({"left": left, "right": right}, left)
    with ui.Session(ui.Plan(), argv=[]) as session:
        program = session.compile(
            Several(),
            loss=ui.losses.mean_squared_error(output="sum"),
            optimizer=ui.optim.SGD(lr=0.1),
        )
        program.step(batch)
        program.export_onnx(path)
    graph = onnx.load(str(path)).graph
    assert [value.name for value in graph.input] == ["left", "right"]
    assert [value.name for value in graph.output] == ["sum", "product"]
    np.testing.assert_allclose(run(path, left=left, right=right)[1], left * right, rtol=1e-6)


def test_a_model_that_was_never_called_is_refused(tmp_path):
    with ui.Session(ui.Plan(), argv=[]) as session:
        program = session.compile(Named(), loss=nn.MSELoss(), optimizer=ui.optim.SGD(lr=0.1))
        with pytest.raises(ConfigError, match=r"not called yet.*run a step"):
            program.export_onnx(tmp_path / "m.onnx")
    assert not (tmp_path / "m.onnx").exists()


def test_what_the_exporter_took_for_a_constant_is_found_before_anything_is_written(tmp_path):
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(2, 2)

        def forward(self, x):
            return self.lin(x) * len(x)  # a number of Python: the rows of the example

    x = RNG.random((4, 2), np.float32)
    with pytest.raises(ContractError, match="differs from the model in 'output'"):
        exported(tmp_path / "m.onnx", Counts(), x, x)
    assert not (tmp_path / "m.onnx").exists()


def test_what_torch_cannot_export_is_refused_in_one_sentence(tmp_path):
    class Sorted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(2, 2)

        def forward(self, x):
            return torch.special.bessel_j0(self.lin(x).detach()) + self.lin(x)

    x = RNG.random((4, 2), np.float32)
    with pytest.raises(CapabilityError, match=r"torch\.onnx\.export cannot export this model"):
        exported(tmp_path / "m.onnx", Sorted(), x, x)
