"""Checks of convergence: divergence, steps that are too small, overfitting, unsteady test losses and clips."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tardygrad.core.faults import written_out
from tardygrad.doctor.client_checks import faults, overflows
from tardygrad.doctor.delay_checks import client_list
from tardygrad.doctor.finding import NOT_SIMULATED, Finding
from tardygrad.doctor.tail_checks import unclipped_spikes
from tardygrad.doctor.trend import FALLS, RISES, larger, loss_at_start, slope, trend
from tardygrad.doctor.what_if import WhatIf
from tardygrad.runs.history import History
from tardygrad.runs.record import Row
from tardygrad.runs.run import plural

OUT = 10.0  # a value this many times above the lowest so far is out of bounds
ALWAYS = 0.95  # a clip that changes more than this share of the coordinates always binds
TENTH = 10.0  # divisor of a learning rate if the growth of the moves does not say how much too large it is
EVALUATED = 5  # fewer evaluations do not show that a score stays as it is
LEARNED = 0.1  # a smaller gain in test accuracy, or share of the test loss, may be chance
MORE = 0.02  # of test accuracy: a smaller gain does not count
RISEN = 1.1  # a test loss that is this many times its lowest value has risen, if the trend is clear
SWINGS = 1.5  # a test loss that is this many times an earlier one swings, if it also lost a tenth of the gain


def skipped_checks(history: History) -> set[str]:
    """Checks that need settings of the method, if the record does not have them: in Python, or of your own."""
    if history.knows_method:
        return set()
    return {"local clip"} if _clip2(history) else {"local clip", "outer clip"}


def _clip2(history: History) -> bool:
    return history.label.endswith("Clip²")


def divergence(history: History, what_if: WhatIf) -> Finding | None:
    """Loss, ‖Δ‖ or moves grow out of bounds and stay there, or the model is no longer finite."""
    rounds, diverged = history.rounds, history.status == "diverged" or overflows(history)
    found = trend(history)
    early, late, least = found.first, found.last, found.least
    if overflows(history) and not found.rises:
        says = history.reason or f"most updates are not finite. {written_out(faults(history).values())}"
        return _rate_finding("severe", says, scaled(history, ("local_lr", "lr"), 1 / TENTH), {"refused": "not finite"})
    if not diverged and found.noisy:
        return None  # `progress` says so
    if not diverged and not found.rises:
        if (
            found.short
            or not early > 0
            or late - least <= 0.5 * (early - least)
            or late <= 3 * least
            or unclipped_spikes(history)
        ):
            return None  # after a spike, the tail is to blame
        says = f"the training loss fell from {early:.4g} to {least:.4g}, but rose again to {late:.4g}."
        overrides = scaled(history, ("lr",), 1 / 3)
        numbers: Row = {"first": early, "least": least, "last": late}
        return _rate_finding("warning", says, overrides, numbers)
    width = math.ceil(history.clients / rounds.buffer)
    starts = {name: onset(getattr(rounds, name), width) for name in ("loss", "norm", "move")}
    known = {name: start for name, start in starts.items() if start is not None}
    what = min(known, key=lambda name: known[name], default="loss")
    start = known.get(what, 0)
    numbers = {"growth": _growth(rounds.move[start:])}
    says = history.reason or f"the training loss rose from {early:.4g} to {late:.4g}."
    if known and len(rounds):
        names = {"loss": "the training loss", "norm": "‖Δ‖", "move": "‖x_t − x_{t−1}‖"}
        clients, late_by = rounds.clients[start].tolist(), rounds.delays[start].tolist()
        numbers |= {"round": start + 1, "what": what, "clients": clients, "delays": late_by}
        says += f" From round {start + 1} on, {names[what]} stays above {OUT:g} times its lowest value"
        says += f" (medians of {plural(width, 'round')}). That " if width > 1 else ". That "
        whose = client_list(history, sorted(set(clients)))
        says += f"round used updates of {whose} with delays up to {max(late_by)} (the run's median is "
        says += f"{np.median(rounds.delays):g})."
    if unclipped_spikes(history):  # the noise threw the model about: smaller steps are no cure
        return Finding("severe", "divergence", says, numbers=numbers)
    return _rate_finding("severe", says, _smaller(history, numbers["growth"], late / early), numbers)


def _rate_finding(severity: Any, says: str, overrides: list[str], numbers: Row) -> Finding:
    advice = f"use smaller steps: {' '.join(overrides)} as a first try" if overrides else "use smaller learning rates"
    return Finding(severity, "divergence", says, advice, NOT_SIMULATED if overrides else None, numbers, overrides)


def onset(values: NDArray[np.float64], width: int = 1) -> int | None:
    """The round (from 0) after which all values stay above ten times the lowest before it, or None.

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


def _growth(moves: NDArray[np.float64]) -> float | None:
    """The factor by which the moves grow per round."""
    known = moves[np.isfinite(moves) & (moves > 0)]
    if len(known) < 2 or known[-1] <= known[0]:
        return None
    return math.exp(min((math.log(known[-1]) - math.log(known[0])) / (len(known) - 1), 50.0))


def _smaller(history: History, growth: float | None = None, rise: float = 1.0) -> list[str]:
    """Smaller learning rates.

    If moves grow by g per round, the limit of stability is 2/(1 + g) of the present rate, and half of that is
    suggested. Clipped or delayed moves grow more slowly than that assumes: at most a tenth. Clipped ones end at a
    distance that is proportional to the rate, and the loss about to its square: the aim is a tenth of the first loss.

    A smaller η_ℓ makes the local steps and the server's step smaller, so it is enough, unless a clip bounds them.
    """
    rounds = history.rounds
    clipped = bool((rounds.clipped > 0).any() or (rounds.local_clipped > 0).any())
    held = clipped or rounds.delays.max(initial=1) > 1
    many = history.setting("local_steps") != 1 or history.setting("compensate") is True or "DC-" in history.label
    bounded = math.sqrt(TENTH * rise) if clipped and math.isfinite(rise) else 0.0
    divisor = min(max(1 + (growth or 0.0), TENTH if held or not growth else 0.0, bounded), TENTH**2)
    return scaled(history, ("local_lr", "lr") if many and not clipped else ("lr", "local_lr"), 1 / divisor)


def scaled(history: History, keys: Sequence[str], factor: float) -> list[str]:
    """The override that multiplies the first of these settings that the method has by a factor."""
    for key in keys:
        value = (history.method_settings or {}).get(key)  # a function of the user's own may not take those of `setting`
        scale = (
            {name: value[name] for name in ("value", "peak", "floor") if name in value}
            if isinstance(value, dict)
            else {}
        )
        if scale and all(isinstance(each, int | float) for each in scale.values()):
            return [f"method.{key}.{name}={each * factor:.2g}" for name, each in scale.items()]
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value * factor < math.inf:
            return [f"method.{key}={value * factor:.2g}"]
    return []


def progress(history: History, what_if: WhatIf) -> Finding | None:
    """The model does not move, or the training loss does not fall, or too slowly."""
    if still := _never_moved(history):
        return still
    found = trend(history)
    early, late = found.first, found.last
    if history.status == "diverged" or found.short or unclipped_spikes(history):
        return None
    if found.noisy:
        return _at_chance(history, what_if) or _noisy_loss(history)
    if not late > 0 or found.rises:
        return None
    slow = found.slow and not _overshoots(history, early - late)  # else larger steps would not be faster
    if not slow and late <= FALLS * early:
        return _at_chance(history, what_if)
    numbers: Row = {"first": early, "last": late}
    change = f"from {early:.4g} to {late:.4g} in {plural(len(history.rounds), 'round')}"
    clips = {"clip": _binds(history.rounds.clipped), "local_clip": _binds(history.rounds.local_clipped)}
    keys = [key for key, binds in clips.items() if binds] or ["lr", "local_lr"]
    cause, why, size, overrides = "progress", "", "larger", list[str]()
    if not slow and (late > early / FALLS or found.slope > 0 or _overshoots(history, late)):
        size, overrides, why = "smaller", _smaller(history), ", though the steps are long enough: they overshoot"
    elif keys[0] in clips:
        cause = {"clip": "outer clip", "local_clip": "local clip"}[keys[0]]
        why = f", and method.{keys[0]} changes almost everything: it may be too small"
    if slow and (factor := larger(found, float(history.rounds.delays.mean()))) >= 2:
        overrides = scaled(history, keys, factor)
    advice = f"use {size} steps: {' '.join(overrides)} as a first try" if overrides else None
    course = "falls steadily, but too slowly" if slow else "fell only a little" if found.falls else "did not fall"
    says = f"the training loss {course}: {change}{why}."
    return Finding("warning", cause, says, advice, NOT_SIMULATED if overrides else None, numbers, overrides)


def _noisy_loss(history: History) -> Finding:
    """The training loss does not tell; the test loss may."""
    low, high = np.quantile(history.rounds.loss[np.isfinite(history.rounds.loss)], (0.25, 0.75))
    says = f"the training loss is too noisy to tell whether it falls: half of the rounds are between {low:.3g} and "
    says += f"{high:.3g}."
    tested = _test_losses(history)
    numbers: Row = {"low": float(low), "high": float(high)}
    if len(tested) >= EVALUATED:
        best, least = min(tested, key=lambda pair: pair[1])
        last = float(np.median([loss for _, loss in tested[-max(len(tested) // 4, 1) :]]))
        numbers |= {"round": best, "least": least, "last": last}
        if last - least > LEARNED * max(abs(least), tested[0][1] - least):
            says += f" The test loss rose from {least:.4g} in round {best} to {last:.4g}."
            return _rate_finding("warning", says, scaled(history, ("lr",), 1 / 3), numbers)._replace(cause="progress")
    judge = "Judge the run by its test scores." if history.evaluations else "Give it a test set to judge it by."
    return Finding("note", "progress", f"{says} {judge}", numbers=numbers)


def _never_moved(history: History) -> Finding | None:
    """The model is still x_0, though clients have trained."""
    rounds = history.rounds
    trained = bool(rounds.steps.any() or np.isfinite(rounds.loss).any())
    if not len(rounds) or not trained or not (rounds.move == 0).all():
        return None
    says = f"the model never moved: it is x_0 after {plural(len(rounds), 'round')}, because "
    if (rounds.norms == 0).all():
        says += "every update is zero."
        advice = "check that the loss depends on trainable parameters, and that the local learning rate is not 0"
    else:
        says += "the server's step turns every round into nothing."
        advice = "check the server's learning rate and its clip, which must not be 0"
    return Finding("severe", "progress", says, advice, numbers={"rounds": len(rounds)})


def _at_chance(history: History, what_if: WhatIf) -> Finding | None:
    """The test scores are no better than those of x_0, because the local steps are much too large.

    The training loss falls all the same: that of a job is the mean over its local steps, so it begins far above x_0's.
    """
    first, last = _test_course(history)
    if not first or _gains(first, last) or _gains(start := what_if.start_scores, last):
        return None
    if not (begins := loss_at_start(history)) > RISES * start.get("loss", math.inf):
        return None
    shown = " and ".join(f"test {name} {last[name]:.3g} (x_0: {start[name]:.3g})" for name in last if name in start)
    says = (
        f"the model has learned nothing: {shown}. The local steps are too large: the mean loss during the first jobs "
    )
    says += f"is {begins:.3g}."
    overrides = scaled(history, ("local_lr",), 1 / TENTH**2)
    return _rate_finding("severe", says, overrides, {"first": dict(start), "last": last})._replace(cause="progress")


def _test_course(history: History) -> tuple[dict[str, float], dict[str, float]]:
    """The first test accuracy and loss, if there are enough evaluations, and the medians of their last quarter."""
    scores: dict[str, list[float]] = {}
    for event in history.evaluations:
        for name in ("accuracy", "loss"):
            if (value := event.scores.get(name)) is not None and math.isfinite(value):
                scores.setdefault(name, []).append(value)
    last = {name: float(np.median(values[-max(len(values) // 4, 1) :])) for name, values in scores.items()}
    return {name: values[0] for name, values in scores.items() if len(values) >= EVALUATED}, last


def _gains(before: Mapping[str, float], after: Mapping[str, float]) -> bool:
    """Whether a test score has become better: the accuracy by ten points, or the loss by a tenth."""
    accuracy = after.get("accuracy", 0.0) > before.get("accuracy", 0.0) + LEARNED
    return accuracy or after.get("loss", math.inf) < (1 - LEARNED) * before.get("loss", -math.inf)


def overfitting(history: History, what_if: WhatIf) -> Finding | None:
    """The test loss rises while the training loss falls."""
    tested = _test_losses(history)
    best, least = min(tested, key=lambda pair: pair[1], default=(0, math.nan))
    rounds, losses = np.array([pair for pair in tested if pair[0] >= best]).T if tested else (np.empty(0), np.empty(0))
    trained = history.rounds.loss[max(best - 1, 0) :]
    trained = trained[np.isfinite(trained)]
    if not (slope(rounds, losses) > 0 and slope(np.arange(len(trained)), trained) < 0 and losses[-1] > RISEN * least):
        return None
    says = (
        f"the test loss rose from {least:.4g} in round {best} to {losses[-1]:.4g}, while the training loss fell: the "
    )
    says += "model fits the training data ever better, and other data worse."
    correct = {event.round: event.scores.get("accuracy") or 0.0 for event in history.evaluations}
    numbers = {"round": best, "least": least, "last": float(losses[-1])}
    if (last := correct[max(correct)]) > correct[best] + MORE:
        accuracy = f"{says} The test accuracy has risen all the same, to {last:.1%}."
        return Finding("note", "overfitting", accuracy, numbers=numbers)
    advice = f"end the run near round {best}, or regularise: weight decay, augmentation, a smaller model"
    return Finding("warning", "overfitting", says, advice, numbers=numbers)


def swings(history: History, what_if: WhatIf) -> Finding | None:
    """The test loss goes up again by much, while the training loss falls; not if that is overfitting."""
    tested = _test_losses(history)
    best, least = min(tested, key=lambda pair: pair[1], default=(0, math.nan))
    later, peak = max((pair for pair in tested if pair[0] > best), key=lambda pair: pair[1], default=(0, -math.inf))
    lost = len(tested) >= EVALUATED and peak > SWINGS * least and peak - least > LEARNED * (tested[0][1] - least)
    if not lost or not trend(history).falls or trend(history).noisy or overfitting(history, what_if):
        return None
    number, last = tested[-1]
    says = f"the test loss swings: it was {least:.4g} in round {best}, {peak:.4g} in round {later}"
    says += f" and {last:.4g} in round {number}" if number > later else ""
    says += ", while the training loss fell" if trend(history).surely_falls else ""
    says += ". Smaller rates or more updates per round make it steadier."
    numbers = {"round": best, "least": least, "highest": peak, "last": last}
    return Finding("note", "swings", says, numbers=numbers)


def _test_losses(history: History) -> list[tuple[int, float]]:
    """The round and the test loss of each evaluation, without those that are not finite."""
    scores = [(event.round, event.scores.get("loss")) for event in history.evaluations]
    return [(number, loss) for number, loss in scores if loss is not None and math.isfinite(loss)]


def _overshoots(history: History, loss: float) -> bool:
    """Whether the moves were long enough to lower the loss by many times this much, if they had gone downhill.

    To first order, a move lowers the loss by its length times that of the gradient, ‖δ‖/(η_ℓ K) or more.
    """
    rounds, local_lr = history.rounds, history.setting("local_lr")
    if not isinstance(local_lr, int | float) or not local_lr > 0:
        return False
    gradients = np.median(rounds.norms, axis=1) / (local_lr * (history.setting("local_steps") or 1))
    return bool(np.nansum(gradients * rounds.move) > OUT * loss)


def progress_stalls(history: History) -> bool:
    """Whether the loss falls too slowly or not at all."""
    found = trend(history)
    return found.slow or not found.falls


def _binds(shares: NDArray[np.float64]) -> bool:
    """Whether a clip always binds."""
    known = shares[np.isfinite(shares)]
    return bool(len(known) and known.mean() > ALWAYS)


def outer_clip(history: History, what_if: WhatIf) -> Finding | None:
    """The server's clip never or always binds."""
    clip = history.setting("clip")
    has = clip is not None and clip != "inf" if history.knows_method else _clip2(history)
    value = f" ũ = {clip:g}" if isinstance(clip, int | float) else ""
    above = {"l2": "no Δ was longer", "coordinate": "no coordinate of Δ was larger"}.get(_norm(history) or "")
    equals = " This run equals SGDClip." if _clip2(history) else ""
    never = (
        f"the server's clip{value} never binds: {above or 'it changed nothing'} in all rounds{_reach(history)}.{equals}"
    )
    return (
        _clip_finding(history, history.rounds.clipped, "outer clip", never, f"the server's clip{value}")
        if has
        else None
    )


def _reach(history: History) -> str:
    """Whether the server's clip can bind at all."""
    clip, *bounds = [history.setting(key) for key in ("clip", "local_lr", "local_steps", "local_clip")]
    if not all(isinstance(bound, int | float) for bound in (clip, *bounds)):
        return ""
    most = math.prod(bounds)  # the largest coordinate that an update can have
    return f", and none can be, because η_ℓ·K·u = {most:.3g}" if most <= clip else ""


def local_clip(history: History, what_if: WhatIf) -> Finding | None:
    """The clients' clip never or always binds."""
    clip = history.setting("local_clip")
    value = f" u = {clip:g}" if isinstance(clip, int | float) else ""
    above = "no gradient is longer" if _norm(history, local=True) == "l2" else "no coordinate of a gradient is larger"
    never = f"the clients' clip{value} never binds: {above}."
    shares = history.rounds.local_clipped
    has = clip is not None and clip != "inf"
    return _clip_finding(history, shares, "local clip", never, f"the clients' clip{value}") if has else None


def _clip_finding(history: History, shares: NDArray[np.float64], cause: str, never: str, whose: str) -> Finding | None:
    """A note about a clip that never or always binds: neither is wrong as such."""
    known = shares[np.isfinite(shares)]
    if not len(known) or history.status == "diverged" or (_binds(shares) and progress_stalls(history)):
        return None  # `progress` says so
    numbers = {"clipped": float(known.mean())}
    if known.max() == 0:
        return Finding("note", cause, never, numbers=numbers)
    if not _binds(shares):
        return None
    norm = _norm(history, local=cause == "local clip")
    left = "moves have the same length" if norm == "l2" else "moves keep little but their signs"
    says = f"{whose} binds almost always ({known.mean():.0%}): {left if norm else 'it changes almost everything'}."
    return Finding("note", cause, says, numbers=numbers)


def _norm(history: History, *, local: bool = False) -> str | None:
    """What is clipped, the length ("l2") or coordinates; None if it is not known."""
    if not history.knows_method:
        return None
    whole = history.setting("norm") == "l2" or (local and history.setting("inner") == "l2clip")
    return "l2" if whole else "coordinate"
