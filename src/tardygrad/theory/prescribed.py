"""Settings as the theorems schedule them: a number c becomes c · t^exponent.

The theorems of SD and DC take constants in t that are powers of T. A method does not know how long it will run, so it
takes the same powers of t, which are the theorem's at t = T. Of SD they are those for delays that stay bounded.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tardygrad.core.schedules import Power, Schedule
from tardygrad.errors import Invalid, nearest
from tardygrad.theory.rates import PRESETS, preset

Prescription = Callable[[str, float | Schedule], float | Schedule]
"""A setting's name and what was given for it, to what it shall be."""


def prescribed(
    method: str, schedule: str, tail: float | None, *, downplay: bool = False, compensate: bool = False
) -> Prescription:
    """What becomes of a method's settings under a schedule: "constant", "theory", or one of several of the theory's.

    >>> prescribed("clip2", "theory", 1.5)("lr", 0.1)
    Power(value=0.1, exponent=-0.5)
    """
    if schedule == "constant":
        if tail is not None:
            raise Invalid(f"`tail` is for the theory's schedules only, got tail={tail!r}. Add schedule='theory'.")
        return lambda name, value: value
    known = ["constant", *(one.name.replace(method, "theory", 1) for one in PRESETS if one.name.startswith(method))]
    if schedule not in known:
        raise Invalid(f"`schedule` must be one of {', '.join(known)}, got {schedule!r}.{nearest(str(schedule), known)}")
    treated = "sd-" * downplay + "dc-" * compensate
    wanted = treated + schedule.replace("theory", method)
    if wanted not in [one.name for one in PRESETS]:
        raise Invalid(f"the theory has no schedule for {wanted!r}, got schedule={schedule!r}. Use 'constant'.")
    if tail is None:
        raise Invalid(
            f"schedule={schedule!r} needs `tail`, the noise's tail index, got none. Give for example tail=1.5."
        )
    exponents = preset(wanted).exponents(tail)

    def power(name: str, value: float | Schedule) -> float | Schedule:
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            fix = f" Give {name}={value.value:g}." if isinstance(value, Power) else ""
            raise Invalid(f"`{name}` must be a finite number with schedule={schedule!r}, got {value!r}.{fix}")
        exponent = float(exponents[name])
        return Power(value, exponent) if exponent else value

    return power
