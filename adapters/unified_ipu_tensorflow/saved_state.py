"""Refusals of the saved state of another optimizer, in one wording for all kinds."""

from __future__ import annotations

from typing import Optional, Sequence

from unified_ipu.errors import ConfigError


def check_kind(what: str, saved: Optional[str], own: Optional[str]) -> None:
    """Refuse the state of another kind of optimizer or schedule.

    Raises:
        ConfigError: If the kinds differ.
    """
    if saved != own:
        raise ConfigError(
            f"the state was saved with {what} {saved}, this program has {own}; compile it with "
            "the same one"
        )


def check_parameters(saved: Sequence[str], own: Sequence[str]) -> None:
    """Refuse the state of an optimizer over other variables.

    Raises:
        ConfigError: If the names differ.
    """
    if list(saved) != list(own):
        raise ConfigError(
            "the saved optimizer trains other variables, or has them in another order; saved: "
            f"{', '.join(saved[:6])}{', ...' if saved[6:] else ''}; here: "
            f"{', '.join(own[:6])}{', ...' if own[6:] else ''}"
        )
