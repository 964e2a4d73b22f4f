"""Seeding the frameworks that are there, and the scopes in which they want models built."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import Iterator, List, Optional

from unified_ipu.adapter import Adapter, available_adapters, load_adapter
from unified_ipu.errors import AdapterLoadError
from unified_ipu.plan import Plan
from unified_ipu.world import Place


class AdapterScopes:
    """Every adapter that can be loaded; each leaves frameworks alone that nobody has imported."""

    def __init__(self, plan: Plan, place: Place) -> None:
        self._plan = plan
        self._place = place

    def _adapters(self) -> List[Adapter]:
        found = [_loaded(name) for name in available_adapters()]
        return [adapter for adapter in found if adapter is not None]

    def seed(self) -> None:
        """Seed the global generators of every framework that is imported."""
        for adapter in self._adapters():
            adapter.seed(self._plan.seed)

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Enter every adapter's scope."""
        with ExitStack() as stack:
            for adapter in self._adapters():
                stack.enter_context(adapter.scope(self._plan, self._place))
            yield


def _loaded(name: str) -> Optional[Adapter]:
    try:
        return load_adapter(name)
    except AdapterLoadError:
        return None  # its package is absent, so there is nothing to seed
