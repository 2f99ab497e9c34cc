"""Settings scheduled as in the theorems: a number c becomes c · t^exponent.

The theorems of SD and DC use values that are constant in t but powers of T. A method does not know how long it will
run, so it uses the same powers of t, which agree at t = T. For SD they are the exponents for bounded delays.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tardygrad.core.schedules import Power, Schedule
from tardygrad.errors import Invalid, nearest
from tardygrad.theory.rates import PRESETS, preset

Prescription = Callable[[str, Any], Any]
"""Maps a setting's name and value to the value to use: itself, or a schedule."""


def prescribed(
    method: str, schedule: str, tail: float | None, *, downplay: bool = False, compensate: bool = False
) -> Prescription:
    """How a schedule ("constant", "theory", "theory-tolerant", ...) changes a method's settings.

    >>> prescribed("clip2", "theory", 1.5)("lr", 0.1)
    Power(value=0.1, exponent=-0.5)
    """
    if schedule == "constant":
        if tail is not None:
            raise Invalid(f"`tail` is only used by the theory's schedules, got tail={tail!r}. Add schedule='theory'.")
        return lambda name, value: value
    known = ["constant", *(p.name.replace(method, "theory", 1) for p in PRESETS if p.name.startswith(method))]
    if schedule not in known:
        raise Invalid(f"`schedule` must be one of {', '.join(known)}, got {schedule!r}.{nearest(str(schedule), known)}")
    name = "sd-" * downplay + "dc-" * compensate + schedule.replace("theory", method)
    if name not in [p.name for p in PRESETS]:
        raise Invalid(f"the theory has no schedule for {name!r}, got schedule={schedule!r}. Use 'constant'.")
    if tail is None:
        raise Invalid(f"schedule={schedule!r} needs `tail`, the noise's tail index, got none. Try tail=1.5.")
    exponents = preset(name).exponents(tail)

    def power(name: str, value: float | Schedule) -> float | Schedule:
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            fix = f" Give {name}={value.value:g}." if isinstance(value, Power) else ""
            raise Invalid(f"`{name}` must be a finite number with schedule={schedule!r}, got {value!r}.{fix}")
        exponent = float(exponents[name])
        return Power(value, exponent) if exponent else value

    return power
