"""How the clients do: who never contributes, is refused, lost, without a job, or works for nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tardygrad.doctor.delay_checks import named
from tardygrad.doctor.finding import Finding, Severity
from tardygrad.doctor.history import History
from tardygrad.doctor.what_if import Remedies
from tardygrad.runs.run import plural

SLOW = 0.1  # share of weight over share of work: hardly counts
GONE = 100  # rounds made while a client was at its first job: it is not just late


def no_rounds(history: History, remedies: Remedies) -> Iterator[Finding]:
    """Nothing to look at."""
    if not len(history.rounds):
        out = sum(jobs.sent for jobs in history.jobs)
        says = f"no round has been made yet, of {history.asked or 'those'} asked for; {plural(out, 'job')} sent so far."
        advice = "wait" if history.going else f"go on with it: tardygrad resume {history.path}"
        yield Finding("note" if history.going else "severe", "no rounds", says, advice)


def starvation(history: History, remedies: Remedies) -> Iterator[Finding]:
    """The buffer could not fill, or clients never contributed."""
    away = [client for client, jobs in enumerate(history.jobs) if jobs.away]
    if history.status == "starved":
        left = history.clients - len(away)
        says = f"{history.reason or 'the buffer could not fill'} {len(away)} of {history.clients} clients are lost."
        refused = history.refused.total()
        advice = (
            f"use method.buffer={left} or less, or bring the clients back" if away and left else "bring clients back"
        )
        if refused > sum(jobs.taken for jobs in history.jobs):
            advice = "allow later updates with method.max_delay, or see why they are refused"
        yield Finding("severe", "starvation", says, advice, numbers={"lost": away, "refused": refused})
        return
    if not len(history.rounds):
        return
    silent = [client for client, jobs in enumerate(history.jobs) if not jobs.taken]
    if not silent:
        return
    whys: dict[str, list[int]] = {}
    for client in silent:
        jobs = history.jobs[client]
        why = "lost" if jobs.away else "refused" if jobs.refused else "still at work" if jobs.sent else "without a job"
        whys.setdefault(why, []).append(client)
    parts = [f"{named(history, those)} {why}" for why, those in whys.items()]
    says = f"{len(silent)} of {history.clients} clients never contributed: {'; '.join(parts)}."
    missed = 0
    if working := whys.get("still at work"):
        longest = max(max(history.jobs[client].open, default=0.0) for client in working)
        missed = int((history.rounds.time > history.time - longest).sum())
        says += f" The longest of their jobs has been out for {longest:.4g} s of {history.time:.4g} s, in which "
        says += f"{plural(missed, 'round')} {'was' if missed == 1 else 'were'} made."
    advice = "make the run longer, or leave them out"
    if "without a job" in whys:
        advice = "give them a place: method.dispatch=random, or a larger method.concurrency or run.rounds"
    if "refused" in whys and history.refused["too stale"]:
        advice = "raise method.max_delay or method.buffer: their updates are too stale, however long the run"
    many = len(silent) > 0.1 * history.clients and not history.going
    severity: Severity = "warning" if many or missed >= GONE else "note"
    yield Finding(severity, "starvation", says, advice, numbers={"clients": silent, "missed": missed})


def refusals(history: History, remedies: Remedies) -> Iterator[Finding]:
    """Updates that were turned away."""
    refused = history.refused.total()
    if not refused or history.status == "starved":
        return
    share = refused / (refused + sum(jobs.taken for jobs in history.jobs))
    worst = sorted(range(history.clients), key=lambda client: -history.jobs[client].refused)
    whose = [client for client in worst if history.jobs[client].refused >= 0.1 * refused]
    reasons = ", ".join(f"{number} {reason}" for reason, number in history.refused.most_common())
    says = f"{plural(refused, 'update')} of {refused / share:.0f} ({share:.1%}) refused: {reasons}."
    says += f" Mostly of {named(history, whose)}." if whose else ""
    fixes = {
        "too stale": "allow a larger method.max_delay, or leave the late clients out",
        "not finite": "use a smaller local_lr, or a local_clip",
    }
    advice = fixes.get(history.refused.most_common(1)[0][0], "see what these clients send")
    numbers = {"share": share, "reasons": dict(history.refused), "clients": whose}
    yield Finding("warning" if share > 0.05 else "note", "refusals", says, advice, numbers=numbers)


def losses(history: History, remedies: Remedies) -> Iterator[Finding]:
    """Clients that were lost, and their jobs with them."""
    lost = {client: jobs.lost for client, jobs in enumerate(history.jobs) if jobs.lost}
    if not lost or history.status == "starved":
        return
    sent = sum(jobs.sent for jobs in history.jobs)
    share = sum(lost.values()) / max(sent, 1)
    away = sum(jobs.away for jobs in history.jobs)
    says = (
        f"{named(history, list(lost))} {'was' if len(lost) == 1 else 'were'} lost {plural(sum(lost.values()), 'time')}"
    )
    says += f", {share:.1%} of all jobs; {away} of them {'is' if away == 1 else 'are'} not back."
    yield Finding("warning" if share > 0.1 else "note", "losses", says, numbers={"clients": lost, "share": share})


def idle(history: History, remedies: Remedies) -> Iterator[Finding]:
    """Clients that wait."""
    there = history.clients * history.time - sum(jobs.gone for jobs in history.jobs)
    if not there > 0 or not len(history.rounds):
        return
    share = 1 - sum(jobs.busy for jobs in history.jobs) / there
    if share < 0.2:
        return
    method = remedies.method
    mode = method.mode if method else None
    fixes: dict[str, dict[str, Any]] = {"sync": {"mode": "server", "concurrency": None}, "server": {"mode": "client"}}
    fix = fixes.get(mode or "", {})
    if method and method.concurrency and mode != "sync":
        fix = {"concurrency": None}
    expected = remedies.expect(**fix) if fix else None
    changed = {key: value for key, value in fix.items() if getattr(method, key) != value}
    words = [f"method.{key}={'' if value is None else value}" for key, value in changed.items()]
    says = f"clients are without a job {share:.0%} of the time."
    advice = f"use {' '.join(words)}" if words else None
    numbers = {"idle": share, "then": expected.then._asdict() if expected else None}
    severity: Severity = "warning" if share > 0.5 else "note"
    if expected and expected.faster < 1.1:
        says += f" It costs little: with {' '.join(words)} there are {expected.faster:.2g} times the effective updates."
        severity, advice, expected = "note", None, None
    yield Finding(severity, "idle", says, advice, str(expected) if expected else None, numbers)


def dead_weight(history: History, remedies: Remedies) -> Iterator[Finding]:
    """Clients whose work hardly counts."""
    rounds = history.rounds
    busy = np.array([jobs.busy for jobs in history.jobs])
    if not len(rounds) or not busy.sum() > 0:
        return
    weights = np.bincount(rounds.clients.ravel(), np.nan_to_num(rounds.weights).ravel(), history.clients)
    if not weights.sum() > 0:
        return
    work, weight = busy / busy.sum(), weights / weights.sum()
    slow = np.flatnonzero((work > 0) & (weight < SLOW * work))
    share = float(work[slow].sum())
    if share < 0.05:
        return
    says = f"{named(history, slow.tolist())} did {share:.0%} of the work, in seconds, and "
    says += f"{'has' if len(slow) == 1 else 'have'} {weight[slow].sum():.2%} of the weight."
    advice = "give such clients less work at a time, or leave them out: the rest lose little"
    numbers = {"clients": slow.tolist(), "work": share, "weight": float(weight[slow].sum())}
    yield Finding("warning" if share > 0.25 else "note", "dead weight", says, advice, numbers=numbers)
