"""Check delays against the theorems: how far they are beyond what is proved, and which clients cause it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tardygrad.doctor.finding import Finding
from tardygrad.doctor.theorems import constants, has_theorem, presets, tail_of
from tardygrad.doctor.trend import trend
from tardygrad.doctor.what_if import WhatIf
from tardygrad.runs.history import History
from tardygrad.runs.record_values import printable
from tardygrad.theory.delays import Condition, conditions, propositions

NEAR = 2  # up to this factor, unknown constants may explain the failure of a condition
NAMED = 5  # most clients that are listed


def delays(history: History, what_if: WhatIf) -> Finding | None:
    """The condition of the method's theorem fails."""
    rounds = history.rounds
    if rounds.delays.max(initial=1) == 1:
        return None
    tail = tail_of(history.spec or history.described, history.tails)
    found = conditions(rounds.delays, constants(history, tail.tail))
    own = [preset.name for preset in presets(history.label, history.setting("schedule"))]
    mine = min((each for each in found if each.method in own), key=lambda each: each.factor, default=None)
    if mine is None or mine.holds:
        return None
    blame = blamed(history, mine)
    known, downplayed = has_theorem(history.label), mine.method.startswith("sd-")
    largest = int(rounds.delays.max())
    says = f"updates are up to {largest} rounds late, {rounds.delays.mean():.3g} on average. {mine.theorem} "
    says += f"({'' if known else 'of SGDClip, since none covers this method; '}{mine.says}; tail index "
    says += f"{tail.tail:g}, {tail.source}) is violated by a factor of {mine.factor:.3g}, up to unknown constants. "
    says += f"{sum(blame.values()):.0%} of the excess comes from {client_list(history, list(blame))}."
    if downplayed:
        few = next(each for each in propositions(rounds.delays, tail.tail) if each.method == mine.method)
        says += (
            f" {few.share:.0%} of delays are at most T^{few.exponent:.2g}; any fixed share of those suffices in the "
        )
        says += f"long run ({few.proposition})."
    troubled = history.status in ("diverged", "starved", "failed") or not trend(history).falls
    says += " The training loss falls all the same." if not troubled and trend(history).surely_falls else ""
    numbers = {
        "factor": mine.factor,
        "largest": largest,
        "mean": float(rounds.delays.mean()),
        "tail": tail.tail,
        "conditions": {each.method: {"theorem": each.theorem, "factor": each.factor} for each in found},
        "clients": blame,
    }
    return Finding("warning" if troubled and mine.factor > NEAR else "note", "delays", says, numbers=numbers)


def blamed(history: History, condition: Condition) -> dict[int, float]:
    """The clients that cause 90 % of a condition's excess, with their shares, worst first."""
    excess = np.bincount(history.rounds.clients.ravel(), np.maximum(condition.excess, 0).ravel(), history.clients)
    shares, found = excess / excess.sum(), dict[int, float]()
    for client in np.argsort(-shares, kind="stable"):
        if shares[client] > 0 and sum(found.values()) < 0.9:
            found[int(client)] = float(shares[client])
    return found


def client_list(history: History, clients: Sequence[int]) -> str:
    """A list of clients, by their ids if they have any, with their classes."""
    classes = sorted({printable(history.classes[client], 40) for client in clients})
    of = f" ({', '.join(classes[:3])})" if classes != ["clients"] else ""
    if len(clients) == 1:
        return f"client {history.names[clients[0]]}{of}"
    shown = ", ".join(history.names[client] for client in sorted(clients)[:NAMED])
    more = f" and {len(clients) - NAMED} more" if len(clients) > NAMED else ""
    return f"clients {shown}{more}{of}"
