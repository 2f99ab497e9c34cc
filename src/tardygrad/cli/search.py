"""`plan --search` and `plan --fit`: find the best setting for the spec's fleet, or for one fitted to a run."""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress

from tardygrad.cli import commands
from tardygrad.cli.output import counted, show, show_json, show_table, waiting, writable
from tardygrad.cli.plan import clock_events
from tardygrad.cli.run import run_dir
from tardygrad.constructors import parameters
from tardygrad.core.method import Method
from tardygrad.doctor.fit_runtimes import ClientFit, FittedFleet, fit_fleet, fitted_spec
from tardygrad.doctor.search import KEYS, Candidate, Ranking, changes, rank_settings
from tardygrad.doctor.theorems import Tolerance, tail_of, tolerance
from tardygrad.engines.threads import torch_threads
from tardygrad.errors import Invalid, Starved
from tardygrad.fleet import Fleet
from tardygrad.runs.checks import quoted
from tardygrad.runs.events import TailEstimate
from tardygrad.runs.history import History, read_history
from tardygrad.runs.loop import clock_only
from tardygrad.runs.record import Row, replace
from tardygrad.runs.record_values import printable
from tardygrad.runs.run import plural
from tardygrad.spec.spec import Built, Spec

TOP = 10  # settings that are printed
MEASURE = "predicted time for the effective updates of the current setting's rounds"
MAX_CLIENTS = 10_000  # most clients, for which a search takes minutes


def find(spec: Spec, built: Built, options: commands.Plan) -> None:
    """Fit a fleet if a run is given, rank the settings, and print the best."""
    run, write = options.fit, options.write
    spec_path = None if write is None else writable("--write", write, ".toml", ".json")
    if spec_path and spec_path.exists():
        raise Invalid(f"--write must be a new file, got {write!r}, which exists. Choose another name.")
    fitted: FittedFleet | None = None
    tails: list[TailEstimate] = []
    if run is not None:
        with waiting("reading the record"):
            history = read_history(run_dir(run))
            fitted, tails = fit_fleet(history, _scale(history, built.method)), history.tails
        if history.clients != built.task.clients:
            wanted = f"as many clients as the spec ({built.task.clients})"
            own = f"tardygrad plan {quoted(run)} --fit {quoted(run)}"
            fix = f"Use task.clients={history.clients}, or the run's own spec: {own}"
            raise Invalid(f"a fit needs a run with {wanted}, got {run!r} with {history.clients}. {fix}")
    fleet = fitted.fleet if fitted else built.fleet
    if fleet is None:
        raise Invalid("a search needs a [fleet], got a spec without one. Describe your clients, or add --fit RUN.")
    if fleet.clients > MAX_CLIENTS:
        rule = f"a search can have at most {MAX_CLIENTS:,} clients, got {fleet.clients:,}"
        raise Invalid(f"{rule}. Search with a part of the fleet.")
    rounds = _rounds(built, fleet)
    schedule = spec.method.arguments.get("schedule")
    tolerated = tolerance(built.method, rounds, tail_of(spec.resolved(), tails), schedule)
    with torch_threads(spec.run.threads):
        ranking = rank_settings(
            built.method,
            fleet,
            rounds=rounds,
            parameters=0 if fitted else built.task.parameters,  # measured times include the messages
            seed=built.run.seed,
            fixed=[key for key in KEYS if key not in parameters(spec.method.make)],
            max_delay=math.inf if options.max_delay is None else options.max_delay,
            tolerated=tolerated.delay,
            cautious=fitted is not None,
            watch=lambda items, total, what: counted(items, total=total, what=what),
        )
    if spec_path and fitted:  # last: it must not exist if the same command is to be repeated
        replace(spec_path, fitted_spec(spec, fitted.fleet, as_json=spec_path.suffix == ".json").encode())
    best = ranking.best
    overrides = [] if best is None else changes(best.method, built.method)
    if best and overrides and best.rounds != rounds and spec.run.until is None:
        overrides.append(f"run.rounds={best.rounds}")
    if options.json:
        facts = {"method": str(built.method), "rounds": rounds, "measure": MEASURE, "tolerance": tolerated._asdict()}
        facts |= {"answer": ranking.answer(), "overrides": overrides, "written": write}
        named = {"best": best, "sync": ranking.sync, "current": ranking.current}
        facts |= {name: setting and _row(setting) for name, setting in named.items()}
        show_json(facts | {"settings": list(map(_row, ranking.settings)), "fit": fitted and _fit_rows(fitted)})
        return
    if fitted:
        _show_fit(fitted)
    _show(ranking)
    lines = [*_remarks(ranking, tolerated, rounds), *([f"written  {write}"] if write else []), ranking.answer()]
    if overrides:
        lines.append(f"set  {shlex.join(overrides)}")
    if write:
        lines.append(f"run  tardygrad run {shlex.join([write, *overrides])}")
    show("\n".join(lines))


def _rounds(built: Built, fleet: Fleet) -> int:
    """The length of the run; with run.until, it takes a simulation."""
    server, pool = clock_only(built.method, fleet, parameters=built.task.parameters, seed=built.run.seed)
    rounds = built.run.rounds
    if rounds is None or (built.run.until is not None and built.engine.simulated):
        with suppress(Starved):
            for _ in clock_events(built, server, pool):
                pass
        rounds = server.round
    if not rounds:
        raise Invalid("a search needs a run of at least one round, got none. Set run.rounds, or a larger run.until.")
    return rounds


def _scale(history: History, method: Method) -> float:
    """The work of a planned job relative to a recorded one, if both are counted in steps."""
    before = history.setting("local_steps")
    return method.local_steps / before if method.local_steps and isinstance(before, int) and before > 0 else 1.0


def _fit_rows(fitted: FittedFleet) -> list[Row]:
    return [each._asdict() | {"runtime": {"kind": "trace", **vars(each.runtime)}} for each in fitted.clients]


def _row(setting: Candidate) -> Row:
    clock = setting.clock
    facts: Row = {key: getattr(setting.method, key) for key in KEYS}
    facts |= {"excluded": setting.excluded, "warning": setting.warning, "current": setting.current}
    if clock:
        facts |= {**clock._asdict(), "per_round": clock.per_round, "per_effective": clock.per_effective}
    seconds = setting.seconds if setting.seconds < math.inf else None
    return facts | {"seconds": seconds, "needed_rounds": setting.rounds or None}


def _show(ranking: Ranking) -> None:
    """The fastest settings, and in any case the recommended, the best synchronous and the current one."""
    best, sync, current = ranking.best, ranking.sync, ranking.current
    shown = [setting for setting in ranking.settings if setting.excluded is None][:TOP]
    shown += [setting for setting in dict.fromkeys((best, sync, current)) if setting and setting not in shown]
    rows = []
    for setting in shown:
        marks = {"best": setting is best, "best sync": setting is sync and setting is not best, "now": setting.current}
        method, clock = setting.method, setting.clock
        work = str(method.concurrency or (method.buffer if method.mode == "sync" else "all"))
        numbers = ["–"] * 4
        if clock:
            numbers = [_seconds(clock.per_round), f"{clock.delay_mean:.3g}", str(clock.delay_max), f"{clock.idle:.1%}"]
        numbers[2] += " !" if setting.warning else ""
        name = ", ".join(mark for mark, holds in marks.items() if holds)
        result = (_seconds(setting.seconds), f"{setting.rounds:,}") if clock else ("–", "–")
        rows.append((name, method.mode, str(method.buffer), work, *result, *numbers))
    times = ("seconds>", "rounds>", "s per round>")
    show_table(("", "mode", "M>", "working>", *times, "mean delay>", "largest>", "idle>"), rows)


def _seconds(seconds: float) -> str:
    return f"{seconds:,.0f}" if seconds >= 1000 else f"{seconds:.4g}"


def _remarks(ranking: Ranking, tolerance: Tolerance, rounds: int) -> list[str]:
    lines = [f"ranked by  {MEASURE}"]
    why = Counter(setting.excluded for setting in ranking.settings if setting.excluded)
    if any(setting.warning for setting in ranking.settings):
        lines.append(f"!  above {tolerance.delay:.4g}, the delay that the theory tolerates ({tolerance.why})")
    simulated = [setting.clock.rounds for setting in ranking.settings if setting.clock]
    if simulated and min(simulated) < rounds:
        least, most = min(simulated), max(simulated)
        lines.append(f"simulated: {least:,} to {most:,} rounds of each setting; seconds are scaled to the rounds shown")
    if ranking.caveat:
        lines.append(f"{ranking.caveat}; `tardygrad sweep --best time` over mode and buffer measures it")
    if why:
        reasons = ", ".join(f"{number} because {_plural(reason, number)}" for reason, number in why.most_common())
        lines.append(f"ruled out: {why.total()} of {len(ranking.settings)} settings, {reasons}")
    return lines


def _plural(reason: str, number: int) -> str:
    return reason if number == 1 else reason.replace("its ", "their ").replace("it starves", "they starve")


def _show_fit(fitted: FittedFleet) -> None:
    rows = []
    for name in dict.fromkeys(client.name for client in fitted.clients):
        clients = [client for client in fitted.clients if client.name == name]
        sources = Counter(str(client.source) for client in clients)
        shares = [client.lost for client in clients if client.lost]
        lost = f"{plural(len(shares), 'client')}, {max(shares):.1%} of jobs at most" if shares else "none"
        jobs = str(sum(client.jobs for client in clients))
        rows.append((printable(name, 40), str(len(clients)), jobs, _range(clients), _many(sources), lost))
    show_table(("class", "clients>", "jobs>", "median s>", "from", "lost"), rows)


def _range(those: Sequence[ClientFit]) -> str:
    """The smallest and the largest median; a lower bound for clients that never returned."""
    low, *_, high = sorted((client.runtime.draw(0.5, 0), client.at_least) for client in (*those, *those))
    ends = [f"at least {median:.3g}" if at_least else f"{median:.3g}" for median, at_least in (low, high)]
    return ends[0] if low == high else ("–" if ends[1][0] != "a" else " to ").join(ends)


def _many(counts: Counter[str]) -> str:
    return ", ".join(name if len(counts) == 1 else f"{number} {name}" for name, number in counts.most_common())
