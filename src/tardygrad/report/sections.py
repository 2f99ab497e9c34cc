"""The sections of a report about runs."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from itertools import chain

from tardygrad.report import curves, run_charts
from tardygrad.report.comparison import comparison_blocks
from tardygrad.report.groups import SeedGroup, score_names, seconds_of
from tardygrad.report.loader import RunView, finite
from tardygrad.results.blocks import Block, Code, Section, Table, with_suffix
from tardygrad.results.comparison import Comparison
from tardygrad.results.table import score_text
from tardygrad.runs.history import UNFINISHED, History
from tardygrad.runs.record_values import printable, rounded
from tardygrad.runs.run import plural

DETAILED = 12  # runs of a comparison that are also shown one by one


def run_sections(groups: list[SeedGroup], compared: Comparison) -> list[Section]:
    """A report about one run, or a comparison of several."""
    if len(groups) == len(groups[0].runs) == 1:
        return list(_single(groups[0].runs[0]))
    return [
        Section("comparison", "Comparison", list(comparison_blocks(compared))),
        _learning(groups),
        _influence(groups),
        _clipping(groups),
        *_privacy(groups),
        Section("runs", "Single runs", list(_details(groups))),
    ]


def _section(key: str, title: str, blocks: Iterable[Block], empty: str, intro: Iterable[str] = ()) -> Section:
    """A section with an introduction, or why it is empty."""
    content = list(blocks)
    return Section(key, title, [*intro, *content] if content else [empty])


def _learning(groups: list[SeedGroup]) -> Section:
    empty = "There is no completed round yet."
    return _section("learning", "Learning", curves.learning(groups), empty, curves.how_to_read(groups))


def _influence(groups: list[SeedGroup]) -> Section:
    empty = "All clients are of one class, or there are no updates yet."
    return _section("influence", "Influence of the classes", curves.shares(groups), empty)


def _clipping(groups: list[SeedGroup]) -> Section:
    empty = "Nothing was clipped, or clipping was not recorded."
    return _section("clipping", "Clipping", curves.clipping(groups), empty, curves.how_to_read(groups))


def _privacy(groups: list[SeedGroup]) -> Iterator[Section]:
    """The section about privacy, if a run is private."""
    if any(run.privacy for group in groups for run in group.runs):
        yield _section("privacy", "Privacy", curves.privacy(groups), "There is no completed round yet.")


def _details(groups: list[SeedGroup]) -> Iterator[Block]:
    runs = [(group, run) for group in groups for run in group.runs]
    for number, (group, run) in enumerate(runs[:DETAILED], 1):
        seed = "" if run.seed is None else f", seed {run.seed}"
        blocks = [block for section in _single(run, compared=True) for block in section.blocks]
        title = f"{group.name}{seed}: {printable(run.history.path, 120)}"
        yield Section(f"run-{number}", title, with_suffix(blocks, f"-{number}"))
    if len(runs) > DETAILED:
        yield f"Only the first {DETAILED} of {len(runs)} runs are shown here. Make a report of another run to see it."


def _single(run: RunView, *, compared: bool = False) -> Iterator[Section]:
    """One run; without its curves if a comparison has them already."""
    group = [SeedGroup(run.history.label, run.history.label, [run])]
    yield Section("summary", "Summary", [Table(("", ""), list(_facts(run)))])
    if not compared:
        yield _learning(group)
    yield _section("clients", "Clients", run_charts.timeline(run), "No client has worked yet.")
    if len(run.history.machines) > 1:
        yield Section("machines", "Machines", list(run_charts.machines(run)))
    if run.history.client_evaluations:
        scores = chain(run_charts.distribution(run), run_charts.over_rounds(run))
        yield _section("client-scores", "Scores of the clients", scores, "No client has a score.")
    late = chain(run_charts.delays(run), run_charts.delays_over_time(run))
    yield _section("lateness", "Delays", late, "No update has been used yet.")
    yield _influence(group)
    if not compared:
        yield _clipping(group)
        yield from _privacy(group)
    tails, few = chain(run_charts.tail(run), run_charts.indices(run)), "Too few updates, or too similar norms"
    yield _section("tails", "Tails", tails, f"{few}, to estimate a tail index.")
    none = "No update was refused and no client was lost."
    yield _section("trouble", "Refused and lost", run_charts.trouble(run), none)
    yield Section("memory", "Memory", [_memory(run.history), *run_charts.memory(run)])
    yield Section("settings", "Settings", list(_settings(run)))


def _facts(run: RunView) -> Iterator[tuple[str, str]]:
    """The rows of the summary."""
    history, rounds = run.history, run.history.rounds
    yield "method", history.method if history.label in history.method else f"{history.label}: {history.method}"
    yield "status", _status(history)
    if history.reason:
        yield "reason", history.reason
    yield "rounds", f"{len(rounds):,}" + (f" of {history.requested:,}" if history.requested else "")
    yield "time", f"{history.time:,.6g} {seconds_of([run])}"
    if (seconds := finite(history.seconds)) is not None and history.simulated is not False:
        yield "computing time", f"{rounded(seconds)} seconds"
    if run.scores.items:
        last = run.scores.items[-1]
        for name in score_names([SeedGroup("", "", [run])]):
            value = last["scores"].get(name)
            shown = "not finite" if value is None else score_text(name, value)
            yield f"test {name}", f"{shown} in round {last['round']:,}"
    if run.privacy:
        yield "privacy of each client", run.privacy
    if len(rounds):
        yield "delay", f"mean {rounds.delays.mean():.3g}, largest {rounds.delays.max():,}"
    arrived, refused = f"{history.taken:,} arrived", f"{history.refused.total():,} refused"
    losses = sum(client.losses for client in history.by_client)
    yield "updates", f"{arrived}, {refused}"
    if losses:
        yield "lost clients", plural(losses, "time")
    if len(rounds):
        yield "local steps", f"{rounds.steps.sum():,}"
    if run.classes:
        yield "clients", ", ".join(f"{own.clients:,} {name}" for name, own in run.classes.items())
    if history.parameters is not None:
        yield "parameters", f"{history.parameters:,}"
    if run.seed is not None:
        yield "seed", str(run.seed)
    yield "record", printable(history.path, 300)


def _status(history: History) -> str:
    if history.resume_hint:
        return f"{history.state}; continue with: {history.resume_hint}"
    return f"{UNFINISHED}: still running, or killed" if history.state == UNFINISHED else history.state


def _memory(history: History) -> str:
    most = history.rounds.snapshots.max(initial=0)
    if history.parameters is None:
        return f"The server kept at most {most:,} past models; their size is not recorded."
    size = 4 * history.parameters
    amount = f"at most {most:,} ({size * most:,} bytes)" if most else "none"
    past_models = f"Past models kept for delay compensation: {amount}."
    return f"A model has {history.parameters:,} parameters ({size:,} bytes). {past_models}"


def _settings(run: RunView) -> Iterator[Block]:
    if run.history.spec is None:
        yield "This run was started in Python, with objects that have no recipe. Run the same program to repeat it."
        yield Code("What is known of its settings:", run.toml)
    else:
        yield Code("Repeat the run:", f"tardygrad run {shlex.quote(printable(run.history.path, 1000))}")
        yield Code("Its spec, with all defaults:", run.toml)
    if run.history.versions:
        yield Table(("package", "version"), list(run.history.versions.items()))
