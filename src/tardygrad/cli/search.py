"""`plan --search` and `plan --fit`: find the best setting for the spec's fleet, or for one fitted to a run."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tardygrad.cli.output import counted, show, show_json, show_table, waiting, writable
from tardygrad.cli.run import run_dir
from tardygrad.core.algorithm import downplay
from tardygrad.core.method import Method
from tardygrad.doctor.fit_runtimes import ClientFit, FittedFleet, fit_fleet, fitted_spec
from tardygrad.doctor.search import Candidate, changes, ranked, search, settings
from tardygrad.doctor.search_chart import search_chart
from tardygrad.doctor.theorems import tail_of, tolerance
from tardygrad.errors import Invalid
from tardygrad.report import theme
from tardygrad.runs.events import Tail
from tardygrad.runs.history import History, printable, read_history
from tardygrad.runs.loop import clock_only
from tardygrad.runs.record import Row, replace
from tardygrad.runs.run import plural
from tardygrad.spec.spec import Built, Spec
from tardygrad_command import commands

TOP = 10  # settings that are printed
MAX_CLIENTS = 10_000  # most clients, for which a search takes minutes


class Bound(NamedTuple):
    """The largest delay that a setting may have, and why."""

    delay: float
    why: str


def find(spec: Spec, built: Built, options: commands.Plan) -> None:
    """Fit a fleet if a run is given, simulate the clock of every setting, and print the fastest."""
    run, figure, write = options.fit, options.figure, options.write
    figure_path = None if figure is None else writable("--figure", figure, ".png", ".svg")
    spec_path = None if write is None else writable("--write", write, ".toml", ".json")
    if spec_path and spec_path.exists():
        raise Invalid(f"--write must be a new file, got {write!r}, which exists. Choose another name.")
    fitted: FittedFleet | None = None
    tails: list[Tail] = []
    if run is not None:
        with waiting("reading the record"):
            history = read_history(run_dir(run))
            fitted, tails = fit_fleet(history, _scale(history, built.method)), history.tails
        if history.clients != built.task.clients:
            wanted = f"as many clients as the spec ({built.task.clients})"
            raise Invalid(f"a fit needs a run with {wanted}, got {run!r} with {history.clients}.")
    fleet = fitted.fleet if fitted else built.fleet
    if fleet is None:
        raise Invalid("a search needs a [fleet], got a spec without one. Describe your clients, or add --fit RUN.")
    if fleet.clients > MAX_CLIENTS:
        rule = f"a search can have at most {MAX_CLIENTS:,} clients, got {fleet.clients:,}"
        raise Invalid(f"{rule}. Search with a part of the fleet.")
    clock_only(built.method, fleet)  # raises if the method cannot run
    bound = _bound(spec, built, options.max_delay, tails)
    tries = settings(built.method, fleet.clients)
    # no parameters with --fit: measured times include the messages
    how = {"rounds": built.rounds, "parameters": built.task.parameters if run is None else 0, "seed": built.run.seed}
    tried = search(tries, fleet, bound=bound.delay, **how)
    found = ranked(list(counted(tried, total=len(tries), what="settings")))
    if figure_path:
        theme.write(search_chart(found), figure_path)
    if spec_path and fitted:  # last: it must not exist if the same command is to be repeated
        replace(spec_path, fitted_spec(spec, fitted.fleet, as_json=spec_path.suffix == ".json").encode())
    files = {"figure": figure, "written": write}
    if options.json:
        show_json(_facts(built, found, bound, fitted) | files)
        return
    if fitted:
        _show_fit(fitted)
    _show(found)
    written = [f"{name}  {path}" for name, path in files.items() if path]
    best = next((setting.method for setting in found if setting.excluded is None), built.method)
    if write:
        written.append(f"run  tardygrad run {shlex.join([write, *changes(best, built.method)])}")
    show("\n".join([*_remarks(found, bound, built), *written]))


def _scale(history: History, method: Method) -> float:
    """The work of a planned job relative to a recorded one, if both are counted in steps."""
    before = history.setting("local_steps")
    return method.local_steps / before if method.local_steps and isinstance(before, int) and before > 0 else 1.0


def _bound(spec: Spec, built: Built, most: int | None, tails: list[Tail]) -> Bound:
    if most is not None:
        return Bound(most, "--max-delay")
    if built.method.max_delay is not None:
        return Bound(built.method.max_delay, "method.max_delay")
    tail = tail_of(spec.resolved(), tails)
    bound = tolerance(built.method, built.rounds, tail.tail, spec.method.arguments.get("schedule"))
    if bound == np.inf:
        downplayed = built.method.weight is downplay
        why = "the method downplays late updates" if downplayed else "no theorem covers this method"
        return Bound(bound, f"none, because {why}")
    return Bound(bound, f"from the theory for {built.rounds} rounds and tail index {tail.tail:g} ({tail.source})")


def _facts(built: Built, found: Sequence[Candidate], bound: Bound, fitted: FittedFleet | None) -> Row:
    choices = [setting for setting in found if setting.excluded is None]
    return {
        "method": str(built.method),
        "rounds": built.rounds,
        "bound": bound._asdict(),
        "best": _row(choices[0]) if choices else None,
        "current": next(_row(setting) for setting in found if setting.current),
        "settings": [_row(setting) for setting in found],
        "fit": [
            client._asdict() | {"runtime": {"kind": type(client.runtime).__name__.lower(), **vars(client.runtime)}}
            for client in fitted.clients
        ]
        if fitted
        else None,
    }


def _row(tried: Candidate) -> Row:
    method, clock = tried.method, tried.clock
    facts: Row = {
        "mode": method.mode, "buffer": method.buffer, "concurrency": method.concurrency, "dispatch": method.dispatch,
        "excluded": tried.excluded, "current": tried.current,
    }  # fmt: skip
    if clock:
        facts |= {**clock._asdict(), "per_round": clock.per_round, "per_effective": clock.per_effective}
    return facts


def _show(found: Sequence[Candidate]) -> None:
    choices = [setting for setting in found if setting.excluded is None]
    shown = (choices or list(found))[:TOP]
    shown += [setting for setting in found if setting.current and setting not in shown]
    rows = []
    for setting in shown:
        marks = ["best"] * (setting is choices[0] if choices else False) + ["now"] * setting.current
        method, clock = setting.method, setting.clock
        work = str(method.concurrency or (method.buffer if method.mode == "sync" else "all"))
        numbers = ["–"] * 5
        if clock:
            numbers = [f"{clock.per_effective:.4g}", f"{clock.per_round:.4g}"]
            numbers += [f"{clock.delay_mean:.3g}", str(clock.delay_max), f"{clock.idle:.1%}"]
        rows.append((", ".join(marks), method.mode, str(method.buffer), work, *numbers))
    columns = ("M>", "working>", "s per effective update>", "s per round>", "mean delay>", "largest>", "idle>")
    show_table(("", "mode", *columns), rows)


def _remarks(found: Sequence[Candidate], bound: Bound, built: Built) -> list[str]:
    why = Counter(setting.excluded for setting in found if setting.excluded)
    choices, lines = [setting for setting in found if setting.excluded is None], []
    limit = "" if bound.delay == np.inf else f"{bound.delay:.4g} rounds, "
    lines.append(f"delay bound: {limit}{bound.why}")
    rounds = [setting.clock.rounds for setting in found if setting.clock]
    if rounds and min(rounds) < built.rounds:
        lines.append(f"simulated: {min(rounds):,} to {max(rounds):,} of {built.rounds:,} rounds per setting")
    if why:
        reasons = ", ".join(f"{number} because {_plural(reason, number)}" for reason, number in why.most_common())
        lines.append(f"ruled out: {why.total()} of {len(found)} settings, {reasons}")
    if not choices:
        return [*lines, "no setting is within the bound: raise it with --max-delay, or use method.downplay=true"]
    best, now = choices[0], next(setting for setting in found if setting.current)
    if best.current:
        return [*lines, "the current setting is the best of those tried"]
    ratio = now.seconds / best.seconds if best.seconds > 0 else 1.0
    change = f"{ratio:.3g} times as fast as the current setting"
    if ratio < 1:
        change = f"the current setting is ruled out; the best one is {1 / ratio:.3g} times slower"
    return [*lines, f"{change}, with {' '.join(changes(best.method, built.method))}"]


def _plural(reason: str, number: int) -> str:
    return reason if number == 1 else reason.replace("its ", "their ").replace("it starves", "they starve")


def _show_fit(fitted: FittedFleet) -> None:
    rows = []
    for name in dict.fromkeys(client.name for client in fitted.clients):
        clients = [client for client in fitted.clients if client.name == name]
        kinds = Counter(type(client.runtime).__name__.lower() for client in clients)
        sources = Counter(str(client.source) for client in clients)
        shares = [client.lost for client in clients if client.lost]
        lost = f"{plural(len(shares), 'client')}, {max(shares):.1%} of jobs at most" if shares else "none"
        jobs = str(sum(client.jobs for client in clients))
        rows.append((printable(name, 40), str(len(clients)), jobs, _range(clients), _many(kinds), _many(sources), lost))
    show_table(("class", "clients>", "jobs>", "median s>", "runtime", "from", "lost"), rows)


def _range(those: Sequence[ClientFit]) -> str:
    """The smallest and the largest median; a lower bound for clients that never returned."""
    low, *_, high = sorted((client.runtime.draw(0.5, 0), client.at_least) for client in (*those, *those))
    ends = [f"at least {median:.3g}" if at_least else f"{median:.3g}" for median, at_least in (low, high)]
    return ends[0] if low == high else ("–" if ends[1][0] != "a" else " to ").join(ends)


def _many(counts: Counter[str]) -> str:
    return ", ".join(name if len(counts) == 1 else f"{number} {name}" for name, number in counts.most_common())
