"""Checks of the noise: its tail index, and updates with spikes that the clients do not clip."""

from __future__ import annotations

import math

import numpy as np

from tardygrad.doctor.client_checks import overflows
from tardygrad.doctor.finding import NOT_SIMULATED, Finding
from tardygrad.doctor.trend import trend
from tardygrad.doctor.what_if import WhatIf
from tardygrad.runs.events import TailEstimate
from tardygrad.runs.history import History
from tardygrad.runs.record import Row
from tardygrad.runs.record_values import printable

SPIKE = 20.0  # an update this many times as long as the median of its time is a sign of a heavy tail
NEAR = 50  # updates before and after, whose median is the usual length
LOST = 0.1  # a run that has lost a larger share of its gain has not recovered


def tails(history: History, what_if: WhatIf) -> Finding | None:
    """The tail of the updates, if the run estimated it; else a warning if they have spikes and nothing clips them."""
    known = [tail for tail in history.tails if tail.round is not None and isinstance(tail.index, int | float)]
    spikes = unclipped_spikes(history)
    if known:
        found = tail_finding(history, known[-1], f"the updates of round {known[-1].round}")
        if found.severity == "warning" or not spikes:
            return found
    if not spikes:
        return None
    spike = _spike(history)
    says = f"an update was {spike:.3g} times as long as the median of those around it: the noise has a heavy tail, and "
    return _unclipped(history, says + "the clients do not clip.", {"spike": spike})


def tail_finding(history: History, tail: TailEstimate, whose: str) -> Finding:
    """What a tail index means for clipping."""
    band = (tail.low, tail.high)
    sure = f" ({tail.low:.3g} to {tail.high:.3g})" if all(isinstance(end, int | float) for end in band) else ""
    says = f"the tail index of {whose} is {tail.index:.3g}{sure}: {printable(tail.verdict)}."
    numbers = {"index": tail.index, "low": tail.low, "high": tail.high, "verdict": tail.verdict}
    if "infinite" in str(tail.verdict) and not history.clients_clip:
        return _unclipped(
            history, f"{says} The clients do not clip: with such noise no learning rate is safe.", numbers
        )
    return Finding("note", "tail", says, numbers=numbers)


def unclipped_spikes(history: History) -> bool:
    """Whether some updates are much longer than usual, and the clients do not clip."""
    return not history.clients_clip and _spike(history) > SPIKE


def _spike(history: History) -> float:
    """The largest ratio of ‖δ‖ to the usual length: the larger of the medians of the updates before and after it.

    The last updates have none after them: they may be so long because all updates grow.
    """
    norms = history.rounds.norms.ravel()
    norms = norms[np.isfinite(norms)]
    if len(norms) < 2 * NEAR or history.status == "diverged" or overflows(history):
        return 0.0
    padded = np.pad(norms, (NEAR, 0), mode="reflect")
    medians = np.median(np.lib.stride_tricks.sliding_window_view(padded, NEAR), axis=1)
    followed = norms[:-NEAR]
    usual = np.maximum(medians[: len(followed)], medians[-len(followed) :])
    return float((followed[usual > 0] / usual[usual > 0]).max(initial=0.0))


def _unclipped(history: History, says: str, numbers: Row) -> Finding:
    """Warn of noise that nothing clips; if the run has suffered from it, advise a clip.

    That is the typical length of the first gradients: it cuts off no coordinate of such a gradient. A run that has come
    through may not be faster with it.
    """
    norms, local_lr = history.rounds.norms[: max(len(history.rounds) // 10, 1)], history.setting("local_lr")
    steps = history.setting("local_steps") or 1
    if not _suffers(history):
        return Finding("warning", "tail", f"{says} So far the loss has recovered.", numbers=numbers)
    overrides: list[str] = []
    if isinstance(local_lr, int | float) and local_lr > 0 and "local_clip" in (history.method_settings or {}):
        clip = float(np.nanmedian(norms)) / (local_lr * steps)
        overrides = [f"method.local_clip={clip:.2g}"] if 0 < clip < math.inf else []
    advice = f"use {overrides[0]}" if overrides else "use a method that clips, such as method.kind=sgdclip"
    return Finding("warning", "tail", says, advice, NOT_SIMULATED if overrides else None, numbers, overrides)


def _suffers(history: History) -> bool:
    """Whether the training loss does not fall, or has lost more than a tenth of what it had gained."""
    found = trend(history)
    lost = found.last - found.least > LOST * (found.first - found.least)
    return history.status in ("diverged", "starved") or not found.falls or lost
