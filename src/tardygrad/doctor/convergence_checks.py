"""Checks of convergence: divergence, progress, clipping and tails."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tardygrad.doctor.delay_checks import client_list
from tardygrad.doctor.finding import Finding, Severity
from tardygrad.doctor.what_if import WhatIf
from tardygrad.runs.events import Tail
from tardygrad.runs.history import History, printable
from tardygrad.runs.own_code import trust_option
from tardygrad.runs.record import Row
from tardygrad.runs.run import plural

SHORT = 20  # fewer rounds show no trend
OUT = 10.0  # a value this many times above the lowest so far is out of bounds
ALWAYS = 0.95  # a clip that changes more than this share of the coordinates always binds
EARLY = 10  # early rounds are the first tenth, but at least this many
HIGH = 0.9  # quantile of the early ‖Δ‖ that is suggested as a clip: later rounds stay below
TENTH = 10.0  # divisor of a learning rate if the growth of the moves does not say how much too large it is


def skipped_checks(history: History) -> set[str]:
    """Checks that need settings of the method, if the record of a run started in Python does not have them."""
    if history.method_settings is not None:
        return set()
    return {"local clip"} if _clip2(history) else {"local clip", "outer clip"}


def _clip2(history: History) -> bool:
    return history.label.endswith("Clip²")


def divergence(history: History, what_if: WhatIf) -> Finding | None:
    """Loss, ‖Δ‖ or moves grow out of bounds and stay there, or the model is no longer finite."""
    rounds = history.rounds
    diverged = history.status == "diverged"
    early, late, least = _trend(rounds.loss)
    if not diverged and not late > 2 * early:
        if len(rounds) < SHORT or late - least <= 0.5 * (early - least) or late <= 3 * least:
            return None
        says = f"the training loss fell from {early:.4g} to {least:.4g}, but rose again to {late:.4g}."
        lr = history.setting("lr")
        how = f"method.lr={{value={lr:g}, exponent=-0.5}}" if isinstance(lr, int | float) else "a schedule for lr"
        advice = f"use decreasing learning rates ({how}), or smaller ones"
        return Finding("warning", "divergence", says, advice, numbers={"first": early, "least": least, "last": late})
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
        says += f" From round {start + 1} on, {names[what]} stays above {OUT:g} times its lowest value"
        says += f" (medians of {plural(width, 'round')}). That " if width > 1 else ". That "
        whose = client_list(history, sorted(set(clients)))
        says += f"round used updates of {whose} with delays up to {max(late_by)} (the run's median is "
        says += f"{np.median(rounds.delays):g})."
    advice = _smaller(history, numbers["growth"])
    if known and max(numbers["delays"]) > 4 * np.median(rounds.delays) and "SD-" not in history.label:
        weight = what_if.downplayed()
        advice += f"; or {weight}, because that round had unusually late updates" if weight else ""
    return Finding("severe", "divergence", says, advice, "unknown: the simulation has no losses", numbers)


def onset(values: NDArray[np.float64], width: int = 1) -> int | None:
    """The first round (from 0) after which all values stay above ten times the lowest before it, or None.

    Args:
        width: compare medians of this many rounds, so that one client with a loss of 0 does not set the lowest value.

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
    """The median loss of the first, the last and the best tenth of the rounds."""
    known = loss[np.isfinite(loss)]
    if len(known) < SHORT:
        return math.nan, math.nan, math.nan
    tenths = [float(np.median(part)) for part in np.array_split(known, 10)]
    return tenths[0], tenths[-1], min(tenths)


def _growth(moves: NDArray[np.float64]) -> float | None:
    """The factor by which the moves grow per round."""
    known = moves[np.isfinite(moves) & (moves > 0)]
    if len(known) < 2 or known[-1] <= known[0]:
        return None
    return math.exp(min((math.log(known[-1]) - math.log(known[0])) / (len(known) - 1), 50.0))


def _smaller(history: History, growth: float | None) -> str:
    """A smaller learning rate to try: if moves grow by g per round, the limit of stability is 2/(1 + g) of the present
    rate, and half of that is suggested. Clipped or delayed moves grow more slowly than that assumes: at most a tenth.
    """
    found, rounds = "use a smaller lr or local_lr", history.rounds
    lr = history.setting("lr")
    if isinstance(lr, int | float) and not isinstance(lr, bool):
        held = [rounds.delays.max(initial=1) > 1, (rounds.clipped > 0).any(), (rounds.local_clipped > 0).any()]
        less = TENTH if any(held) or not growth else 0.0
        found = f"use a smaller lr: method.lr={lr / max(1 + (growth or 0.0), less):.2g} as a first try"
        local = history.setting("local_lr")
        many = history.setting("local_steps") != 1 or history.setting("compensate") is True or "DC-" in history.label
        if many and not (rounds.local_clipped > 0).any() and isinstance(local, int | float):
            found += f", and also method.local_lr={local / TENTH:.2g} if local steps overshoot"
    if history.label.endswith("SGDClip"):
        found += "; or clip at the server as well (method.kind=clip2)"
    return found


def outer_clip(history: History, what_if: WhatIf) -> Finding | None:
    """The server's clip never or always binds."""
    clip = history.setting("clip")
    has = clip is not None and clip != "inf" if history.method_settings is not None else _clip2(history)
    shares = history.rounds.clipped[np.isfinite(history.rounds.clipped)]
    if not has or not len(shares) or history.status == "diverged":
        return None
    advice, wanted = _looser(history)
    numbers = {"clipped": float(shares.mean()), "clip": clip, "suggested": wanted}
    value = "" if clip is None or isinstance(clip, dict) else f" ũ = {clip:g}"
    if shares.max() == 0:
        bounds = [history.setting(key) for key in ("local_lr", "local_steps", "local_clip")]
        most = math.prod(bounds) if all(isinstance(bound, int | float) for bound in bounds) else math.inf
        above = {"l2": "no Δ was longer", "coordinate": "no coordinate of Δ was larger"}
        says = f"the server's clip{value} never binds: {above.get(_norm(history) or '', 'it changed nothing')} "
        says += f"in {len(shares)} rounds"
        if isinstance(clip, int | float) and most <= clip:  # the largest coordinate that an update can have
            says += f", and none can be, because η_ℓ·K·u = {most:.3g}"
        says += ". This run equals SGDClip." if _clip2(history) else "."
        advice += "; or remove the clip: method.kind=sgdclip method.clip= method.lower=" if _clip2(history) else ""
    elif shares.mean() > ALWAYS:
        says = f"the server's clip{value} {_always(_norm(history), shares, 'Δ', 'moves')}."
    else:
        return None
    return Finding("warning", "outer clip", says, advice, numbers=numbers)


def _looser(history: History) -> tuple[str, float | None]:
    """A clip for the server from the largest early ‖Δ‖: they get smaller as a run converges."""
    norms = history.rounds.norm[: max(len(history.rounds) // 10, EARLY)]
    if not np.isfinite(norms).any():
        return "choose another method.clip", None
    norm, over = float(np.nanquantile(norms, HIGH)), _norm(history)
    when = f"the {HIGH:g} quantile of the first {plural(len(norms), 'round')}"
    if over is None:
        return f"choose the clip based on ‖Δ‖ = {norm:.2g}, {when}", None
    wanted = norm if over == "l2" else 2 * norm / math.sqrt(history.parameters or 1)
    return f"use method.clip={wanted:.2g}, {'‖Δ‖' if over == 'l2' else 'twice ‖Δ‖/√d'} at {when}", wanted


def _norm(history: History, *, local: bool = False) -> str | None:
    """What is clipped, the length ("l2") or coordinates; None if it is not known."""
    if history.method_settings is None:
        return None
    whole = history.setting("norm") == "l2" or (local and history.setting("inner") == "l2clip")
    return "l2" if whole else "coordinate"


def _always(norm: str | None, shares: NDArray[np.float64], what: str, left: str) -> str:
    """The effect of a clip that always binds."""
    if norm == "l2":
        return f"shortens {shares.mean():.0%} of all {what}: almost all {left} have the same length"
    if norm is None:
        return f"changes {shares.mean():.0%} of {what}"
    return f"changes {shares.mean():.0%} of the coordinates of {what}: little but their signs is left of {left}"


def local_clip(history: History, what_if: WhatIf) -> Finding | None:
    """The clients' clip never or always binds."""
    clip: Any = history.setting("local_clip")
    shares = history.rounds.local_clipped[np.isfinite(history.rounds.local_clipped)]
    if clip is None or clip == "inf" or not len(shares) or history.status == "diverged":
        return None
    value = f" u = {clip:g}" if isinstance(clip, int | float) else ""
    numbers = {"clipped": float(shares.mean()), "clip": clip}
    look = f"see how much each threshold would clip: tardygrad tail {history.path}{trust_option(history.spec)}"
    norm = _norm(history, local=True)
    if shares.max() == 0:
        above = "no gradient is longer" if norm == "l2" else "no coordinate of a gradient is larger"
        says = f"the clients' clip{value} never binds: {above}, so heavy tails are not cut off."
    elif shares.mean() > ALWAYS:
        says = f"the clients' clip{value} {_always(norm, shares, 'gradients', 'steps')}."
    else:
        return None
    severity: Severity = "note" if norm == "l2" or shares.max() == 0 else "warning"
    return Finding(severity, "local clip", says, look, numbers=numbers)


def progress(history: History, what_if: WhatIf) -> Finding | None:
    """The training loss does not fall."""
    early, late, _ = _trend(history.rounds.loss)
    if history.status == "diverged" or not (early >= 0 and 0.9 * early < late <= 2 * early):
        return None
    falls, size = ("hardly fell", "larger") if late <= early else ("did not fall", "smaller")
    says = f"the training loss {falls}: from {early:.4g} to {late:.4g} in {len(history.rounds)} rounds."
    advice = f"try a {size} lr or local_lr, or other clips: tardygrad sweep"
    return Finding("warning", "progress", says, advice, numbers={"first": early, "last": late})


def tails(history: History, what_if: WhatIf) -> Finding | None:
    """The tail of the updates, if the run estimated it."""
    known = [tail for tail in history.tails if tail.round is not None and isinstance(tail.index, int | float)]
    return tail_finding(history, known[-1], f"the updates of round {known[-1].round}") if known else None


def tail_finding(history: History, tail: Tail, whose: str) -> Finding:
    """What a tail index means for clipping."""
    band = (tail.low, tail.high)
    sure = f" ({tail.low:.3g} to {tail.high:.3g})" if all(isinstance(end, int | float) for end in band) else ""
    says = f"the tail index of {whose} is {tail.index:.3g}{sure}: {printable(tail.verdict)}."
    clips = history.method_settings is None or history.setting("local_clip") not in (None, "inf")
    infinite = "infinite" in str(tail.verdict)
    numbers = {"index": tail.index, "low": tail.low, "high": tail.high, "verdict": tail.verdict}
    if infinite and not clips:
        says += " The clients do not clip: with such noise no learning rate is safe."
        return Finding("warning", "tail", says, "set method.local_clip", numbers=numbers)
    return Finding("note", "tail", says, numbers=numbers)
