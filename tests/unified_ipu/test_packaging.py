"""What lies on disk, what the wheel ships and what is registered are the same."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = SETTINGS["project"]
WHEEL = SETTINGS["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
PINS = dict(
    line.split("==")
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("#")
)


def requirement_name(requirement):
    return re.split(r"[<>=!;\[ ]", requirement, maxsplit=1)[0]


def on_disk():
    return {path.parent.name for path in (ROOT / "adapters").glob("*/__init__.py")}


def test_every_adapter_folder_is_shipped_and_registered():
    entries = PROJECT["entry-points"]["unified_ipu.adapters"]
    shipped = {Path(package).name for package in WHEEL} - {"unified_ipu"}
    registered = {target.partition(":")[0] for target in entries.values()}
    assert on_disk() == shipped == registered


def test_every_shipped_package_is_typed():
    for package in WHEEL:
        assert (ROOT / package / "py.typed").is_file(), package


def test_every_entry_point_names_something_that_exists():
    for group in PROJECT["entry-points"].values():
        for target in group.values():
            module, _, name = target.partition(":")
            path = ROOT / "adapters" / Path(*module.split("."))
            file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
            text = file.read_text(encoding="utf-8")
            assert re.search(rf"^(def|class) {name}\b", text, re.MULTILINE), target


def test_the_import_rules_cover_every_adapter():
    rules = SETTINGS["tool"]["importlinter"]
    assert set(rules["root_packages"]) == {"unified_ipu"} | on_disk()
    core = next(rule for rule in rules["contracts"] if rule["source_modules"] == ["unified_ipu"])
    assert on_disk() <= set(core["forbidden_modules"])


def test_the_folder_of_adapters_is_no_package():
    assert not (ROOT / "adapters" / "__init__.py").exists()


def test_no_folder_hides_a_framework():
    hidden = {"torch", "tensorflow", "keras", "onnx", "numpy", "adapters"}
    assert not hidden & {path.name for path in (ROOT / "adapters").iterdir()}


def test_no_sdk_name_is_required_from_a_registry():
    # Packages of these names exist there and are unrelated projects.
    extras = PROJECT["optional-dependencies"].values()
    required = {requirement_name(line) for extra in extras for line in extra}
    required |= {requirement_name(line) for line in PROJECT["dependencies"]}
    assert not required & {"popart", "poplar", "poptorch", "popxl"}


def test_the_floor_is_python_3_8_with_the_numpy_of_the_sdk():
    assert PROJECT["requires-python"] == ">=3.8"
    assert "numpy>=1.19" in PROJECT["dependencies"]
    assert SETTINGS["tool"]["ruff"]["target-version"] == "py38"
    assert "numpy==1.19.5" in (ROOT / "constraints-floor.txt").read_text(encoding="utf-8")


def test_every_dependency_is_pinned_for_development():
    extras = PROJECT["optional-dependencies"].values()
    required = {requirement_name(line) for extra in extras for line in extra}
    required |= {
        requirement_name(line) for line in PROJECT["dependencies"] if "python_version" not in line
    }
    assert required <= set(PINS)


@pytest.mark.slow
def test_the_wheel_holds_the_packages_and_nothing_else(tmp_path):
    if sys.version_info < (3, 9):
        pytest.skip("built on the main Python")
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation"]
    command += ["-q", "-w", str(tmp_path)]
    subprocess.run([*command, str(ROOT)], check=True, capture_output=True, timeout=110)
    (wheel,) = tmp_path.glob("*.whl")
    listing = subprocess.run(
        [sys.executable, "-m", "zipfile", "-l", str(wheel)],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    ).stdout
    names = {line.split()[0] for line in listing.splitlines()[1:]}
    tops = {name.partition("/")[0] for name in names}
    assert tops - {f"unified_ipu-{PROJECT['version']}.dist-info"} == {
        Path(package).name for package in WHEEL
    }
    for package in WHEEL:
        files = {
            path.relative_to(ROOT / package).as_posix() for path in (ROOT / package).rglob("*.py")
        }
        assert {f"{Path(package).name}/{file}" for file in files} <= names
