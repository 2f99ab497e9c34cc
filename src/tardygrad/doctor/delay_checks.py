"""Check delays against the theorems: how far they are beyond what is proved, and which clients cause it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tardygrad.doctor.finding import Finding, Severity
from tardygrad.doctor.search import changes
from tardygrad.doctor.theorems import constants, has_theorem, presets, tail_of
from tardygrad.doctor.what_if import Expected, WhatIf
from tardygrad.runs.history import History, printable
from tardygrad.runs.own_code import trust_option
from tardygrad.theory.delays import Condition, conditions, propositions

NEAR, FAR = 2, 10  # up to NEAR, unknown constants may explain the failure of a condition; beyond FAR it is clear
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
    severity: Severity = "severe" if mine.factor > FAR else "warning" if mine.factor > NEAR else "note"
    if downplayed or not known:  # the constants are estimates, or the theorem is another method's
        severity = "warning" if mine.factor > FAR else "note"
    largest = int(rounds.delays.max())
    says = f"updates are up to {largest} rounds late, {rounds.delays.mean():.3g} on average. {mine.theorem} "
    says += f"({'' if known else 'of SGDClip, since none covers this method; '}{mine.says}; tail index "
    says += f"{tail.tail:g}, {tail.source}) is violated by a factor of {mine.factor:.3g}. "
    says += f"{sum(blame.values()):.0%} of the excess comes from {client_list(history, list(blame))}."
    if downplayed:
        few = next(each for each in propositions(rounds.delays, tail.tail) if each.method == mine.method)
        says += (
            f" {few.share:.0%} of delays are at most T^{few.exponent:.2g}; any fixed share of those suffices in the "
        )
        says += f"long run ({few.proposition})."
    advice, expected = _advice(history, mine, what_if, downplayed)
    numbers = {
        "factor": mine.factor,
        "largest": largest,
        "mean": float(rounds.delays.mean()),
        "tail": tail.tail,
        "conditions": {each.method: {"theorem": each.theorem, "factor": each.factor} for each in found},
        "clients": blame,
        "now": what_if.now._asdict() if what_if.now else None,
        "then": expected.then._asdict() if expected else None,
    }
    simulated = None
    if expected:
        simulated = f"with M = {expected.method.buffer}, {expected.method.mode}-centric: {expected}"
    return Finding(severity, "delays", says, advice, simulated, numbers)


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


def _advice(history: History, condition: Condition, what_if: WhatIf, downplayed: bool) -> tuple[str, Expected | None]:
    """Settings within the bound, found by the search; or, or in addition, downplaying."""
    now = what_if.now
    largest = int(history.rounds.delays.max())
    bound = (now.delay_max if now else largest) - 1 if downplayed else largest / condition.factor
    expected, found = what_if.within(bound), []
    if downplayed and expected and expected.faster < 1:  # SD copes with delays anyway
        expected = None
    if expected and what_if.method:
        words = " ".join(changes(expected.method, what_if.method))
        how = ", and try a larger lr, since rounds are fewer and fresher"
        found.append(words + (how if downplayed else " with the same number of rounds (the bound is lower with fewer)"))
    elif now is None and history.rounds.buffer < history.clients:
        found.append("a larger method.buffer (this fleet cannot be simulated, so it is unknown how large)")
    if not downplayed and (weight := what_if.downplayed()):
        found.append(f"{weight}, which gives an update of delay p the weight 1/p")
    advice = "use " + "; or ".join(found) if found else "remove the slow clients"
    if not expected and now and not downplayed:
        advice += f". No M that was tried keeps all delays at {bound:.4g} or below with this many clients working"
        plan = f"tardygrad plan {history.path} --fit {history.path}{trust_option(history.spec)}"
        advice += f"; try fewer: {plan}" if history.spec else ""
    return advice, expected
