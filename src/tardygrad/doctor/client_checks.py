"""Checks of clients: silent, refused, lost or idle clients, and clients whose work hardly counts."""

from __future__ import annotations

from collections import Counter

import numpy as np

from tardygrad.core.faults import is_of_rates, written_out
from tardygrad.doctor.delay_checks import client_list
from tardygrad.doctor.finding import Finding, Severity
from tardygrad.doctor.trend import skewed, trend
from tardygrad.doctor.what_if import WhatIf
from tardygrad.runs.checks import quoted
from tardygrad.runs.history import History
from tardygrad.runs.run import plural

SLOW = 0.1  # a client hardly counts if its share of the weight is below this fraction of its share of the work
MACHINE = 1.5  # a machine is slow if its local steps take this many times as long as those of the others
IDLE, MOST_IDLE = 0.2, 0.5  # a smaller share of idle time is normal; a larger one is a waste, if it can be avoided
MANY = 0.05  # a smaller share of refused updates is normal
FASTER = 1.5  # a setting that is faster by this factor is worth a warning
BUSY = 0.9  # a server that works for a larger share of the time is the bottleneck
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
        return None if overflows(history) or faults(history) else _starved(history)
    silent = [number for number, client in enumerate(history.by_client) if not client.taken]
    if not silent or not len(history.rounds) or history.status == "failed":
        return None
    whys: dict[str, list[int]] = {}
    for number in silent:
        client = history.by_client[number]
        why = "still working" if client.jobs else "always asleep" if client.asleep else "never had a job"
        whys.setdefault("lost" if client.lost else "refused" if client.refused else why, []).append(number)
    parts = [f"{client_list(history, those)} {why}" for why, those in whys.items()]
    says = f"{len(silent)} of {plural(history.clients, 'client')} never contributed: {'; '.join(parts)}."
    missed = 0
    if working := whys.get("still working"):
        longest = max(max(history.by_client[number].unfinished_ages, default=0.0) for number in working)
        missed = int((history.rounds.time > history.time - longest).sum())
        says += f" The longest of their jobs has taken {longest:.4g} s of {history.time:.4g} s so far; meanwhile "
        says += f"{plural(missed, 'round')} {'was' if missed == 1 else 'were'} completed."
    if "never had a job" in whys and what_if.method and what_if.method.dispatch == "same":
        says += " With method.dispatch=same a free slot goes to the client that left it; with random, to any idle one."
    many = len(silent) > 0.1 * history.clients and not history.is_running
    return Finding(
        "warning" if many or missed >= GONE else "note",
        "starvation",
        says,
        numbers={"clients": silent, "missed": missed},
    )


def faults(history: History) -> dict[int, str]:
    """Why the updates of clients were not finite."""
    return {number: client.fault for number, client in enumerate(history.by_client) if client.fault}


def overflows(history: History) -> bool:
    """Whether the local steps of most clients overflow."""
    return sum(map(is_of_rates, faults(history).values())) > 0.5 * history.clients


def not_finite(history: History, what_if: WhatIf) -> Finding | None:
    """Updates are not finite because of data, a loss or a module, or of the steps of few clients."""
    found = faults(history)
    if not found or overflows(history):
        return None
    is_starved = history.status == "starved"
    refused = sum(history.by_client[number].refused["not finite"] for number in found)
    says = f"{plural(refused, 'update')} of {client_list(history, list(found))} had numbers that are not finite."
    says = (is_starved and history.reason) or f"{says} {written_out(found.values())}"
    advice = "; ".join(dict.fromkeys(fault.rpartition(": ")[2] for fault in found.values()))
    return Finding("severe" if is_starved else "warning", "not finite", says, advice, numbers={"clients": found})


def _starved(history: History) -> Finding:
    lost = [number for number, client in enumerate(history.by_client) if client.lost]
    left, refused = history.clients - len(lost), history.refused.total()
    reason = history.reason or "the buffer could not be filled."
    were = "is" if len(lost) == 1 else "are"
    says = f"{reason} {len(lost) or 'None'} of {plural(history.clients, 'client')} {were} lost."
    advice, overrides = "restart the clients", list[str]()
    if refused > history.taken and history.refused["too stale"]:
        overrides = ["method.max_delay="]
    elif lost and left and history.rounds.buffer > left and len(history.rounds):
        overrides = [f"method.buffer={left}"]
    overrides = [text for text in overrides if history.can_set(text.partition("=")[0].removeprefix("method."))]
    if overrides and history.method_settings is not None:
        advice = f"use {overrides[0]}" + (" or less, or restart the lost clients" if lost else "")
    expected = "the buffer can be filled" if overrides else None
    numbers = {"lost": lost, "refused": refused}
    return Finding("severe", "starvation", says, advice, expected, numbers, overrides)


def refusals(history: History, what_if: WhatIf) -> Finding | None:
    """The server refused updates."""
    reasons = history.refused
    refused, total = reasons.total(), reasons.total() + history.taken
    if not refused or history.status == "starved" or overflows(history):
        return None
    by_client = Counter({number: client.refused.total() for number, client in enumerate(history.by_client)})
    whose = [number for number, own in by_client.most_common() if own >= 0.1 * refused]
    counts = ", ".join(f"{number} {reason}" for reason, number in reasons.most_common())
    says = f"the server refused {refused} of {plural(total, 'update')} ({refused / total:.1%}): {counts}."
    says += f" Most came from {client_list(history, whose)}." if whose else ""
    stale = reasons.most_common(1)[0][0] == "too stale"
    fix = what_if.accepting if stale and trend(history).falls else None
    advice, expected = f"accept late updates: use {' '.join(fix.overrides)}" if fix else None, fix
    if stale and not fix and refused > MANY * total:
        advice = "accept later updates: a larger method.max_delay, or none if the learning rate stands their delays"
        expected = what_if.expect(max_delay=None)
    numbers = {"share": refused / total, "reasons": dict(reasons), "clients": whose}
    return Finding(
        "warning" if refused > MANY * total else "note",
        "refusals",
        says,
        advice,
        str(expected) if expected else None,
        numbers,
        fix.overrides if fix else (),
    )


def lost_clients(history: History, what_if: WhatIf) -> Finding | None:
    """Clients were lost, together with their jobs."""
    lost = {number: client.losses for number, client in enumerate(history.by_client) if client.losses}
    if not lost or history.status == "starved":
        return None
    times, away = sum(lost.values()), sum(client.lost for client in history.by_client)
    share = times / max(sum(len(client.jobs) for client in history.by_client), 1)
    says = f"{client_list(history, list(lost))} {'was' if len(lost) == 1 else 'were'} lost {plural(times, 'time')}"
    says += f" ({share:.1%} of all jobs) and {_back(len(lost), away)}."
    many = share > 0.1 or away > 0.1 * history.clients
    return Finding("warning" if many else "note", "lost clients", says, numbers={"clients": lost, "share": share})


def _back(lost: int, away: int) -> str:
    """How many lost clients came back.

    >>> _back(3, 0), _back(1, 1), _back(3, 1)
    ('all came back', 'did not come back', '1 of them did not come back')
    """
    if not away:
        return "all came back" if lost > 1 else "came back"
    return "did not come back" if away == lost else f"{away} of them did not come back"


def idle(history: History, what_if: WhatIf) -> Finding | None:
    """Clients wait for jobs, and another setting would give them more to do."""
    absent = sum(client.lost_seconds + client.asleep_seconds for client in history.by_client)
    available = history.clients * history.time - absent
    if not available > 0 or not len(history.rounds):
        return None
    share = 1 - sum(client.working_seconds for client in history.by_client) / available
    if share < IDLE:
        return None
    says = f"clients are idle {share:.0%} of the time."
    if not trend(history).falls or server_busy(history) > BUSY:  # what the other checks say comes first
        return Finding("note", "idle", says, numbers={"idle": share})
    better = what_if.better
    numbers = {"idle": share, "then": better.then._asdict() if better else None}
    if better is None:
        known = what_if.ranking is not None
        says += " No mode and M that was tried is clearly faster." if known else " This fleet cannot be simulated."
        return Finding("note" if known or share < MOST_IDLE else "warning", "idle", says, numbers=numbers)
    name = better.name
    if better.method.mode != "sync" and skewed(history):
        says += f" {name[0].upper()}{name[1:]}, would be at least {better.gain:.2g} times as fast, but fast clients "
        says += "would contribute more than slow ones, and the clients' losses differ: the result may be worse."
        sweep = (
            f'tardygrad sweep {quoted(history.path)} --over \'method.mode=["sync", "server"]\' --best time --target …'
        )
        advice = f"measure which mode is best for all clients' data: {sweep}" if history.spec else None
        return Finding("warning", "idle", says, advice, numbers=numbers)
    if what_if.ranking and what_if.ranking.caveat:
        says += f" {what_if.ranking.caveat}."
    advice = f"use {' '.join(better.overrides)}: {name}"
    severity: Severity = "warning" if share > MOST_IDLE or better.gain > FASTER else "note"
    return Finding(severity, "idle", says, advice, str(better), numbers, better.overrides)


def server_bound(history: History, what_if: WhatIf) -> Finding | None:
    """Updates wait in line, because the server needs its time for each of them."""
    if (busy := server_busy(history)) < BUSY:
        return None
    seconds = server_time(history)
    says = (
        f"the server is busy {busy:.0%} of the time: it spends {seconds:.3g} s on each update, so updates wait in line "
    )
    says += "and get late, and more or faster clients would not speed the run up."
    steps = "method.local_epochs" if history.setting("local_epochs") else "method.local_steps"
    advice = f"send fewer updates with more work in each ({steps}), or let fewer clients work (method.concurrency)"
    return Finding("warning", "server", says, advice, numbers={"busy": busy, "seconds": seconds})


def server_time(history: History) -> float:
    """Simulated seconds that the server spends on an update; 0 if they are not known."""
    fleet = (history.spec or history.described).get("fleet") or {}
    seconds = fleet.get("server_time") if history.simulated else 0.0
    return float(seconds) if isinstance(seconds, int | float) else 0.0


def server_busy(history: History) -> float:
    """The share of the time in which the server was busy with updates."""
    updates = history.taken + history.refused.total()
    return min(server_time(history) * updates / history.time, 1.0) if history.time > 0 else 0.0


def dead_weight(history: History, what_if: WhatIf) -> Finding | None:
    """Some clients' work hardly counts."""
    rounds = history.rounds
    busy = np.array([client.working_seconds * (client.taken > 0) for client in history.by_client])
    weights = np.bincount(rounds.clients.ravel(), np.nan_to_num(rounds.weights, nan=1.0).ravel(), history.clients)
    if not busy.sum() > 0 or not weights.sum() > 0:
        return None
    work, weight = busy / busy.sum(), weights / weights.sum()
    slow = np.flatnonzero((work > 0) & (weight < SLOW * work))
    share = float(work[slow].sum())
    if share < 0.05:
        return None
    says = f"{client_list(history, slow.tolist())} did {share:.0%} of the work (in seconds), "
    has, them, their = ("has", "it", "its") if len(slow) == 1 else ("have", "them", "their")
    says += f"but {has} only {weight[slow].sum():.2%} of the weight. The run would be about as fast without {them}, "
    says += f"but would not see {their} data."
    numbers = {"clients": slow.tolist(), "work": share, "weight": float(weight[slow].sum())}
    return Finding("warning" if share > 0.25 else "note", "dead weight", says, numbers=numbers)


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
    advice = f"look at what else runs on {slowest.name}, or start fewer workers there"
    numbers = {"machine": slowest.name, "ratio": ratio, "seconds": slowest.median, "others": usual}
    return Finding("warning" if ratio >= 2 else "note", "machines", says, advice, numbers=numbers)
