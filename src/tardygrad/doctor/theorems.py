"""The theorem for a run and its constants."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeGuard

import numpy as np

from tardygrad.core.method import Method
from tardygrad.runs.events import TailEstimate
from tardygrad.runs.history import History
from tardygrad.runs.run import label
from tardygrad.theory.delays import MAX_CONSTANT, MIN_CONSTANT, Constants
from tardygrad.theory.rates import PRESETS, Preset

PRESUMED = 1.5  # the tail index if it is unknown


class TailIndex(NamedTuple):
    """A tail index and its origin."""

    tail: float  # α
    source: str


def presets(name: str, schedule: str | None = None) -> list[Preset]:
    """The theory's schedules for a method with this label; those of SGDClip if it covers none.

    >>> [preset.name for preset in presets("SD-Clip²")], [preset.name for preset in presets("FADAS")]
    (['sd-clip2'], ['sgdclip'])
    """
    kind = "clip2" if name.endswith("Clip²") else "sgdclip"
    prefix = "sd-" if "SD-" in name else "dc-" if "DC-" in name and kind == "clip2" else ""
    if schedule and schedule.startswith("theory"):
        return [preset for preset in PRESETS if preset.name == prefix + schedule.replace("theory", kind)]
    return [preset for preset in PRESETS if preset.name.startswith(prefix + kind)]


def has_theorem(name: str) -> bool:
    """Whether a theorem covers methods with this label.

    >>> has_theorem("sync-SD-Clip²"), has_theorem("FADAS")
    (True, False)
    """
    return name.rpartition("-")[2] in ("SGDClip", "Clip²")


class Tolerance(NamedTuple):
    """The largest delay that the theory allows, up to a constant, and why; inf: there is no bound."""

    delay: float
    why: str


def tolerance(method: Method, rounds: int, tail: TailIndex, schedule: str | None = None) -> Tolerance:
    """The delay that a method tolerates in `rounds` rounds."""
    name = label(method)
    if "SD-" in name:
        return Tolerance(math.inf, "the method downplays late updates")
    if not has_theorem(name):
        return Tolerance(math.inf, "no theorem covers this method")
    delay = max(math.pow(rounds, preset.tolerance(tail.tail)) for preset in presets(name, schedule))
    return Tolerance(delay, f"{rounds} rounds and tail index {tail.tail:g}, {tail.source}; its constant is unknown")


def tail_of(spec: Any, estimates: Sequence[TailEstimate] = ()) -> TailIndex:
    """The tail index of a run's noise: the last clear measurement, or the spec's, or a default."""
    for tail in reversed(estimates):
        if (
            tail.index is not None
            and is_covered(tail.index)
            and "infinite" in str(tail.verdict)
            and is_covered(tail.high)
        ):
            source = "probed at x_0" if tail.round is None else f"measured in round {tail.round}"
            return TailIndex(float(tail.index), source)
    tables = spec if isinstance(spec, dict) else {}
    for table, key in (("method", "tail"), ("task", "noise")):
        value = (tables.get(table) or {}).get(key)
        value = value.get("tail") if isinstance(value, dict) else value
        if is_covered(value):
            return TailIndex(float(value), f"from the spec's {key}")
    return TailIndex(PRESUMED, "assumed")


def is_covered(tail: object) -> TypeGuard[float]:
    """Whether the theorems cover this tail index."""
    return isinstance(tail, int | float) and not isinstance(tail, bool) and 1 < tail <= 2


def constants(history: History, tail: float) -> Constants:
    """The theorems' constants, estimated from the record.

    G is the largest mean of ‖δ‖/(η_ℓ K) in a round, C₁ the decrease of the training loss, and L = G²/(2C₁) the smallest
    value that is consistent with them. For coordinate-wise clipping, u and ũ are replaced by u√d and ũ√d.
    """
    rounds = history.rounds
    steps = max((client.steps / client.taken for client in history.by_client if client.taken), default=1.0) or 1.0
    wide = math.sqrt(history.parameters or 1) if history.setting("norm") != "l2" else 1.0
    local_lr = _positive(history.setting("local_lr"))
    means = [float(np.nanmean(row)) for row in rounds.norms if not np.isnan(row).all()]
    gradient = max(means, default=0.0) / ((local_lr or 1.0) * steps)
    loss = rounds.loss[np.isfinite(rounds.loss)]
    gap = float(loss[0] - loss.min()) if len(loss) else 0.0
    known = {
        "local_lr": local_lr,
        "local_clip": _positive(history.setting("local_clip"), wide),
        "clip": _positive(history.setting("clip"), wide),
        "gradient": _positive(gradient),
        "gap": _positive(gap),
        "smoothness": _positive(gradient**2 / (2 * gap)) if gap > 0 else None,
    }
    positive = {name: value for name, value in known.items() if value is not None}
    return Constants(tail=tail, local_steps=max(round(steps), 1), **positive)


def _positive(value: Any, times: float = 1.0) -> float | None:
    """A positive setting, or the first value of a schedule; None if unknown."""
    if isinstance(value, dict):
        value = value.get("value", value.get("peak"))
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value * times < math.inf:
        return None
    return min(max(value * times, MIN_CONSTANT), MAX_CONSTANT)
