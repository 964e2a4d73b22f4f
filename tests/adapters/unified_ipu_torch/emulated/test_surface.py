"""The documented table of names says what the emulation has, notes, refuses and lacks."""

from __future__ import annotations

import inspect
import logging
from pathlib import Path

import pytest

from unified_ipu_torch.emulated import poptorch
from unified_ipu_torch.emulated.poptorch import log
from unified_ipu_torch.emulated.surface import ABSENT, DONE, NAMES, NOTE, REFUSED, render, status_of

PAGE = Path(__file__).parents[4] / "docs" / "emulated-ipu.md"
OURS = {"register_custom_op"}  # stands in for operators that users compile


def test_the_page_holds_the_table_of_today():
    assert PAGE.read_text(encoding="utf-8").endswith(render())


def test_every_public_name_of_the_emulation_is_the_sdks():
    known = set(NAMES[0][2].split())
    shown = {
        name
        for name, value in vars(poptorch).items()
        if not name.startswith("_")
        and (name in known or inspect.isclass(value) or inspect.isfunction(value))
    }
    assert shown - known == OURS


@pytest.mark.parametrize(
    ("owner", "name", "state"),
    [
        (poptorch, "trainingModel", DONE),
        (poptorch, "load", REFUSED),
        (poptorch, "fps", REFUSED),
        (poptorch, "set_available_memory", NOTE),
        (poptorch, "autocast", ABSENT),
        (poptorch.Options, "deviceIterations", DONE),
        (poptorch.Options, "enableSyntheticData", DONE),
        (poptorch.Options, "enableExecutableCaching", NOTE),
        (poptorch.Options, "autocastEnabled", ABSENT),
    ],
)
def test_states_are_read_off_the_code(owner, name, state):
    assert status_of(owner, name) == state


@pytest.mark.parametrize("name", ["load", "fps", "nearest", "ctc_beam_search_decoder"])
def test_what_is_refused_raises_with_the_reason(name):
    with pytest.raises(poptorch.Error, match=f"poptorch.{name} is not emulated: "):
        getattr(poptorch, name)()


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("useIpuModel", (True,)),
        ("useIpuId", (0,)),
        ("modelName", ("a",)),
        ("enableExecutableCaching", ("folder",)),
        ("setAvailableMemoryProportion", ({"IPU0": 0.1},)),
        ("syncPattern", (poptorch.SyncPattern.Full,)),
        ("enableProfiling", ()),
    ],
)
def test_what_has_no_effect_says_so_once(name, arguments, monkeypatch, caplog):
    monkeypatch.setattr(log, "_said", set())
    assert status_of(poptorch.Options, name) == NOTE
    with caplog.at_level(logging.INFO, logger="poptorch::python"):
        getattr(poptorch.Options(), name)(*arguments)
        said = caplog.text.count("has no effect in the emulation")
        getattr(poptorch.Options(), name)(*arguments)
    assert said >= 1
    assert caplog.text.count("has no effect in the emulation") == said
