"""Live values as expressions of a script, with the imports that these need; or refused by name."""

from __future__ import annotations

import functools
import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, Dict, List, Optional, Set, Tuple

import numpy as np

from unified_ipu.adapter import literal
from unified_ipu.cli.local_modules import importing_modules
from unified_ipu.cli.traced_calls import CallTracer
from unified_ipu.errors import ConfigError

OURS = ("unified_ipu", "unified_ipu_torch", "unified_ipu_tensorflow", "unified_ipu_onnx")


class Writer:
    """Writes values; keeps the imports they need, each name for one thing.

    Args:
        script: The script that is lowered.
        calls: Those that it made.
        taken: Names that the new script uses itself.
    """

    def __init__(self, script: Path, calls: CallTracer, taken: Set[str]) -> None:
        self._script = script
        self._calls = calls
        self._names: Dict[str, Tuple[str, str]] = dict.fromkeys(taken, ("", ""))
        self._modules: Set[str] = set()

    @property
    def imports(self) -> Tuple[str, ...]:
        """Lines, those of what the written values need."""
        lines = [f"import {module}" for module in self._modules]
        for name, (module, original) in self._names.items():
            if module:
                suffix = "" if name == original else f" as {name}"
                lines.append(f"from {module} import {original}{suffix}")
        return tuple(lines)

    def write(self, value: Any, what: str) -> str:
        """Write one value.

        Args:
            value: Anything.
            what: What messages call it.

        Raises:
            ConfigError: If it cannot be made again from text.
        """
        if isinstance(value, np.generic):
            value = value.item()
        plain = _plain(value)
        if plain is not None:
            return plain
        if isinstance(value, Path):
            return f"{self._import('pathlib', 'Path', what=what)}({literal(str(value))})"
        if type(value) in {list, tuple, dict, set}:
            return self._container(value, what)
        if isinstance(value, functools.partial):
            arguments = self._arguments(value.args, value.keywords, what)
            function = self.write(value.func, what)
            self._modules.add("functools")
            return _one_line("functools.partial", [function, *arguments])
        call = self._calls.call_of(value)
        if call is not None:
            arguments = self._arguments(call.positional, call.named, what)
            return _one_line(self.write(call.function, what), arguments)
        name = self._importable(value)
        if name is not None:
            return self._import(*name, what=what)
        raise ConfigError(
            f"{what} is a {_kind(value)} that cannot be written as text; make it in a function (or "
            "a class) of a module beside the script that does not import unified_ipu, and call "
            "that function in the script"
        )

    def name(self, module: str, name: str, what: str) -> str:
        """Import ``name`` of a module that nobody has imported yet.

        Raises:
            ConfigError: If the module imports unified_ipu.
        """
        return self._import(module, name, what=what)

    def module(self, module: ModuleType) -> str:
        """Import a module."""
        self._modules.add(module.__name__)
        return module.__name__

    def _container(self, value: Any, what: str) -> str:
        if isinstance(value, dict):
            pairs = [f"{self.write(k, what)}: {self.write(v, what)}" for k, v in value.items()]
            return f"{{{', '.join(pairs)}}}"
        inside = [self.write(each, what) for each in value]
        if isinstance(value, list):
            return f"[{', '.join(inside)}]"
        if isinstance(value, set):
            return f"{{{', '.join(inside)}}}" if inside else "set()"
        return f"({inside[0]},)" if len(inside) == 1 else f"({', '.join(inside)})"

    def _arguments(self, positional: Any, named: Any, what: str) -> List[str]:
        first = [self.write(value, what) for value in positional]
        return first + [f"{name}={self.write(value, what)}" for name, value in named.items()]

    def _importable(self, value: Any) -> Optional[Tuple[str, str]]:
        """Module and name of a function or class, if that is where it is found again."""
        module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
        if not isinstance(module, str) or not isinstance(name, str):
            module, name = _framework_constant(value)
        if module is None or name is None or not name.isidentifier():
            return None
        if module == "__main__":
            return module, name
        try:
            found = getattr(importlib.import_module(module), name, None)
        except ImportError:
            return None
        if found is not value:
            return None
        return _shortest(module, name, value), name

    def _import(self, module: str, name: str, *, what: str) -> str:
        if module == "__main__":
            raise ConfigError(
                f"{what}: {name} is defined in {self._script.name} itself, which imports "
                f"unified_ipu; move {name} to a module of its own beside it, and import it from "
                "there"
            )
        if module.partition(".")[0] in OURS:
            raise ConfigError(
                f"{what}: {module}.{name} belongs to unified_ipu, which the new script does "
                "without; use the framework's own instead"
            )
        chain = importing_modules(module, OURS, folder=self._script.parent)
        if chain:
            raise ConfigError(
                f"{what}: {name} comes from module {module}, which imports unified_ipu "
                f"({' -> '.join(chain)}); move {name} to a module that does not"
            )
        if module == "builtins":
            return name
        package = module.partition(".")[0]
        if package in _QUALIFIED:
            self._modules.add(package)
            return f"{module}.{name}"
        alias = name
        while self._names.get(alias, (module, name)) != (module, name):
            alias = f"{module.rpartition('.')[2]}_{alias}"
        self._names[alias] = (module, name)
        return alias


_QUALIFIED = ("torch", "math", "functools")  # written with their package, as is usual


def _plain(value: Any) -> Optional[str]:
    if isinstance(value, float) and value != value:  # noqa: PLR0124 - not a number
        return 'float("nan")'
    if value is None or value is ... or isinstance(value, (bool, int, float, str, bytes)):
        return literal(value)
    return None


def _one_line(name: str, arguments: List[str]) -> str:
    return f"{name}({', '.join(arguments)})"


def _kind(value: Any) -> str:
    kind = type(value)
    name = getattr(value, "__qualname__", "")
    return f"{kind.__name__} {name}".strip()


def _framework_constant(value: Any) -> Tuple[Optional[str], Optional[str]]:
    """Where a constant such as ``torch.float32`` is found: its ``repr`` says."""
    module, _, name = repr(value).rpartition(".")
    if getattr(sys.modules.get(module), name or " ", None) is not value:
        return None, None
    return module, name


def _shortest(module: str, name: str, value: Any) -> str:
    """The shortest package that offers the same thing: ``torch.nn``, not its inner modules."""
    parts = module.split(".")
    for length in range(1, len(parts)):
        shorter = ".".join(parts[:length])
        if getattr(sys.modules.get(shorter), name, None) is value:
            return shorter
    return module
