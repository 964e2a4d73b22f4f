"""Each mutant of the engine is killed by the law test that it names."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from unified_ipu.errors import UnifiedIpuError
from unified_ipu.testing.threads import RanksFailedError


def _load(path: Path) -> Any:
    name = f"mutation_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


LAWS = _load(Path(__file__).with_name("test_update_law.py"))
MUTANTS = _load(Path(__file__).parents[1] / "mutants.py").MUTANTS


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_the_mutant_is_killed(mutant):
    law = getattr(LAWS, mutant.killer)
    law()  # holds on the engine as it is, so the failure below is the mutant's
    with mutant.patch():
        with pytest.raises((AssertionError, pytest.fail.Exception, RanksFailedError)) as caught:
            law()
    if isinstance(caught.value, RanksFailedError):
        # A mutant that no longer fits the engine ends in a TypeError, which kills nothing.
        for error in caught.value.errors.values():
            assert isinstance(error, (AssertionError, pytest.fail.Exception, UnifiedIpuError)), (
                error
            )


def test_every_mutant_has_a_killer_of_its_own():
    killers = [mutant.killer for mutant in MUTANTS]
    assert len(set(killers)) == len(killers) == 10
