"""Fronts hold re-exports only, and list exactly what is public."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import unified_ipu

CORE = Path(unified_ipu.__file__).parent
ROOMS = sorted(
    f"unified_ipu.{module.name}" for module in pkgutil.iter_modules([str(CORE)]) if module.ispkg
)
FRONTS = ROOMS  # the root front loads names late, and has tests of its own
# Fronts of the kit and the command line are not imported by users.
LOADED_AS_PLUGIN = "unified_ipu.testing"


def tree_of(front):
    return ast.parse(inspect.getsource(importlib.import_module(front)))


def bound_names(front):
    """Name what a front binds at its top, submodules and dunders apart."""
    return {
        alias.asname or alias.name
        for statement in tree_of(front).body
        if isinstance(statement, (ast.Import, ast.ImportFrom))
        and getattr(statement, "module", "") not in {"__future__", "typing"}
        for alias in statement.names
    }


@pytest.mark.parametrize("front", FRONTS)
def test_all_is_sorted_and_equals_the_public_names(front):
    module = importlib.import_module(front)
    public = {name for name in bound_names(front) if not name.startswith("_")}
    assert list(module.__all__) == sorted(module.__all__)
    assert {name for name in module.__all__ if name != "__version__"} == public
    assert all(hasattr(module, name) for name in module.__all__)


@pytest.mark.parametrize("front", [front for front in FRONTS if front != LOADED_AS_PLUGIN])
def test_a_front_holds_nothing_but_reexports(front):
    docstring, *rest = tree_of(front).body
    assert isinstance(docstring, ast.Expr)
    for statement in rest:
        if isinstance(statement, ast.ImportFrom):
            own = (alias.asname == alias.name for alias in statement.names)
            allowed = {"__future__", "typing"}  # an empty list of names needs its type
            assert statement.module in allowed or all(own), ast.dump(statement)
        else:
            assert isinstance(statement, (ast.Assign, ast.AnnAssign)), ast.dump(statement)
            target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
            assert isinstance(target, ast.Name)
            assert target.id in {"__all__", "__version__"}


def imports_of(path):
    """Give every absolute ``from x import y`` and ``import x`` of a file as module names."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def through_the_back(path):
    """Name imports of the core that go round a front, or through the root."""
    room = path.relative_to(CORE).parts[0]
    found = []
    for module in imports_of(path):
        parts = module.split(".")
        is_root = module == "unified_ipu" and room != "__init__.py"
        is_deep = parts[0] == "unified_ipu" and len(parts) > 2 and parts[1] != room
        if is_root or (is_deep and room != "__init__.py"):
            found.append(f"{path.relative_to(CORE)}: {module}")
    return found


def test_rooms_import_each_other_through_their_fronts():
    found = [line for path in sorted(CORE.rglob("*.py")) for line in through_the_back(path)]
    assert found == []


def typed_names():
    """Give the names that the root front imports for type checkers, and its one eager import."""
    found = {}
    for statement in ast.walk(tree_of("unified_ipu")):
        if isinstance(statement, ast.ImportFrom) and str(statement.module).startswith(
            "unified_ipu"
        ):
            for alias in statement.names:
                assert alias.asname == alias.name
                found[alias.name] = str(statement.module)
    return found


def test_the_root_front_lists_what_type_checkers_see_and_what_it_loads_late():
    assert list(unified_ipu.__all__) == sorted(unified_ipu.__all__)
    homes = {name: room for room, names in unified_ipu._HOMES.items() for name in names}
    assert set(unified_ipu.__all__) == set(typed_names()) == {*homes, "launch"}
    assert dir(unified_ipu) == sorted([*unified_ipu.__all__, "__version__"])


@pytest.mark.parametrize("name", sorted(typed_names()))
def test_each_name_of_the_root_front_is_that_of_its_room(name):
    if name == "data":
        assert unified_ipu.data is importlib.import_module("unified_ipu.data")
        return
    expected = getattr(importlib.import_module(typed_names()[name]), name)
    assert getattr(unified_ipu, name) is expected


def test_an_unknown_name_of_the_root_front_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'sessions'"):
        _ = unified_ipu.sessions


def test_the_root_front_loads_no_room_before_it_is_asked():
    code = (
        "import sys, unified_ipu; "
        "assert not {'unified_ipu.session', 'unified_ipu.data'} & set(sys.modules); "
        "import unified_ipu.launch.child; assert callable(unified_ipu.launch); "
        "assert unified_ipu.data.__name__ == 'unified_ipu.data'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
