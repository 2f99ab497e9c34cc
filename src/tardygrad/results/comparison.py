"""The results of a comparison: a table with intervals and tests, its result in a sentence, and a figure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from types import MappingProxyType
from typing import Any, NamedTuple

from tardygrad.results.statistics import ALL_EQUAL, Estimate, confidence_interval, holm, paired_difference
from tardygrad.results.table import ResultTable, data_frame

LISTED = 4  # most names in a sentence
NOTHING: Mapping[str, Any] = MappingProxyType({})


class SeedResult(NamedTuple):
    """One run of a comparison."""

    seed: int
    status: str  # finished, diverged, starved, failed or waiting; of a record also running, killed or stopped
    score: float | None  # of the last model; None: it is no result, or not finite
    to_target: float | None  # seconds to the target; None: not reached, or there is no target
    time: float  # when it ended, in seconds of the engine's clock
    curve: list[tuple[float, float]]  # (time, score) of every evaluation
    facts: Mapping[str, Any]  # what it ran on: `simulated`, `random_fleet` and `settings`
    scores: Mapping[str, float | None] = NOTHING  # the other scores of the last model
    rounds: int | None = None


class Contender(NamedTuple):
    """A method of a comparison and its runs, one for each seed."""

    name: str
    runs: list[SeedResult]
    workable: float | None = None  # share of workable settings in its sweep; None: it was not tuned
    settings: Mapping[str, Any] = NOTHING  # the best of its sweep
    more: Mapping[str, str] = NOTHING  # cells of further columns of a page


class Paired(NamedTuple):
    """The difference of a method from the reference, over the same seeds."""

    difference: Estimate
    p: float | None  # of a paired t-test
    adjusted_p: float | None  # by Holm's method


class Comparison:
    """The results of `tg.compare`, or of recorded runs. Printed, it is a table with a row for each method.

    Attributes:
        contenders: the methods and their runs.
        score: the test score that is compared.
        higher: whether a high value of it is good.
        reference: the name of the method that the others are compared with.
        scores, times: by method, the mean final score and the mean time to the target, with their intervals; None if a
            run has none.
        score_differences, time_differences: by method, the paired differences from the reference.
        speedups: by method, how many times sooner than the reference it reached the target; None unless every run of
            both did.
    """

    def __init__(
        self,
        contenders: list[Contender],
        *,
        score: str,
        higher: bool,
        reference: str,
        target: float | None,
        confidence: float,
        notes: Sequence[str] = (),
        origin: str = "",
    ) -> None:
        self.contenders, self.score, self.higher, self.reference = contenders, score, higher, reference
        self.target, self.confidence, self._warnings, self._origin = target, confidence, notes, origin
        self.scores = {method.name: self._estimate([run.score for run in method.runs]) for method in contenders}
        self.times = {method.name: self._estimate([run.to_target for run in method.runs]) for method in contenders}
        self.score_differences = self._paired("score")
        self.time_differences = self._paired("to_target") if len(self._clocks()) < 2 else {}
        self.speedups = {name: self._ratio(time, self.times.get(reference)) for name, time in self.times.items()}

    def to_latex(self, *, caption: str | None = None, label: str = "tab:comparison") -> str:
        """The table in LaTeX, for the packages booktabs and graphicx; the best mean score is bold.

        Args:
            caption: None explains what the table shows.
        """
        return self.table().latex(caption, label)

    def to_pandas(self) -> Any:
        """A data frame with a row for each method. Needs pandas."""
        rows = []
        for method in self.contenders:
            score, time = self.scores[method.name], self.times[method.name]
            finished = sum(run.status == "finished" for run in method.runs)
            row: dict[str, Any] = {"method": method.name, "seeds": len(method.runs), "finished": finished}
            row |= _columns(self.score, score, self.score_differences.get(method.name))
            if self.target is not None:
                row |= {"reached": _reached(method)}
                row |= _columns("time_to_target", time, self.time_differences.get(method.name))
            rows.append(row | {"workable": method.workable})
        return data_frame(rows)

    def figure(self, path: str | Path, *, columns: int = 1) -> Path:
        """Draw the mean score against time, with confidence bands, as a PDF, SVG or PNG file.

        Args:
            columns: 1 or 2 columns of a paper, which sets the width.
        """
        from tardygrad.results.comparison_figure import write_figure

        return write_figure(self, Path(path), columns)

    def table(self) -> ResultTable:
        """The table; columns that would say nothing are left out."""
        return self._table(self._columns())

    def page_table(self) -> ResultTable:
        """The table with everything that is known of the runs."""
        columns, methods = self._columns(), self.contenders
        if any(self.speedups[method.name] for method in methods if method.name != self.reference):
            columns.append(("speed-up", [_times(self.speedups[method.name]) for method in methods]))
        for name in dict.fromkeys(name for method in methods for run in method.runs for name in run.scores):
            means = [self._estimate([run.scores.get(name) for run in method.runs]) for method in methods]
            columns.append((f"test {name}", [_cell(mean) for mean in means]))
        ends = {method.name: self._estimate([run.time for run in method.runs]) for method in methods}
        runs = [run for method in methods for run in method.runs]
        if len(methods) > 1 and runs[0].rounds and len({run.rounds for run in runs}) == 1:
            ratios = [self._ratio(end, ends[self.reference]) for end in ends.values()]
            columns.append(("speed-up, all rounds", [_times(ratio) for ratio in ratios]))
        if len({run.time for run in runs}) > 1:
            columns.append(("time in all (s)", [_cell(end) for end in ends.values()]))
        columns.append(("runs", [str(len(method.runs)) for method in methods]))
        for name in dict.fromkeys(name for method in methods for name in method.more):
            columns.append((name, [method.more.get(name, "–") for method in methods]))
        return self._table(columns)

    def _table(self, columns: list[tuple[str, list[str]]]) -> ResultTable:
        headings, cells = zip(*columns, strict=True)
        return ResultTable(headings, [*zip(*cells, strict=True)], self.notes(), self._best() if self._several() else ())

    def notes(self) -> list[str]:
        """What the numbers of the table are, and warnings."""
        return self.explanations() + self.caveats()

    def explanations(self) -> list[str]:
        """What the numbers of the table are."""
        number = max(len(method.runs) for method in self.contenders)
        found = [self._score_note(number)]
        if len(self.contenders) > 1:
            test = "; p: two-sided paired t-test, adjusted by Holm's method within its column"
            found.append(f"differences from {self.reference}, paired by seed{test if number > 1 else ''}")
        if self.target is not None:
            score = f"a test {self.score} of {self._score(self.target)}"
            found.append(f"time to target: {self.seconds} to the first evaluation that reaches {score}{self._origin}")
        pairs = (*self.score_differences.values(), *self.time_differences.values())
        estimates = (*self.scores.values(), *self.times.values(), *(pair.difference for pair in pairs))
        if any(each and each.number > 1 and each.half_width is None for each in estimates):
            found.append("all equal: every seed gives the same number, so there is no interval and no test")
        return found

    def result(self) -> str:
        """Who has the best mean score, how far it is from the reference, and who was the first to reach the target, in
        a sentence without its stop."""
        best = [self.contenders[row] for row, _ in sorted(self._best())]
        what, unit = f"test {self.score}", "%" if self.score == "accuracy" else ""
        if not best:
            return f"no method has a {what} in all its runs"
        first, score = best[0], f"{self._score_cell(best[0]).removesuffix(ALL_EQUAL)}{unit}"
        seeds, fastest = _seeds(len(first.runs)), self._fastest()
        if len(self.contenders) == 1:
            return f"{first.name} has a {'mean ' * (len(first.runs) > 1)}{what} of {score} {seeds}{fastest}"
        if len(best) > 1:
            return f"{listed([method.name for method in best])} have the same mean {what}, {score}{fastest}"
        single = len(first.runs) == 1
        sentence = f"{first.name} has the best {'mean ' * (not single)}{what}, {score} {seeds}"
        sentence += ", so small differences may be chance" * single
        if pair := self.score_differences.get(first.name):
            difference = _plus_minus(pair.difference, self._scale, sign=True).removesuffix(ALL_EQUAL)
            test = "" if pair.p is None else f", p {_p(pair) if _p(pair).startswith('<') else f'= {_p(pair)}'}"
            sentence += f"; the difference from {self.reference} is {difference}{' points' * bool(unit)}{test}"
        return sentence + fastest

    def _fastest(self) -> str:
        """Who reached the target first, and how much sooner than the reference."""
        if self.target is None:
            return ""
        if len(self._clocks()) > 1:
            return "; times are not compared because the clocks differ"
        target = self._score(self.target)
        reached = {name: time.mean for name, time in self.times.items() if time}
        if not reached:
            return f"; no method reached {target} in all its runs"
        least = min(reached.values())
        first = [name for name, time in reached.items() if time == least]
        rank = "the first" if len(reached) > 1 else "the only one" if len(self.contenders) > 1 else "sure"
        verb = "is" if len(first) == 1 else "are"
        time = f"after {least:,.4g} {self.seconds}"
        if rank == "sure":
            return f"; it reached {target} {time}"
        sentence = f"; {listed(first)} {verb} {rank} to reach {target}, {time}"
        if self.reference in first:
            return sentence
        if speedup := self.speedups[first[0]]:
            return f"{sentence}, {speedup:.3g} times as fast as {self.reference}"
        return f"{sentence}; {self.reference} did not reach it in all its runs"

    @property
    def seconds(self) -> str:
        """What to call the seconds of the runs' clocks."""
        if len(self._clocks()) > 1:
            return "seconds (simulated or real)"
        return "simulated seconds" if True in self._clocks() else "seconds"

    def __str__(self) -> str:
        return self.table().text()

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return self.table().html()

    def _score_note(self, number: int) -> str:
        way = "" if self.score in ("accuracy", "loss") else f" ({'higher' if self.higher else 'lower'} is better)"
        score = f"test {self.score}{way} after the last round"
        interval = f"mean ± {100 * self.confidence:g}% confidence interval (Student's t)"
        return f"{score}, {_seeds(number)}: {'no interval, no test' if number == 1 else interval}"

    def _columns(self) -> list[tuple[str, list[str]]]:
        """The headings and the cells of the columns of a table."""
        methods, unit = self.contenders, " (%)" if self.score == "accuracy" else ""
        columns = [("method", [method.name for method in methods])]
        columns.append((f"{self.score}{unit}", [self._score_cell(method) for method in methods]))
        columns += self._difference_columns(self.score_differences, "difference", self._scale)
        if self.target is not None:
            columns.append(("time to target (s)", [self._time_cell(method) for method in methods]))
            columns += self._difference_columns(self.time_differences, "difference (s)")
        if any(method.workable is not None for method in methods):
            shares = ["–" if method.workable is None else f"{method.workable:.0%}" for method in methods]
            columns.append(("workable", shares))
        return columns

    def _difference_columns(
        self, found: Mapping[str, Paired], heading: str, scale: float = 1.0
    ) -> list[tuple[str, list[str]]]:
        if not self._several():
            return []
        pairs = [found.get(method.name) for method in self.contenders]
        cells = ["–" if pair is None else _plus_minus(pair.difference, scale, sign=True) for pair in pairs]
        tested = max(len(method.runs) for method in self.contenders) > 1
        return [(heading, cells), *[("p", ["–" if pair is None else _p(pair) for pair in pairs])] * tested]

    def _several(self) -> bool:
        return len(self.contenders) > 1

    def caveats(self) -> list[str]:
        """What makes the comparison less than it seems."""
        found = []
        if self.scores.get(self.reference) is None and len(self.contenders) > 1:
            found.append(f"no differences: not every run of {self.reference} has a score")
        if self.target is not None and any(0 < _reached(method) < len(method.runs) for method in self.contenders):
            found.append("no mean time and no test where some runs did not reach the target")
        if len(self._clocks()) > 1:
            found.append("some clocks are simulated and some are real, so times are not compared")
        elif self._clocks() == {False}:
            found.append("on a real clock the same seed does not give the same arrivals")
        facts = [run.facts for method in self.contenders for run in method.runs]
        if any(each.get("random_fleet") is False for each in facts):
            found.append("the fleet has no random times: seeds change only the training and the sampling of clients")
        if keys := self._other_settings():
            found.append(f"the runs of a seed differ in {listed(keys)} too")
        if not self._same_seeds():
            found.append("no differences where methods have other seeds than the reference")
        for method in self.contenders:
            if worse := sum(map(self._ends_worse, method.runs)):
                start = "x_0" if method.runs[0].curve[:1] and method.runs[0].curve[0][0] == 0.0 else "they began with"
                runs = f"{worse} of {len(method.runs)} runs of {method.name} end with a worse {self.score} than {start}"
                found.append(f"{runs}, so its mean says little: see the curves" if len(method.runs) > 1 else runs)
        return [*found, *self._warnings]

    def _ends_worse(self, run: SeedResult) -> bool:
        """Whether a run's last score is worse than its first, which is that of x_0 if it is known."""
        if run.score is None or not run.curve:
            return False
        return run.score < run.curve[0][1] if self.higher else run.score > run.curve[0][1]

    def _clocks(self) -> set[bool]:
        """Whether the clocks are simulated, as far as it is known."""
        facts = [run.facts for method in self.contenders for run in method.runs]
        return {bool(each["simulated"]) for each in facts if "simulated" in each} or {True}

    def _other_settings(self) -> list[str]:
        """The keys of task and fleet, and the score of x_0, in which runs with the same seed differ."""
        by_seed: dict[int, list[dict[str, Any]]] = {}
        for run in (run for method in self.contenders for run in method.runs):
            if settings := run.facts.get("settings"):
                own = {key: value for key, value in settings.items() if key.startswith(("task.", "fleet.", "the "))}
                by_seed.setdefault(run.seed, []).append(own)
        keys = dict.fromkeys(key for settings in by_seed.values() for each in settings for key in each)
        return [key for key in keys if any(len({e.get(key) for e in each}) > 1 for each in by_seed.values())]

    def _same_seeds(self) -> bool:
        return len({tuple(run.seed for run in method.runs) for method in self.contenders}) == 1

    def _ratio(self, time: Estimate | None, base: Estimate | None) -> float | None:
        """How many times as fast as the reference, if both have a time and their clocks are of one kind."""
        return base.mean / time.mean if base and time and time.mean and len(self._clocks()) == 1 else None

    def _estimate(self, numbers: list[float | None]) -> Estimate | None:
        """The mean and its interval; None if a number is missing, because the others are the lucky ones."""
        known = [number for number in numbers if number is not None]
        return confidence_interval(known, self.confidence) if known and len(known) == len(numbers) else None

    def _paired(self, field: str) -> dict[str, Paired]:
        """The differences from the reference of every other method that has a number for the same seeds."""
        values = {method.name: {run.seed: getattr(run, field) for run in method.runs} for method in self.contenders}
        theirs = values.pop(self.reference, {})
        complete = {
            name: ours
            for name, ours in values.items()
            if ours.keys() == theirs.keys() and None not in (*ours.values(), *theirs.values())
        }
        pairs = {
            name: paired_difference([*ours.values()], [theirs[seed] for seed in ours], self.confidence)
            for name, ours in complete.items()
        }
        adjusted = holm([p for _, p in pairs.values()])
        return {name: Paired(*pair, p) for (name, pair), p in zip(pairs.items(), adjusted, strict=True)}

    def _best(self) -> set[tuple[int, int]]:
        """The cells with the best mean score."""
        known = {i: found.mean for i, method in enumerate(self.contenders) if (found := self.scores[method.name])}
        best = (max if self.higher else min)(known.values(), default=None)
        return {(i, 1) for i, mean in known.items() if mean == best}

    @property
    def _scale(self) -> float:
        return 100.0 if self.score == "accuracy" else 1.0

    def _score(self, value: float) -> str:
        return f"{value:.4g}" if self.score != "accuracy" else f"{value:.1%}"

    def _score_cell(self, method: Contender) -> str:
        if found := self.scores[method.name]:
            return _plus_minus(found, self._scale)
        words = [
            run.status if run.status != "finished" else "not finite" if run.curve else "without a test score"
            for run in method.runs
            if run.score is None
        ]
        return f"{len(words)} of {len(method.runs)} {max(words, key=words.count)}"

    def _time_cell(self, method: Contender) -> str:
        if found := self.times[method.name]:
            return _plus_minus(found)
        return f"{_reached(method)} of {len(method.runs)} reached"


def reachable_target(contenders: Sequence[Contender], reference: str, *, higher: bool) -> float | None:
    """A score to time runs by: 90% of the way from the reference's first score to the best that a method can hold.

    That is the score which every run of the method reached: the best of all runs may be one lucky seed's.
    """
    best, worst = (max, min) if higher else (min, max)
    curves = {method.name: [[score for _, score in run.curve] for run in method.runs] for method in contenders}
    starts = [scores[0] for scores in curves[reference] if scores]
    if not starts:
        return None
    held = [worst(best(scores) for scores in runs) for runs in curves.values() if all(runs)]
    return mean(starts) + 0.9 * (best(held, default=starts[0]) - mean(starts))


def first_time(curve: Iterable[tuple[float, float]], target: float | None, *, higher: bool) -> float | None:
    """When a curve first reaches a target; None: never, or there is no target."""
    if target is None:
        return None
    return next((time for time, score in curve if (score >= target if higher else score <= target)), None)


def listed(names: Sequence[str]) -> str:
    """Names in a sentence, the first few of many.

    >>> listed(["a", "b", "c"]), listed(["a", "b", "c", "d", "e", "f"])
    ('a, b and c', 'a, b, c and 3 others')
    """
    shown = list(names) if len(names) <= LISTED else [*names[: LISTED - 1], f"{len(names) - LISTED + 1} others"]
    return " and ".join(filter(None, (", ".join(shown[:-1]), shown[-1])))


def _cell(found: Estimate | None) -> str:
    return "–" if found is None else _plus_minus(found)


def _p(pair: Paired) -> str:
    p = pair.adjusted_p
    return "–" if p is None else "<0.001" if p < 0.001 else f"{p:.3f}"


def _times(ratio: float | None) -> str:
    return "–" if ratio is None else f"{ratio:.3g}×"


def _seeds(number: int) -> str:
    return "with one seed" if number == 1 else f"over {number} seeds"


def _reached(method: Contender) -> int:
    return sum(run.to_target is not None for run in method.runs)


def _columns(name: str, found: Estimate | None, pair: Paired | None) -> dict[str, float | None]:
    """The columns of a data frame for one kind of number."""
    return {
        name: found.mean if found else None,
        f"{name}_half_width": found.half_width if found else None,
        f"{name}_difference": pair.difference.mean if pair else None,
        f"{name}_difference_half_width": pair.difference.half_width if pair else None,
        f"{name}_p": pair.p if pair else None,
        f"{name}_adjusted_p": pair.adjusted_p if pair else None,
    }


def _plus_minus(found: Estimate, scale: float = 1.0, *, sign: bool = False) -> str:
    """A mean with the half-width to two significant digits, and as many decimals for the mean.

    >>> _plus_minus(Estimate(0.93456, 0.00732, 5), 100.0)
    '93.46 ± 0.73'
    >>> _plus_minus(Estimate(-0.001, 0.2, 5), sign=True), _plus_minus(Estimate(6.0, None, 5))
    ('+0.00 ± 0.20', '6 (all equal)')
    """
    mean, plus = scale * found.mean, "+" if sign else ""
    if found.half_width is None:
        text = f"{mean:{plus}.4g}{ALL_EQUAL if found.number > 1 else ''}"
    elif 1e-5 <= (half_width := scale * found.half_width) < 1e6:
        decimals = max(1 - math.floor(math.log10(half_width)), 0)
        text = f"{round(mean, decimals) + 0.0:{plus}.{decimals}f} ± {half_width:.{decimals}f}"  # 0 rather than -0
    else:
        text = f"{mean:{plus}.3g} ± {half_width:.2g}"
    return text.replace("-", "−")
