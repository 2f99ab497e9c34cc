"""Rules that the settings of several tasks obey."""

from __future__ import annotations

import math

from tardygrad.errors import Invalid, is_number


def whole(name: str, value: object, least: int = 1) -> None:
    """Refuse what is not a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise Invalid(f"`{name}` must be a whole number, {least} or more, got {value!r}.")


def number(name: str, value: object, least: float = 0.0, *, above: bool = False) -> None:
    """Refuse what is not a finite number of at least `least`, or `above` it."""
    fine = is_number(value) and math.isfinite(value)  # type: ignore[arg-type]
    if not fine or not (value > least if above else value >= least):  # type: ignore[operator]
        rule = f"above {least:g}" if above else f"{least:g} or more"
        raise Invalid(f"`{name}` must be a finite number, {rule}, got {value!r}.")
