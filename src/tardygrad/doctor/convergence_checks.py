"""How the learning goes: divergence, progress, clips, tails. Each check says what it saw, in numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tardygrad.doctor.delay_checks import named
from tardygrad.doctor.finding import Finding, Severity
from tardygrad.doctor.history import History
from tardygrad.doctor.what_if import Remedies
from tardygrad.report.loader import text
from tardygrad.runs.events import Tail
from tardygrad.runs.record import Row
from tardygrad.runs.run import plural

SHORT = 20  # rounds that show no trend
OUT = 10.0  # times the lowest value so far: out of the band
ALWAYS = 0.95  # share of coordinates
EARLY = 10  # rounds at least that are early, or the first tenth
HIGH = 0.9  # quantile of the early ‖Δ‖: a clip there spares what follows
TENTH = 10.0  # what a rate is divided by where the growth of moves does not say how much too large it is


def unknown(history: History) -> set[str]:
    """Checks that need settings which the record of a run begun in Python does not hold."""
    if history.spec is not None:
        return set()
    return {"local clip"} if _clip2(history) else {"local clip", "outer clip"}


def _clip2(history: History) -> bool:
    return history.label.endswith("Clip²")


def divergence(history: History, remedies: Remedies) -> Iterator[Finding]:
    """Loss, ‖Δ‖ or move leave their band for good, or the model is no longer finite."""
    rounds = history.rounds
    diverged = history.status == "diverged"
    early, late, least = _trend(rounds.loss)
    if not diverged and not late > 2 * early:
        if len(rounds) >= SHORT and late - least > 0.5 * (early - least) and late > 3 * least:
            says = f"the training loss fell from {early:.4g} to {least:.4g}, and is back at {late:.4g}."
            advice = f"let the rates fall ({_falling(history)}), or use smaller ones"
            yield Finding("warning", "divergence", says, advice, numbers={"first": early, "least": least, "last": late})
        return
    width = math.ceil(history.clients / rounds.buffer)
    starts = {name: onset(getattr(rounds, name), width) for name in ("loss", "norm", "move")}
    known = {name: start for name, start in starts.items() if start is not None}
    what = min(known, key=lambda name: known[name], default="loss")
    start = known.get(what, 0)
    numbers: Row = {"growth": _growth(rounds.move[start:])}
    says = history.reason or f"the training loss rose from {early:.4g} to {late:.4g}."
    if known:
        names = {"loss": "the training loss", "norm": "‖Δ‖", "move": "‖x_t − x_{t−1}‖"}
        clients, late_by = rounds.clients[start].tolist(), rounds.delays[start].tolist()
        numbers |= {"round": start + 1, "what": what, "clients": clients, "delays": late_by}
        says += f" It began in round {start + 1}, from where {names[what]} stays above {OUT:g} times its least"
        says += f" (medians of {plural(width, 'round')}); the " if width > 1 else "; the "
        says += f"buffer then held {named(history, sorted(set(clients)))} with delays up to {max(late_by)} (median of "
        says += f"the run {np.median(rounds.delays):g})."
    advice = _smaller(history, numbers["growth"])
    if known and max(numbers["delays"]) > 4 * np.median(rounds.delays) and "SD-" not in history.label:
        weight = remedies.downplayed()
        advice += f"; or {weight}, as late updates were in it" if weight else ""
    yield Finding("severe", "divergence", says, advice, "not known: the clock knows no losses", numbers)


def onset(values: NDArray[np.float64], width: int = 1) -> int | None:
    """The first round, from 0, from which on all values are above ten times the lowest before; None: they are not.

    Args:
        width: a value is the median of so many rounds, so that one client with nothing left to learn is not the lowest.

    >>> onset(np.array([1.0, 0.5, 20.0, 0.4, 5.0, 50.0, math.nan]))
    4
    """
    if not len(values) or not np.isfinite(values).any():
        return 0 if len(values) else None
    filled = np.where(np.isfinite(values), np.abs(values), np.inf)
    if width > 1:
        filled = np.array([np.median(filled[max(end - width, 0) : end]) for end in range(1, len(filled) + 1)])
    inside = np.flatnonzero(filled <= OUT * np.minimum.accumulate(filled))
    inside = inside[np.isfinite(filled[inside])]
    start = int(inside[-1]) + 1 if len(inside) else 0
    return start if start < len(values) else None


def _trend(loss: NDArray[np.float64]) -> tuple[float, float, float]:
    """The median loss of the first and of the last tenth of the rounds, and of the best tenth."""
    known = loss[np.isfinite(loss)]
    if len(known) < SHORT:
        return math.nan, math.nan, math.nan
    tenths = [float(np.median(part)) for part in np.array_split(known, 10)]
    return tenths[0], tenths[-1], min(tenths)


def _growth(moves: NDArray[np.float64]) -> float | None:
    """By what factor the moves grow in a round."""
    known = moves[np.isfinite(moves) & (moves > 0)]
    if len(known) < 2 or known[-1] <= known[0]:
        return None
    return math.exp(min((math.log(known[-1]) - math.log(known[0])) / (len(known) - 1), 50.0))


def _smaller(history: History, growth: float | None) -> str:
    """A rate to try: a step that grows by g in a round is stable below 2/(1 + g) of its rate; half of that.

    Moves that are clipped, or late, grow by less than what that needs: there it is a tenth at most.
    """
    found, rounds = "use a smaller lr or local_lr", history.rounds
    lr = history.setting("lr")
    if isinstance(lr, int | float) and not isinstance(lr, bool):
        held = [rounds.delays.max(initial=1) > 1, (rounds.clipped > 0).any(), (rounds.local_clipped > 0).any()]
        less = TENTH if any(held) or not growth else 0.0
        found = f"use a smaller lr: method.lr={lr / max(1 + (growth or 0.0), less):.2g} is a first try"
        local = history.setting("local_lr")
        many = history.setting("local_steps") != 1 or history.setting("compensate") is True or "DC-" in history.label
        if many and not (rounds.local_clipped > 0).any() and isinstance(local, int | float):
            found += f", and with it method.local_lr={local / TENTH:.2g} if local steps overshoot, too"
    if history.label.endswith("SGDClip"):
        found += "; or clip at the server, too (method.kind=clip2)"
    return found


def _falling(history: History) -> str:
    lr = history.setting("lr")
    return f"method.lr={{value={lr:g}, exponent=-0.5}}" if isinstance(lr, int | float) else "a schedule for lr"


def outer_clip(history: History, remedies: Remedies) -> Iterator[Finding]:
    """The server's clip never binds, or always does."""
    clip = history.setting("clip")
    has = clip is not None and clip != "inf" if history.spec is not None else _clip2(history)
    shares = history.rounds.clipped[np.isfinite(history.rounds.clipped)]
    if not has or not len(shares) or history.status == "diverged":
        return
    advice, wanted = _looser(history)
    numbers = {"clipped": float(shares.mean()), "clip": clip, "suggested": wanted}
    said = "" if clip is None or isinstance(clip, dict) else f" ũ = {clip:g}"
    if shares.max() == 0:
        most = _largest_delta(history)
        above = {"l2": "no Δ was longer", "coordinate": "none of Δ's coordinates was above it"}
        says = f"the server's clip{said} never binds: {above.get(_norm(history) or '', 'it changed nothing')} "
        says += f"in {len(shares)} rounds"
        if most is not None and isinstance(clip, int | float) and most <= clip:
            says += f", and none can be, as η_ℓ·K·u = {most:.3g}"
        says += ". So this is SGDClip." if _clip2(history) else "."
        advice += "; or go without: method.kind=sgdclip method.clip= method.lower=" if _clip2(history) else ""
        yield Finding("warning", "outer clip", says, advice, numbers=numbers)
    elif shares.mean() > ALWAYS:
        says = f"the server's clip{said} {_always(_norm(history), shares, 'Δ', 'moves')}."
        yield Finding("warning", "outer clip", says, advice, numbers=numbers)


def _looser(history: History) -> tuple[str, float | None]:
    """A clip for the server, from the large ‖Δ‖ of early rounds: later ones are shorter where a run converges."""
    norms = history.rounds.norm[: max(len(history.rounds) // 10, EARLY)]
    if not np.isfinite(norms).any():
        return "use another method.clip", None
    norm, over = float(np.nanquantile(norms, HIGH)), _norm(history)
    when = f"the {HIGH:g} quantile of the first {plural(len(norms), 'round')}"
    if over is None:
        return f"choose the clip by ‖Δ‖ = {norm:.2g}, {when}", None
    wanted = norm if over == "l2" else 2 * norm / math.sqrt(history.parameters or 1)
    return f"use method.clip={wanted:.2g}, {'‖Δ‖' if over == 'l2' else 'twice ‖Δ‖/√d'} at {when}", wanted


def _norm(history: History, *, local: bool = False) -> str | None:
    """What is clipped, lengths ("l2") or coordinates; None if there is no spec to say so."""
    if history.spec is None:
        return None
    whole = history.setting("norm") == "l2" or (local and history.setting("inner") == "l2clip")
    return "l2" if whole else "coordinate"


def _always(norm: str | None, shares: NDArray[np.float64], what: str, left: str) -> str:
    """What a clip does that always binds."""
    if norm == "l2":
        return f"shortens {shares.mean():.0%} of all {what}: {left} have all but one length"
    if norm is None:
        return f"changes {shares.mean():.0%} of {what}"
    return f"changes {shares.mean():.0%} of the coordinates of {what}: {left} are all but signs"


def _largest_delta(history: History) -> float | None:
    """η_ℓ · K · u, what no coordinate of an update can exceed; None if it is not known."""
    settings = [history.setting(key) for key in ("local_lr", "local_steps", "local_clip")]
    if not all(isinstance(value, int | float) for value in settings):
        return None
    return float(math.prod(settings))


def local_clip(history: History, remedies: Remedies) -> Iterator[Finding]:
    """The clients' clip never binds, or always does."""
    clip: Any = history.setting("local_clip")
    shares = history.rounds.local_clipped[np.isfinite(history.rounds.local_clipped)]
    if clip is None or clip == "inf" or not len(shares) or history.status == "diverged":
        return
    said = f" u = {clip:g}" if isinstance(clip, int | float) else ""
    numbers = {"clipped": float(shares.mean()), "clip": clip}
    look = f"see which threshold clips how much: tardygrad tail {history.path}"
    norm = _norm(history, local=True)
    if shares.max() == 0:
        above = "no gradient is longer" if norm == "l2" else "no gradient has a coordinate above it"
        says = f"the clients' clip{said} never binds: {above}, so no tail is cut off."
        yield Finding("note", "local clip", says, look, numbers=numbers)
    elif shares.mean() > ALWAYS:
        says = f"the clients' clip{said} {_always(norm, shares, 'gradients', 'steps')}."
        severity: Severity = "note" if norm == "l2" else "warning"
        yield Finding(severity, "local clip", says, look, numbers=numbers)


def progress(history: History, remedies: Remedies) -> Iterator[Finding]:
    """The loss does not fall."""
    early, late, _ = _trend(history.rounds.loss)
    if history.status != "diverged" and early >= 0 and 0.9 * early < late <= 2 * early:
        falls = "hardly falls" if late <= early else "does not fall"
        says = f"the training loss went from {early:.4g} to {late:.4g} in {len(history.rounds)} rounds: it {falls}."
        size = "larger" if late <= early else "smaller"
        advice = f"try a {size} lr or local_lr, or other thresholds: tardygrad sweep"
        yield Finding("warning", "progress", says, advice, numbers={"first": early, "last": late})


def tails(history: History, remedies: Remedies) -> Iterator[Finding]:
    """The tail of the updates, where the run estimated it."""
    known = [tail for tail in history.tails if tail.round is not None and isinstance(tail.index, int | float)]
    if known:
        yield heavy(history, known[-1], f"the updates of round {known[-1].round}")


def heavy(history: History, tail: Tail, whose: str) -> Finding:
    """What a tail index means for a run's clips."""
    band = (tail.low, tail.high)
    sure = f" ({tail.low:.3g} to {tail.high:.3g})" if all(isinstance(end, int | float) for end in band) else ""
    says = f"the tail index of {whose} is {tail.index:.3g}{sure}: {text(tail.verdict)}."
    clips = history.spec is None or history.setting("local_clip") not in (None, "inf")
    infinite = "infinite" in str(tail.verdict)
    numbers = {"index": tail.index, "low": tail.low, "high": tail.high, "verdict": tail.verdict}
    if infinite and not clips:
        says += " The clients do not clip, and no rate makes such steps safe."
        return Finding("warning", "tail", says, "use a method.local_clip", numbers=numbers)
    return Finding("note", "tail", says, numbers=numbers)
