"""Checks of clients: silent, refused, lost or idle clients, and clients whose work hardly counts."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from tardygrad.doctor.delay_checks import client_list
from tardygrad.doctor.finding import Finding
from tardygrad.doctor.what_if import WhatIf
from tardygrad.runs.history import History
from tardygrad.runs.run import plural

SLOW = 0.1  # a client hardly counts if its share of the weight is below this fraction of its share of the work
MACHINE = 1.5  # a machine is slow if its local steps take this many times as long as those of the others
GONE = 100  # a client that misses this many rounds with its first job is not just slow


def failure(history: History, what_if: WhatIf) -> Finding | None:
    """An error ended the run."""
    if history.status != "failed":
        return None
    advice = f"mend the cause, then continue the run: {history.resume_hint}" if history.resume_hint else None
    return Finding("severe", "failure", history.reason or "the run failed.", advice)


def no_rounds(history: History, what_if: WhatIf) -> Finding | None:
    """There is no completed round."""
    if len(history.rounds) or history.status == "failed":
        return None
    sent = sum(len(client.jobs) for client in history.by_client)
    wanted = f" of {history.requested} requested" if history.requested else ""
    says = f"no round{wanted} is complete; {plural(sent, 'job')} sent so far."
    resume = f"continue the run: {history.resume_hint}" if history.resume_hint else None
    advice = "wait" if history.is_running else resume
    return Finding("note" if history.is_running else "severe", "no rounds", says, advice)


def starvation(history: History, what_if: WhatIf) -> Finding | None:
    """The buffer could not be filled, or some clients never contributed."""
    if history.status == "starved":
        return _starved(history)
    silent = [number for number, client in enumerate(history.by_client) if not client.taken]
    if not silent or not len(history.rounds) or history.status == "failed":
        return None
    whys: dict[str, list[int]] = {}
    for number in silent:
        client = history.by_client[number]
        why = "still working" if client.jobs else "never had a job"
        whys.setdefault("lost" if client.lost else "refused" if client.refused else why, []).append(number)
    parts = [f"{client_list(history, those)} {why}" for why, those in whys.items()]
    says = f"{len(silent)} of {history.clients} clients never contributed: {'; '.join(parts)}."
    missed = 0
    if working := whys.get("still working"):
        longest = max(max(history.by_client[number].unfinished_ages, default=0.0) for number in working)
        missed = int((history.rounds.time > history.time - longest).sum())
        says += f" The longest of their jobs has taken {longest:.4g} s of {history.time:.4g} s so far; meanwhile "
        says += f"{plural(missed, 'round')} {'was' if missed == 1 else 'were'} completed."
    advice = "make the run longer, or remove these clients"
    if "never had a job" in whys:
        advice = "give these clients jobs: method.dispatch=random, or a larger method.concurrency or run.rounds"
    if "refused" in whys and history.refused["too stale"]:
        advice = "raise method.max_delay or method.buffer: the updates of these clients are always too stale"
    many = len(silent) > 0.1 * history.clients and not history.is_running
    numbers = {"clients": silent, "missed": missed}
    return Finding("warning" if many or missed >= GONE else "note", "starvation", says, advice, numbers=numbers)


def _starved(history: History) -> Finding:
    lost = [number for number, client in enumerate(history.by_client) if client.lost]
    left, refused = history.clients - len(lost), history.refused.total()
    advice = "restart the clients"
    if refused > history.taken:
        advice = "raise method.max_delay, or find out why updates are refused"
    elif lost and left:
        advice = f"use method.buffer={left} or less, or restart the lost clients"
    reason = history.reason or "the buffer could not be filled."
    says = f"{reason} {len(lost)} of {history.clients} clients are lost."
    return Finding("severe", "starvation", says, advice, numbers={"lost": lost, "refused": refused})


def refusals(history: History, what_if: WhatIf) -> Finding | None:
    """The server refused updates."""
    reasons = history.refused
    refused, total = reasons.total(), reasons.total() + history.taken
    if not refused or history.status == "starved":
        return None
    by_client = Counter({number: client.refused.total() for number, client in enumerate(history.by_client)})
    whose = [number for number, own in by_client.most_common() if own >= 0.1 * refused]
    counts = ", ".join(f"{number} {reason}" for reason, number in reasons.most_common())
    says = f"the server refused {refused} of {total} updates ({refused / total:.1%}): {counts}."
    says += f" Most came from {client_list(history, whose)}." if whose else ""
    fixes = {
        "too stale": "raise method.max_delay, or remove the slow clients",
        "not finite": "use a smaller method.local_lr, or set method.local_clip",
    }
    advice = fixes.get(reasons.most_common(1)[0][0], "find out what these clients send")
    numbers = {"share": refused / total, "reasons": dict(reasons), "clients": whose}
    return Finding("warning" if refused > 0.05 * total else "note", "refusals", says, advice, numbers=numbers)


def losses(history: History, what_if: WhatIf) -> Finding | None:
    """Clients were lost, together with their jobs."""
    lost = {number: client.losses for number, client in enumerate(history.by_client) if client.losses}
    if not lost or history.status == "starved":
        return None
    times, away = sum(lost.values()), sum(client.lost for client in history.by_client)
    share = times / max(sum(len(client.jobs) for client in history.by_client), 1)
    says = f"{client_list(history, list(lost))} {'was' if len(lost) == 1 else 'were'} lost {plural(times, 'time')}"
    says += f" ({share:.1%} of all jobs); {away} of them {'has' if away == 1 else 'have'} not come back."
    return Finding("warning" if share > 0.1 else "note", "losses", says, numbers={"clients": lost, "share": share})


def idle(history: History, what_if: WhatIf) -> Finding | None:
    """Clients wait for jobs."""
    absent = sum(client.lost_seconds + client.asleep_seconds for client in history.by_client)
    available = history.clients * history.time - absent
    if not available > 0 or not len(history.rounds):
        return None
    share = 1 - sum(client.working_seconds for client in history.by_client) / available
    if share < 0.2:
        return None
    method = what_if.method
    mode = method.mode if method else None
    fixes: dict[str, dict[str, Any]] = {"sync": {"mode": "server", "concurrency": None}, "server": {"mode": "client"}}
    fix = fixes.get(mode or "", {})
    if method and method.concurrency and mode != "sync":
        fix = {"concurrency": None}
    expected = what_if.expect(**fix) if fix else None
    changed = {key: value for key, value in fix.items() if getattr(method, key) != value}
    words = " ".join(f"method.{key}={'' if value is None else value}" for key, value in changed.items())
    says = f"clients are idle {share:.0%} of the time."
    numbers = {"idle": share, "then": expected.then._asdict() if expected else None}
    if expected and expected.faster < 1.1:
        says += f" This costs little: {words} gives {expected.faster:.2g} times the effective updates."
        return Finding("note", "idle", says, numbers=numbers)
    advice = f"use {words}" if words else None
    return Finding(
        "warning" if share > 0.5 else "note", "idle", says, advice, str(expected) if expected else None, numbers
    )


def dead_weight(history: History, what_if: WhatIf) -> Finding | None:
    """Some clients' work hardly counts."""
    rounds = history.rounds
    busy = np.array([client.working_seconds for client in history.by_client])
    weights = np.bincount(rounds.clients.ravel(), np.nan_to_num(rounds.weights, nan=1.0).ravel(), history.clients)
    if not busy.sum() > 0 or not weights.sum() > 0:
        return None
    work, weight = busy / busy.sum(), weights / weights.sum()
    slow = np.flatnonzero((work > 0) & (weight < SLOW * work))
    share = float(work[slow].sum())
    if share < 0.05:
        return None
    says = f"{client_list(history, slow.tolist())} did {share:.0%} of the work (in seconds), "
    says += f"but {'has' if len(slow) == 1 else 'have'} only {weight[slow].sum():.2%} of the weight."
    advice = "give these clients smaller jobs, or remove them: little would be lost"
    numbers = {"clients": slow.tolist(), "work": share, "weight": float(weight[slow].sum())}
    return Finding("warning" if share > 0.25 else "note", "dead weight", says, advice, numbers=numbers)


def slow_machine(history: History, what_if: WhatIf) -> Finding | None:
    """One of several machines is much slower than the others."""
    if len(history.machines) < 2:
        return None
    slowest, *others = history.machines
    usual = float(np.median([machine.median for machine in others]))
    if not usual > 0 or (ratio := slowest.median / usual) < MACHINE:
        return None
    typical = "the other machine" if len(others) == 1 else f"the median of the other {len(others)} machines"
    says = f"machine {slowest.name} is {ratio:.2g} times slower than {typical}: {slowest.median:.3g} s per local step, "
    says += f"not {usual:.3g} s, in {plural(slowest.updates, 'update')} of {plural(slowest.workers, 'worker')}."
    advice = (
        f"look at what else runs on {slowest.name}, or start fewer workers there; if it stays slow, remove it, or give "
    )
    advice += "slower clients fewer local steps (method.kind=dn_dylu)"
    numbers = {"machine": slowest.name, "ratio": ratio, "seconds": slowest.median, "others": usual}
    return Finding("warning" if ratio >= 2 else "note", "machines", says, advice, numbers=numbers)


def unknown_events(history: History, what_if: WhatIf) -> Finding | None:
    """The record has events of kinds that this version does not know."""
    if not history.unknown:
        return None
    kinds = ", ".join(map(repr, list(history.unknown)[:5]))
    says = f"ignored {plural(history.unknown.total(), 'event')} of a kind that this version does not know: {kinds}."
    return Finding("note", "events", says, "use the version of tardygrad that wrote the record")
