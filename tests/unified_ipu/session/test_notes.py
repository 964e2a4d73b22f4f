from __future__ import annotations

import logging

import pytest

import unified_ipu as ui
from unified_ipu.session.notes import log_notes

LOGGER = "unified_ipu.session"


def test_notes_are_logged_once_on_the_first_rank(caplog):
    with caplog.at_level(logging.INFO, LOGGER):
        log_notes(["one", "two 100 %"], is_first=True)
        log_notes(["not here"], is_first=False)
    assert [record.getMessage() for record in caplog.records] == ["one", "two 100 %"]


def test_l1_12_compile_says_which_layers_see_the_micro_batch(caplog):
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    with caplog.at_level(logging.INFO, LOGGER), ui.Session(ui.Plan(), argv=[]) as session:
        session.compile(model, loss=torch.nn.MSELoss())
    said = [record.getMessage() for record in caplog.records if record.name == LOGGER]
    assert len(said) == 1
    assert "('1'): results depend on batch.micro_batch_size" in said[0]
