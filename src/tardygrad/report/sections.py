"""What stands in a report on runs, part by part; page.py says how it looks."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from tardygrad.report import clients, curves
from tardygrad.report import tail_charts as vectors
from tardygrad.report.blocks import Block, Code, Figure, Fold, Part, Table
from tardygrad.report.comparison import comparison
from tardygrad.report.groups import Group, baseline_of, grouped, names, target_of
from tardygrad.report.loader import RUNNING, RunView, going, text

DETAILED = 12  # runs of a comparison that are also told one by one


def parts(stories: list[RunView], *, baseline: str | None = None, target: float | None = None) -> list[Part]:
    """A report on one run, or on several beside each other."""
    groups = grouped(stories)
    if len(stories) == 1:
        target_of(groups, baseline_of(groups, baseline), target)  # neither is used, and both are checked
        return list(_alone(stories[0]))
    base = baseline_of(groups, baseline)
    goal = target_of(groups, base, target)
    return [
        Part("comparison", "Comparison", list(comparison(groups, base, goal))),
        Part("learning", "Learning", list(curves.learning(groups)) or ["No round has been made yet."]),
        Part(
            "heard", "Who is heard?", list(curves.heard(groups)) or ["The clients are of one class, or nothing came."]
        ),
        Part(
            "clipping",
            "Clipping",
            list(curves.clipping(groups)) or ["Nothing was clipped, or nothing is recorded of it."],
        ),
        Part("runs", "The runs one by one", list(_folds(groups))),
    ]


def _folds(groups: list[Group]) -> Iterator[Block]:
    runs = [(group, run) for group in groups for run in group.runs]
    for number, (group, run) in enumerate(runs[:DETAILED], 1):
        seed = f", seed {run.run['seed']}" if isinstance(run.run.get("seed"), int) else ""
        own = [block for part in _alone(run, overlaid=True) for block in part.blocks]
        blocks = [one._replace(key=f"{one.key}-{number}") if isinstance(one, Figure) else one for one in own]
        yield Fold(f"run-{number}", f"{group.name}{seed}: {text(run.path, 120)}", blocks)
    if len(runs) > DETAILED:
        yield f"Of {len(runs)} runs the first {DETAILED} are told one by one. Report on another by itself to see it."


def _alone(story: RunView, *, overlaid: bool = False) -> Iterator[Part]:
    """A run by itself; without the curves if they are laid over others anyway."""
    group = [Group(story.label, story.label, [story])]
    yield Part("summary", "Summary", [Table(("", ""), list(_facts(story)))])
    if not overlaid:
        learned: list[Block] = [*curves.learning(group)]
        yield Part("learning", "Learning", learned or ["No round has been made yet."])
    worked: list[Block] = [*clients.timeline(story)]
    used = clients.uses(story)
    yield Part("clients", "Clients", [*worked, used] if worked and used.rows else ["No client has worked yet."])
    late: list[Block] = [*clients.delays(story), *clients.lateness(story)]
    yield Part("lateness", "Delays", late or ["No update has been used yet."])
    heard: list[Block] = [*curves.heard(group)]
    yield Part("heard", "Who is heard?", heard or ["The clients are of one class, or it is not recorded."])
    if not overlaid:
        clipped: list[Block] = [*curves.clipping(group)]
        yield Part("clipping", "Clipping", clipped or ["Nothing was clipped, or nothing is recorded of it."])
    heavy: list[Block] = [*vectors.tail(story), *vectors.indices(story)]
    yield Part("tails", "Tails", heavy or ["Too few updates, or too even ones, for an estimate of their tail index."])
    trouble: list[Block] = [*clients.trouble(story)]
    yield Part("trouble", "Refused and lost", trouble or ["No update was refused, and no client was lost."])
    yield Part("memory", "Memory", [_memory(story), *vectors.memory(story)])
    yield Part("settings", "Settings", list(_settings(story)))


def _facts(story: RunView) -> Iterator[tuple[str, str]]:
    """The summary, row by row."""
    yield "method", f"{story.method} ({story.label})" if story.label not in story.method else story.method
    yield "status", _status(story)
    if story.reason:
        yield "why", story.reason
    asked = story.run.get("rounds")
    yield "rounds", f"{story.made:,}" + (f" of {asked:,}" if isinstance(asked, int) else "")
    yield "time on the clock", f"{story.time:,.6g} s"
    if story.seconds is not None:
        yield "real time", f"{story.seconds:,.4g} s"
    if story.scores:
        last = story.scores[-1]
        for name in names([Group("", "", [story])]):
            value = last["scores"].get(name)
            shown = "not finite" if value is None else f"{value:.1%}" if name == "accuracy" else f"{value:.4g}"
            yield f"test {name}", f"{shown} in round {last['round']:,}"
    total = sum(story.delays.values())
    if total:
        mean = sum(delay * number for (_, delay), number in story.delays.items()) / total
        yield "delay", f"mean {mean:.3g}, largest {max(delay for _, delay in story.delays):,}"
    refused = sum(story.refused.values())
    yield "updates", f"{story.arrived:,} arrived, {refused:,} refused; clients lost {sum(story.lost.values()):,} times"
    if story.rounds:
        yield "local steps", f"{story.rounds[-1]['steps']:,}"
    if story.classes:
        yield "clients", ", ".join(f"{number:,} {name}" for name, number in story.classes.items())
    if story.parameters is not None:
        yield "parameters", f"{story.parameters:,}"
    if isinstance(story.run.get("seed"), int):
        yield "seed", str(story.run["seed"])
    yield "record", text(story.path, 300)


def _status(story: RunView) -> str:
    if story.status == "stopped":
        return f"stopped; it can go on with: tardygrad resume {shlex.quote(text(story.path, 1000))}"
    if story.ended:
        return story.status
    return "going on" if going(story.path) else f"{RUNNING}: still going on, or killed"


def _memory(story: RunView) -> str:
    if story.parameters is None:
        return f"At most {story.snapshots:,} past models were held; how large a model is, is not recorded."
    each = 4 * story.parameters
    held = f"at most {story.snapshots:,} past models, {each * story.snapshots:,} bytes" if story.snapshots else "none"
    return f"A model is a vector of {story.parameters:,} numbers, {each:,} bytes. Held to correct late updates: {held}."


def _settings(story: RunView) -> Iterator[Block]:
    if story.settings is None:
        yield "This run was begun in Python, without a spec: the program that began it repeats it."
        yield Code("Its settings:", story.toml)
    else:
        yield Code("To repeat the run:", f"tardygrad run {shlex.quote(text(story.path, 1000))}")
        yield Code("Its spec, with every default:", story.toml)
    if story.versions:
        yield Table(("what", "version"), list(story.versions.items()))
