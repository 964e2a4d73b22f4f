"""Scripts written for the SDK, run with a stand-in for its modules."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

import pytest

from unified_ipu.errors import ConfigError
from unified_ipu.launch import emulated


class Point:
    """An entry point that counts how often it is loaded."""

    def __init__(self, value, function):
        self.value, self._function, self.loads = value, function, 0

    def load(self):
        self.loads += 1
        return self._function


@pytest.fixture(autouse=True)
def untouched(monkeypatch):
    """Give back modules, finders and arguments as they were."""
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    yield
    sys.modules.pop("emulated_sdk", None)


def install():
    module = ModuleType("emulated_sdk")
    vars(module)["answer"] = 42
    sys.modules["emulated_sdk"] = module


@pytest.fixture
def point(monkeypatch):
    found = Point("a_package:install", install)
    monkeypatch.setattr("unified_ipu.adapter.registered", lambda group: {"emulated_sdk": found})
    return found


def script(tmp_path, text):
    path = tmp_path / "script.py"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_a_script_imports_what_stands_in_and_keeps_its_arguments(tmp_path, point, capsys):
    path = script(
        tmp_path,
        "import sys, emulated_sdk, emulated_sdk as again\n"
        "print(emulated_sdk.answer, sys.argv[1:], __name__, again is emulated_sdk)\n",
    )
    assert emulated.run_emulated(path, ["--epochs", "2"]) == 0
    assert capsys.readouterr().out == "42 ['--epochs', '2'] __main__ True\n"
    assert point.loads == 1


def test_nothing_is_installed_for_a_script_that_does_not_ask(tmp_path, point):
    assert emulated.run_emulated(script(tmp_path, "import json\n")) == 0
    assert point.loads == 0


def test_an_error_of_the_script_is_shown_without_our_own_frames(tmp_path, point, capsys):
    path = script(tmp_path, "import emulated_sdk\nraise RuntimeError('as planned')\n")
    assert emulated.run_emulated(path) == 1
    shown = capsys.readouterr().err
    assert "RuntimeError: as planned" in shown
    assert "script.py" in shown
    assert "runpy" not in shown
    assert "emulated.py" not in shown


def test_a_script_ends_with_the_status_it_chose(tmp_path, point):
    with pytest.raises(SystemExit) as ended:
        emulated.run_emulated(script(tmp_path, "raise SystemExit(7)\n"))
    assert ended.value.code == 7


def test_a_script_that_is_not_there_is_named():
    with pytest.raises(ConfigError, match=r"nowhere\.py: no such script"):
        emulated.run_emulated("nowhere.py")


def test_a_real_sdk_is_never_replaced(tmp_path, point, monkeypatch):
    (tmp_path / "poptorch.py").write_text("", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match="poptorch can be imported here"):
        emulated.run_emulated(script(tmp_path, ""))
    assert point.loads == 0


def test_an_emulation_that_installs_nothing_is_refused_by_name(monkeypatch):
    idle = Point("a_package:idle", lambda: None)
    monkeypatch.setattr("unified_ipu.adapter.registered", lambda group: {"emulated_sdk": idle})
    sys.meta_path.insert(0, emulated.EmulationFinder())
    with pytest.raises(ConfigError, match="a_package:idle is registered as an emulation"):
        importlib.import_module("emulated_sdk")


def test_what_was_installed_keeps_its_own_spec(point):
    sys.meta_path.insert(0, emulated.EmulationFinder())
    module = importlib.import_module("emulated_sdk")
    assert module.__spec__ is None
    assert module.answer == 42
