"""Runs with a planted problem, and runs without one, for benchmarks/doctor.py.

Every case is a spec in which sizes, speeds and rates are drawn by the seed, so that no threshold of the doctor can be
fitted to a single run.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tardygrad.runs.record import read_json, read_lines, write_json

Table = dict[str, Any]
Rng = np.random.Generator


class Case(NamedTuple):
    """A planted problem."""

    name: str
    causes: tuple[str, ...]  # findings that name it; the first is the expected one. Empty: a healthy run
    spec: Callable[[Rng, int], Table]  # of random numbers and the seed
    also: tuple[str, ...] = ()  # findings that are true as well, but do not name the problem
    change: Callable[[Path], None] | None = None  # of the record


def lognormal(median: float, sigma: float = 0.2) -> Table:
    return {"kind": "lognormal", "median": median, "sigma": sigma}


def even(clients: int) -> list[Table]:
    return [{"name": "even", "clients": clients, "runtime": lognormal(1.0)}]


def stragglers(clients: int, slow: int, factor: float) -> list[Table]:
    groups = [{"name": "fast", "clients": clients - slow, "runtime": lognormal(1.0)}]
    return [*groups, {"name": "slow", "clients": slow, "runtime": lognormal(factor)}]


def quadratic(rng: Rng, seed: int, groups: list[Table] | None = None, **changes: Any) -> Table:
    """SGDClip on a quadratic with some noise that converges well on eight even clients."""
    groups = groups or even(8)
    clients = sum(group["clients"] for group in groups)
    method = {"kind": "sgdclip", "local_lr": 0.1, "local_clip": 10.0, "lr": 0.5, "local_steps": 4, "buffer": 4}
    tables: Table = {
        "task": {"kind": "quadratic", "clients": clients, "dimension": 20, "seed": seed}
        | {"noise": {"kind": "stable", "tail": 2.0, "scale": 0.05}},
        "fleet": {"kind": "groups", "groups": groups},
        "method": method | {"mode": "client"},
        "run": {"rounds": 120, "seed": seed, "evaluate_every": 2, "checkpoint_every": 10_000},
    }
    return changed(tables, changes)


def digits(rng: Rng, seed: int, groups: list[Table] | None = None, **changes: Any) -> Table:
    """SGDClip on handwritten digits with a small perceptron."""
    groups = groups or even(8)
    tables = quadratic(rng, seed, groups)
    clients = sum(group["clients"] for group in groups)
    tables["task"] = {"kind": "digits", "clients": clients, "model": "mlp", "dim": 16, "depth": 1, "seed": seed}
    tables["method"] |= {"local_lr": 0.2, "lr": 1.0, "local_steps": 3, "buffer": 4}
    tables["run"] |= {"rounds": 60, "evaluate_every": 2}
    return changed(tables, changes)


def logistic(rng: Rng, seed: int, groups: list[Table] | None = None, **changes: Any) -> Table:
    """SGDClip on logistic regression."""
    tables = quadratic(rng, seed, groups)
    tables["task"] = {"kind": "logistic", "clients": tables["task"]["clients"], "seed": seed}
    tables["method"] |= {"local_lr": 0.05, "lr": 1.0}
    tables["run"] |= {"rounds": 60}
    return changed(tables, changes)


def changed(tables: Table, changes: Table) -> Table:
    """The tables with changes such as method={"lr": 0.1}; None removes a key."""
    for name, table in changes.items():
        tables[name] = {key: value for key, value in (tables[name] | table).items() if value is not None}
    return tables


def sync_stragglers(rng: Rng, seed: int) -> Table:
    clients = int(rng.integers(5, 9))
    groups = stragglers(clients, 1, rng.uniform(5, 20))
    return quadratic(rng, seed, groups, method={"mode": "sync", "buffer": clients}, run={"rounds": 80})


def sync_unequal(rng: Rng, seed: int) -> Table:
    """Asynchronous settings would be faster, but would neglect the data of the straggler."""
    tables = sync_stragglers(rng, seed)
    return changed(tables, {"task": {"heterogeneity": rng.uniform(0.1, 1.5)}})


def sync_half_slow(rng: Rng, seed: int) -> Table:
    groups = stragglers(8, 4, rng.uniform(6, 12))
    return quadratic(rng, seed, groups, method={"mode": "sync", "buffer": 4}, run={"rounds": 80})


def sync_digits(rng: Rng, seed: int) -> Table:
    groups = stragglers(8, 2, rng.uniform(5, 10))
    return digits(rng, seed, groups, method={"mode": "sync", "buffer": 8}, run={"rounds": 40})


def server_all(rng: Rng, seed: int) -> Table:
    groups = stragglers(8, 2, rng.uniform(5, 15))
    return quadratic(rng, seed, groups, method={"mode": "server", "buffer": 8}, run={"rounds": 80})


def few_at_work(rng: Rng, seed: int) -> Table:
    how = {"buffer": 4, "concurrency": int(rng.integers(1, 3)), "dispatch": "random"}
    return quadratic(rng, seed, method=how)


def few_get_jobs(rng: Rng, seed: int) -> Table:
    return quadratic(rng, seed, method={"buffer": 3, "concurrency": int(rng.integers(2, 5))})


def rate_high(rng: Rng, seed: int) -> Table:
    return quadratic(rng, seed, method={"lr": rng.uniform(8, 30), "local_clip": "inf"})


def rate_high_sync(rng: Rng, seed: int) -> Table:
    how = {"lr": rng.uniform(8, 12), "local_clip": "inf", "mode": "sync", "buffer": 8}
    return quadratic(rng, seed, method=how, run={"rounds": 40})


def rate_high_digits(rng: Rng, seed: int) -> Table:
    return digits(rng, seed, method={"lr": rng.uniform(20, 60)})


def rate_high_clipped(rng: Rng, seed: int) -> Table:
    """Clips keep the model finite; it circles far from the optimum."""
    how = {"kind": "clip2", "local_clip": 1.0, "clip": 0.1, "lr": rng.uniform(30, 60)}
    return quadratic(rng, seed, stragglers(8, 1, 4.0), method=how | {"mode": str(rng.choice(["client", "sync"]))})


def rate_high_logistic(rng: Rng, seed: int) -> Table:
    return logistic(rng, seed, method={"lr": rng.uniform(40, 80)})


def local_rate_high(rng: Rng, seed: int) -> Table:
    how = {"local_lr": rng.uniform(2.5, 4.0), "local_steps": 8, "local_clip": "inf"}
    return quadratic(rng, seed, method=how)


def local_rate_high_clipped(rng: Rng, seed: int) -> Table:
    """The clients' clips keep the model finite; its score stays at chance."""
    clip = float(rng.choice([0.1, 1.0]))
    return digits(rng, seed, method={"local_lr": rng.uniform(30, 60), "local_clip": clip})


def late_blow_up(rng: Rng, seed: int) -> Table:
    """Stable without delays, but not with them."""
    groups = even(int(rng.integers(14, 20)))
    return quadratic(
        rng, seed, groups, method={"buffer": 1, "lr": rng.uniform(0.8, 1.2), "local_clip": "inf"}, run={"rounds": 300}
    )


def compensated_blow_up(rng: Rng, seed: int) -> Table:
    how = {"compensate": True, "local_clip": "inf", "lr": rng.uniform(10, 20), "buffer": 2}
    return quadratic(rng, seed, method=how)


def rate_low(rng: Rng, seed: int) -> Table:
    return quadratic(rng, seed, method={"lr": rng.uniform(0.002, 0.01)})


def rate_low_digits(rng: Rng, seed: int) -> Table:
    return digits(rng, seed, method={"lr": rng.uniform(0.005, 0.02)})


def clip_tight(rng: Rng, seed: int) -> Table:
    return quadratic(rng, seed, method={"kind": "clip2", "clip": 10 ** rng.uniform(-4, -3)})


def local_clip_tight(rng: Rng, seed: int) -> Table:
    return quadratic(rng, seed, method={"local_clip": 10 ** rng.uniform(-3, -2)})


def heavy_tails(rng: Rng, seed: int) -> Table:
    noise = {"kind": "stable", "tail": rng.uniform(1.05, 1.3), "scale": 0.3}
    return quadratic(rng, seed, task={"noise": noise}, method={"local_clip": "inf"}, run={"tail_every": 20})


def heavy_tails_unmeasured(rng: Rng, seed: int) -> Table:
    noise = {"kind": "pareto", "tail": rng.uniform(1.05, 1.3), "scale": 0.1}
    return quadratic(rng, seed, task={"noise": noise}, method={"local_clip": "inf"})


def starved(rng: Rng, seed: int) -> Table:
    gone = [{"client": client, "at": float(rng.uniform(3, 12))} for client in range(int(rng.integers(3, 6)))]
    return quadratic(rng, seed, method={"mode": "server", "buffer": 7}, fleet={"crashes": gone})


def dead_clients(rng: Rng, seed: int) -> Table:
    gone = [{"client": client, "at": float(rng.uniform(3, 8))} for client in range(int(rng.integers(2, 4)))]
    return quadratic(rng, seed, fleet={"crashes": gone})


def flaky_clients(rng: Rng, seed: int) -> Table:
    falls = [
        {"client": client, "at": at, "back": at + 0.5}
        for client in range(6)
        for at in np.arange(rng.uniform(0.5, 1.5), 60.0, 1.6).tolist()
    ]
    return quadratic(rng, seed, fleet={"crashes": falls})


def silent_client(rng: Rng, seed: int) -> Table:
    return quadratic(rng, seed, stragglers(8, int(rng.integers(1, 3)), 10_000.0), run={"rounds": 150})


def faults(kind: str) -> Callable[[Rng, int], Table]:
    def spec(rng: Rng, seed: int) -> Table:
        who = range(int(rng.integers(1, 3)))
        sent = [{"client": client, "job": job, "sends": kind} for client in who for job in range(400)]
        return quadratic(rng, seed, fleet={"faults": sent})

    return spec


def too_stale(rng: Rng, seed: int) -> Table:
    groups = stragglers(8, 3, rng.uniform(4, 6))
    return quadratic(rng, seed, groups, method={"buffer": 2, "max_delay": int(rng.integers(3, 5))})


def refuses_most(rng: Rng, seed: int) -> Table:
    return quadratic(
        rng, seed, method={"buffer": 1, "max_delay": int(rng.integers(3, 6)), "lr": 0.1}, run={"rounds": 300}
    )


def refuses_most_downplayed(rng: Rng, seed: int) -> Table:
    groups = stragglers(10, 2, rng.uniform(4, 10))
    how = {"buffer": int(rng.integers(3, 6)), "max_delay": 1, "downplay": True}
    return quadratic(rng, seed, groups, method=how)


def server_busy(rng: Rng, seed: int) -> Table:
    """Updates arrive faster than the server can take them."""
    return quadratic(rng, seed, even(12), fleet={"server_time": rng.uniform(0.15, 0.4)}, method={"lr": 0.3})


def overfitted(rng: Rng, seed: int) -> Table:
    """Few rows and many features: the training loss goes to 0, and the test loss rises."""
    task = {"samples": int(rng.integers(120, 180)), "dimension": 60}
    how = {"lr": rng.uniform(0.7, 1.5), "local_lr": 0.1}
    return logistic(rng, seed, task=task, method=how, run={"rounds": 200})


def sync_links(rng: Rng, seed: int) -> Table:
    """Two clients behind slow links; rounds wait for them."""
    groups = even(8)
    link = {"latency": rng.uniform(2.0, 6.0)}
    groups = [groups[0] | {"clients": 6}, {"name": "far", "clients": 2, "runtime": lognormal(1.0), "link": link}]
    return quadratic(rng, seed, groups, method={"mode": "sync", "buffer": 8}, run={"rounds": 80})


def dead_weight(rng: Rng, seed: int) -> Table:
    groups = stragglers(8, 4, rng.uniform(30, 60))
    return quadratic(rng, seed, groups, method={"buffer": 2, "downplay": True}, run={"rounds": 400})


def slow_machine(rng: Rng, seed: int) -> Table:
    return quadratic(rng, seed, stragglers(9, 3, rng.uniform(2.5, 5.0)))


def on_three_machines(path: Path) -> None:
    """Make the record one of a cluster: clients 0–2, 3–5 and 6–8 have worked on machines of their own."""
    write_json(path / "spec.json", read_json(path / "spec.json") | {"classes": []})
    write_json(path / "summary.json", read_json(path / "summary.json") | {"checks": {}})
    lines = []
    for row in read_lines(path / "events.jsonl"):
        if row["event"] == "arrival":
            row |= {"node": f"node-{row['client'] // 3}", "worker": f"w{row['client']}"}
        lines.append(json.dumps(row) + "\n")  # without checksums: made by hand
    (path / "events.jsonl").write_text("".join(lines))


def no_rounds(rng: Rng, seed: int) -> Table:
    return quadratic(rng, seed, stragglers(8, 8, rng.uniform(50, 100)), method={"buffer": 8})


def killed_early(path: Path) -> None:
    """Cut the record after a few jobs, as of a process that was killed."""
    lines = (path / "events.jsonl").read_text().splitlines(keepends=True)
    (path / "events.jsonl").write_text("".join(lines[:10]))
    (path / "summary.json").unlink()


def healthy_client(rng: Rng, seed: int) -> Table:
    return quadratic(rng, seed, even(int(rng.integers(6, 11))), method={"lr": rng.uniform(0.3, 1.0)})


def healthy_clip2(rng: Rng, seed: int) -> Table:
    how = {"kind": "clip2", "local_clip": 1.0, "clip": rng.uniform(0.05, 0.2), "lr": {"value": 1.0, "exponent": -0.3}}
    noise = {"kind": "student", "tail": 1.5, "scale": 0.05}
    return quadratic(rng, seed, task={"noise": noise}, method=how)


def healthy_sync(rng: Rng, seed: int) -> Table:
    groups = [{"name": "even", "clients": 8, "runtime": {"kind": "uniform", "low": 1.0, "high": 1.2}}]
    return quadratic(rng, seed, groups, method={"mode": "sync", "buffer": 8, "lr": rng.uniform(0.4, 1.5)})


def healthy_digits(rng: Rng, seed: int) -> Table:
    return digits(rng, seed, method={"lr": rng.uniform(0.7, 1.5)})


def healthy_rarely_evaluated(rng: Rng, seed: int) -> Table:
    return logistic(rng, seed, method={"lr": rng.uniform(0.5, 2.0)}, run={"evaluate_every": 30})


def healthy_mild(rng: Rng, seed: int) -> Table:
    """Stragglers that an asynchronous mode copes with."""
    return quadratic(rng, seed, stragglers(8, 2, rng.uniform(2.0, 4.0)), method={"lr": rng.uniform(0.3, 0.8)})


def healthy_server(rng: Rng, seed: int) -> Table:
    return quadratic(rng, seed, even(8), method={"mode": "server", "buffer": int(rng.integers(5, 7)), "lr": 0.8})


CASES = (
    Case("sync, one straggler, M = N", ("idle",), sync_stragglers),
    Case("sync, one straggler, unequal data", ("idle",), sync_unequal),
    Case("sync, half of the clients slow", ("idle",), sync_half_slow),
    Case("sync on digits, two stragglers", ("idle",), sync_digits),
    Case("server-centric, M = N", ("idle",), server_all),
    Case("sync, slow links, M = N", ("idle",), sync_links),
    Case("concurrency too low", ("idle",), few_at_work),
    Case("same clients get all jobs", ("starvation",), few_get_jobs, ("idle",)),
    Case("lr too high", ("divergence",), rate_high, ("delays",)),
    Case("lr too high, sync", ("divergence",), rate_high_sync),
    Case("lr too high, digits", ("divergence", "progress"), rate_high_digits, ("delays",)),
    Case("lr too high, clipped", ("divergence", "progress"), rate_high_clipped, ("delays", "idle")),
    Case("lr too high, logistic", ("divergence", "progress"), rate_high_logistic, ("delays",)),
    Case("local_lr too high", ("divergence",), local_rate_high, ("delays", "refusals")),
    Case("local_lr too high, clipped", ("divergence", "progress"), local_rate_high_clipped, ("delays",)),
    Case("late updates blow up", ("divergence", "delays"), late_blow_up),
    Case("compensation blows up", ("divergence",), compensated_blow_up, ("delays",)),
    Case("lr too low", ("progress",), rate_low),
    Case("lr too low, digits", ("progress",), rate_low_digits),
    Case("server's clip too tight", ("outer clip",), clip_tight, ("progress",)),
    Case("clients' clip too tight", ("local clip",), local_clip_tight, ("progress",)),
    Case("heavy tails, no clip", ("tail",), heavy_tails, ("divergence", "progress")),
    Case("heavy tails, not measured", ("tail",), heavy_tails_unmeasured, ("divergence", "progress")),
    Case("starved: M above what is left", ("starvation",), starved, ("lost clients",)),
    Case("dead clients", ("lost clients",), dead_clients, ("starvation",)),
    Case("flaky clients", ("lost clients",), flaky_clients, ("idle",)),
    Case("clients that never answer", ("starvation",), silent_client),
    Case("clients that send NaN", ("refusals",), faults("nan"), ("starvation",)),
    Case("clients that send twice", ("refusals",), faults("twice")),
    Case("max_delay refuses slow clients", ("refusals", "starvation"), too_stale),
    Case("max_delay refuses most", ("refusals", "starvation"), refuses_most),
    Case("max_delay refuses most, downplayed", ("refusals", "starvation"), refuses_most_downplayed),
    Case("server is the bottleneck", ("server",), server_busy, ("delays",)),
    Case("overfitting", ("overfitting",), overfitted),
    Case("work that hardly counts", ("dead weight",), dead_weight, ("delays",)),
    Case("slow machine", ("machines",), slow_machine, change=on_three_machines),
    Case("killed before the first round", ("no rounds",), no_rounds, change=killed_early),
    Case("healthy: client-centric", (), healthy_client),
    Case("healthy: Clip², heavy tails", (), healthy_clip2),
    Case("healthy: sync, even clients", (), healthy_sync),
    Case("healthy: digits", (), healthy_digits),
    Case("healthy: mild stragglers", (), healthy_mild),
    Case("healthy: logistic, rarely evaluated", (), healthy_rarely_evaluated),
    Case("healthy: server-centric", (), healthy_server),
)
