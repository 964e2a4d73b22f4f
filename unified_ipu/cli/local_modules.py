"""What the modules beside a script import, read from their text: nothing is run."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import List, Optional, Sequence, Set, Tuple


def importing_modules(module: str, packages: Sequence[str], *, folder: Path) -> Tuple[str, ...]:
    """How a module comes to import one of some packages.

    Args:
        module: Dotted name.
        packages: First words of those that are looked for.
        folder: Where the script lies; modules that are not found there are not looked into.

    Returns:
        The modules from this one to the package, or nothing.
    """
    return tuple(_chain(module, packages, folder, set()))


def file_of(module: str, folder: Path) -> Optional[Path]:
    """The file of a module beside a script; None if it is elsewhere."""
    path = folder.joinpath(*module.split("."))
    for found in (path.with_suffix(".py"), path / "__init__.py"):
        if found.is_file():
            return found
    return None


def _chain(module: str, packages: Sequence[str], folder: Path, seen: Set[str]) -> List[str]:
    if module.partition(".")[0] in packages:
        return [module]
    path = file_of(module, folder)
    if path is None or module in seen:
        return []
    seen.add(module)
    for imported in _imports(path, module):
        rest = _chain(imported, packages, folder, seen)
        if rest:
            return [module, *rest]
    return []


def _imports(path: Path, module: str) -> List[str]:
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    found: List[str] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            found += [source, *(f"{source}.{each.name}" for each in node.names)]
    return found
