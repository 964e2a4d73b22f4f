"""Models that leave the session: exported by the first rank, handed back when fit ends."""

from __future__ import annotations

from typing import Any, List

import numpy as np
import pytest

import unified_ipu as ui
from unified_ipu.adapter import Capability, Support
from unified_ipu.errors import CapabilityError, ConfigError
from unified_ipu.testing.threads import RanksFailedError
from unified_ipu_numpy import MeanSquaredError, Mlp, NumpyReplica

X = np.random.default_rng(0).normal(size=(8, 3))
Y = X @ np.array([[1.0], [-2.0], [0.5]])


@pytest.fixture
def exporting(monkeypatch: Any) -> Any:
    """Give the numpy replica the optional methods; returns ``exporting(write)``."""

    def install(write: Any) -> None:
        support = ui.load_adapter("numpy").support
        monkeypatch.setitem(support, Capability.ONNX_EXPORT, Support.FULL)
        monkeypatch.setattr(NumpyReplica, "export_onnx", write, raising=False)

    return install


def test_an_adapter_that_cannot_export_says_so(on_ranks, compiled):
    with pytest.raises(RanksFailedError) as caught:
        on_ranks(1, lambda session: compiled(session).export_onnx("model.onnx"))
    assert isinstance(caught.value.errors[0], CapabilityError)
    assert "export to ONNX is not_written" in str(caught.value.errors[0])


def test_the_first_rank_alone_writes(on_ranks, compiled, exporting, tmp_path):
    written: List[Any] = []
    exporting(lambda replica, path: written.append(path))
    on_ranks(3, lambda session: compiled(session).export_onnx(tmp_path / "model.onnx"))
    assert written == [tmp_path / "model.onnx"]


def test_what_the_first_rank_could_not_write_is_an_error_on_all(on_ranks, compiled, exporting):
    def full(replica: Any, path: Any) -> None:
        raise OSError(28, "No space left on device")

    exporting(full)

    def export(session: ui.Session) -> str:
        with pytest.raises(ConfigError, match="No space left on device") as caught:
            compiled(session).export_onnx("model.onnx")
        return str(caught.value)

    messages = on_ranks(2, export)
    assert all("the first rank could not write 'model.onnx'" in message for message in messages)


def test_fit_hands_back_the_weights_it_ends_with(on_ranks, monkeypatch):
    handed: List[Any] = []
    monkeypatch.setattr(
        NumpyReplica,
        "hand_back",
        lambda replica: handed.append({n: v.copy() for n, v in replica._parameters.items()}),
        raising=False,
    )

    def fit(session: ui.Session) -> Any:
        program = session.compile(
            Mlp((3, 1)), loss=MeanSquaredError("mean"), optimizer=ui.optim.SGD(lr=0.1)
        )
        program.fit(session.loader((X, Y)), epochs=1)
        return program.weights()

    (weights,) = on_ranks(1, fit)
    assert len(handed) == 1
    for name, value in weights.items():
        assert handed[0][name].tobytes() == value.tobytes()


def test_what_an_adapter_prepares_is_what_optimizers_are_made_from(on_ranks, monkeypatch):
    prepared: List[Any] = []

    def prepare(adapter: Any, model: Any) -> Any:
        prepared.append(Mlp((3, 1), seed=7))
        return prepared[-1]

    monkeypatch.setattr(type(ui.load_adapter("numpy")), "prepare", prepare, raising=False)
    given: List[Any] = []

    def optimizer(model: Any) -> Any:
        given.append(model)
        return ui.optim.SGD(lr=0.1)

    def names(session: ui.Session) -> Any:
        program = session.compile(Mlp((3, 1)), loss=MeanSquaredError("mean"), optimizer=optimizer)
        return program.weights()

    (weights,) = on_ranks(1, names)
    assert given == prepared
    assert {n: v.tobytes() for n, v in weights.items()} == {
        n: v.tobytes() for n, v in prepared[0].parameters.items()
    }
