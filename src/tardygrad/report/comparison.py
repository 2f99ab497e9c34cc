"""The table that compares runs."""

from __future__ import annotations

from collections.abc import Iterator

from tardygrad.report.blocks import Block, Note, Table
from tardygrad.report.figure import CLOCK
from tardygrad.report.groups import Group, Line, Spread, Target, lines, names, tasks


def comparison(groups: list[Group], base: Group, target: Target | None) -> Iterator[Block]:
    if len(learned := tasks(groups)) > 1:
        yield Note(f"These runs learn different tasks ({', '.join(learned)}): their losses cannot be compared.")
    if target:
        what = f"a test {target.name} of {_amount(target.name, target.value)} or {_better(target)}"
        why = "" if target.given else f", nine tenths of the way from the first score of {base.name} to the best of all"
        yield f"The target is {what}{why}."
    there = "; to the target, where all runs of both reached it" if target else ""
    yield f"Speed-ups are over {base.name}: of the rounds, where all runs of both made as many{there}."
    if any(len(group.runs) > 1 for group in groups):
        yield "Runs that differ only in their seed are one line: mean ± standard deviation."
    shown = [name for name in names(groups) if name in ("accuracy", "loss")] or names(groups)[:1]
    goal = _amount(target.name, target.value) if target else ""
    to_goal = [f"time to {goal} (s)", f"speed-up to {goal}"] if target else []
    heads = ("run", "runs", "status", "rounds", *(f"test {name}" for name in shown), CLOCK, "speed-up of the rounds")
    rows = [_line(line, shown, target) for line in lines(groups, base, target)]
    yield Table((*heads, *to_goal, "mean delay", "largest delay"), rows)


def _better(target: Target) -> str:
    return "more" if target.name == "accuracy" else "less"


def _line(line: Line, shown: list[str], target: Target | None) -> tuple[str, ...]:
    runs = line.group.runs
    statuses = dict.fromkeys(run.status for run in runs)
    scores = [_spread(line.scores.get(name), percent=name == "accuracy") for name in shown]
    there = [_reached(line, len(runs)), _times(line.faster)] if target else []
    made = dict.fromkeys(f"{run.made:,}" for run in runs)
    delay = "–" if line.delay is None else f"{line.delay:.1f}"
    own = (line.group.name, str(len(runs)), ", ".join(statuses), ", ".join([*made][:4]))
    return (*own, *scores, _spread(line.time), _times(line.faster_rounds), *there, delay, f"{line.late:,}")


def _reached(line: Line, runs: int) -> str:
    if line.there is None or line.there.number == runs:
        return _spread(line.there)
    return f"{line.there.number} of {runs} runs"


def _times(ratio: float | None) -> str:
    return "–" if ratio is None else f"{ratio:.3g}×"


def _spread(spread: Spread | None, *, percent: bool = False) -> str:
    if spread is None:
        return "–"
    form = "{:.1%}" if percent else "{:,.4g}"
    more = "" if spread.deviation is None else f" ±\u00a0{(form if percent else '{:.2g}').format(spread.deviation)}"
    return form.format(spread.mean) + more


def _amount(name: str, value: float) -> str:
    return f"{value:.4g}" if name != "accuracy" else f"{value:.1%}".replace(".0%", "%")
