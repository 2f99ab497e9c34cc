"""The table of a comparison, as text, HTML, LaTeX, a data frame and a figure."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

from tardygrad.report.latex import latex_table
from tardygrad.runs.summary import lower_is_better
from tardygrad.sweeps.statistics import Estimate, estimate, holm, paired_p
from tardygrad.sweeps.tables import data_frame, html_table, text_table


class SeedResult(NamedTuple):
    """One run of a comparison."""

    seed: int
    status: str  # finished, diverged or starved
    score: float | None  # of the last model; None: the run did not finish
    to_target: float | None  # seconds to the target; None: not reached, or there is no target
    time: float  # seconds of the engine's clock
    curve: list[tuple[float, float]]  # (time, score) of every evaluation


class Contender(NamedTuple):
    """A method of a comparison and its runs, one for each seed."""

    name: str
    runs: list[SeedResult]
    workable: float | None  # share of workable settings in its sweep; None: it was not tuned
    settings: dict[str, Any]  # the best of its sweep


class Paired(NamedTuple):
    """The difference of a method from the reference, over the same seeds."""

    difference: Estimate
    p: float | None  # of a paired t-test
    adjusted_p: float | None  # by Holm's method


class Comparison:
    """The results of `tg.compare`. Printed, it is a table with a row for each method.

    Attributes:
        contenders: the methods and their runs.
        score: the test score that is compared.
        reference: the name of the method that the others are compared with.
    """

    def __init__(
        self,
        contenders: list[Contender],
        *,
        score: str,
        reference: str,
        target: float | None,
        confidence: float,
        notes: list[str],
    ) -> None:
        self.contenders, self.score, self.reference = contenders, score, reference
        self.target, self.confidence, self._warnings = target, confidence, notes
        self.scores = {one.name: self._estimate([run.score for run in one.runs]) for one in contenders}
        self.times = {one.name: self._estimate([run.to_target for run in one.runs]) for one in contenders}
        self.score_differences = self._paired("score")
        self.time_differences = self._paired("to_target")

    def to_latex(self, *, caption: str | None = None, label: str = "tab:comparison") -> str:
        """The table in LaTeX, for the package booktabs; the best mean is in bold.

        Args:
            caption: None explains what the table shows.
        """
        headings, rows = self._cells()
        best = self._best()
        bold = {(i, 1) for i, one in enumerate(self.contenders) if one.name == best}
        text = ". ".join(note[:1].upper() + note[1:] for note in self.notes()) + "."
        return latex_table(headings, rows, caption=text if caption is None else caption, label=label, bold=bold)

    def to_pandas(self) -> Any:
        """A data frame with a row for each method. Needs pandas."""
        rows = []
        for one in self.contenders:
            score, time = self.scores[one.name], self.times[one.name]
            row = {"method": one.name, "seeds": len(one.runs), "finished": _finished(one)}
            row |= _columns(self.score, score, self.score_differences.get(one.name))
            if self.target is not None:
                row |= {"reached": _reached(one)}
                row |= _columns("time_to_target", time, self.time_differences.get(one.name))
            rows.append(row | {"workable": one.workable})
        return data_frame(rows)

    def figure(self, path: str | Path, *, columns: int = 1) -> Path:
        """Draw the mean score against time, with confidence bands, as a PDF, SVG or PNG file.

        Args:
            columns: 1 or 2 columns of a paper, which sets the width.
        """
        from tardygrad.sweeps.comparison_figure import write_figure

        return write_figure(self, Path(path), columns)

    def notes(self) -> list[str]:
        """What the numbers of the table are, and warnings."""
        count = len(self.contenders[0].runs)
        many = count > 1
        seeds = f"over {count} seeds" if many else "of one seed"
        interval = f", mean ± {100 * self.confidence:g}% confidence interval (Student's t)" if many else ""
        found = [f"test {self.score.replace('_', ' ')} after the last round, {seeds}{interval}"]
        if len(self.contenders) > 1:
            test = "; p: paired t-test, adjusted by Holm's method" if many else ""
            found.append(f"differences from {self.reference}, paired by seed{test}")
        if self.target is not None:
            score = f"a test {self.score.replace('_', ' ')} of {self._score(self.target)}"
            found.append(f"time to target: simulated seconds to the first evaluation that reaches {score}")
        return found + self._warnings

    def __str__(self) -> str:
        return "\n".join([text_table(*self._cells()), *self.notes()])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html_table(*self._cells(), notes=self.notes())

    def _estimate(self, numbers: list[float | None]) -> Estimate | None:
        """The mean and its interval; None if a number is missing, because the others are the lucky ones."""
        known = [number for number in numbers if number is not None]
        return estimate(known, self.confidence) if known and len(known) == len(numbers) else None

    def _paired(self, field: str) -> dict[str, Paired]:
        """The differences from the reference of every other method for which both are complete."""
        values = {one.name: [getattr(run, field) for run in one.runs] for one in self.contenders}
        theirs = values.pop(self.reference)
        complete = {name: ours for name, ours in values.items() if None not in (*ours, *theirs)}
        tests = [paired_p(ours, theirs) for ours in complete.values()]
        found = {}
        for (name, ours), p, adjusted in zip(complete.items(), tests, holm(tests), strict=True):
            differences = [a - b for a, b in zip(ours, theirs, strict=True)]
            found[name] = Paired(estimate(differences, self.confidence), p, adjusted)
        return found

    def _best(self) -> str | None:
        known = {name: found.mean for name, found in self.scores.items() if found}
        pick = min if lower_is_better(self.score) else max
        return pick(known, key=lambda name: known[name]) if known else None

    def _cells(self) -> tuple[list[str], list[list[str]]]:
        """The headings and the rows of the table; columns that would say nothing are left out."""
        others = len(self.contenders) > 1
        tested = others and len(self.contenders[0].runs) > 1
        timed = self.target is not None
        tuned = any(one.workable is not None for one in self.contenders)
        unit = " (%)" if self.score == "accuracy" else ""
        headings = ["method", f"{self.score.replace('_', ' ')}{unit}", *["difference"] * others, *["p"] * tested]
        headings += ["time to target (s)", *["difference (s)"] * others, *["p"] * tested] if timed else []
        headings += ["workable"] if tuned else []
        rows = []
        for one in self.contenders:
            row = [one.name, self._score_cell(one)]
            row += self._difference_cells(one, self.score_differences, self._scale, others, tested)
            if timed:
                row.append(self._time_cell(one))
                row += self._difference_cells(one, self.time_differences, 1.0, others, tested)
            row += ["–" if one.workable is None else f"{one.workable:.0%}"] if tuned else []
            rows.append(row)
        return headings, rows

    @property
    def _scale(self) -> float:
        return 100.0 if self.score == "accuracy" else 1.0

    def _score(self, value: float) -> str:
        return f"{value:.4g}" if self.score != "accuracy" else f"{value:.1%}"

    def _score_cell(self, one: Contender) -> str:
        if found := self.scores[one.name]:
            return _plus_minus(found, self._scale)
        failed = [run.status for run in one.runs if run.status != "finished"]
        if not failed:
            return "not finite"
        return f"{max(failed, key=failed.count)} in {len(failed)} of {len(one.runs)}"

    def _time_cell(self, one: Contender) -> str:
        if found := self.times[one.name]:
            return _plus_minus(found)
        reached = _reached(one)
        return f"reached in {reached} of {len(one.runs)}" if reached else "not reached"

    def _difference_cells(
        self, one: Contender, found: dict[str, Paired], scale: float, others: bool, tested: bool
    ) -> list[str]:
        paired = found.get(one.name)
        if paired is None:
            return ["–"] * (others + tested)
        p = paired.adjusted_p
        cells = [_plus_minus(paired.difference, scale, sign=True)] * others
        return cells + (["–" if p is None else "<0.001" if p < 0.001 else f"{p:.3f}"] if tested else [])


def _finished(one: Contender) -> int:
    return sum(run.status == "finished" for run in one.runs)


def _reached(one: Contender) -> int:
    return sum(run.to_target is not None for run in one.runs)


def _columns(name: str, found: Estimate | None, paired: Paired | None) -> dict[str, float | None]:
    """The columns of a data frame for one kind of number."""
    return {
        name: found.mean if found else None,
        f"{name}_half_width": found.half_width if found else None,
        f"{name}_difference": paired.difference.mean if paired else None,
        f"{name}_difference_half_width": paired.difference.half_width if paired else None,
        f"{name}_p": paired.p if paired else None,
        f"{name}_adjusted_p": paired.adjusted_p if paired else None,
    }


def _plus_minus(found: Estimate, scale: float = 1.0, *, sign: bool = False) -> str:
    """A mean with the half-width to two significant digits, and as many decimals for the mean.

    >>> _plus_minus(Estimate(0.93456, 0.00732), 100.0)
    '93.46 ± 0.73'
    >>> _plus_minus(Estimate(-0.001, 0.2), sign=True)
    '+0.00 ± 0.20'
    """
    mean, half_width = scale * found.mean, scale * (found.half_width or 0.0)
    plus = "+" if sign else ""
    if not half_width or not math.isfinite(half_width):
        text = f"{mean:{plus}.4g}{'' if found.half_width is None else f' ± {half_width:g}'}"
    elif 0 <= (decimals := 1 - math.floor(math.log10(half_width))) <= 6:
        text = f"{round(mean, decimals) + 0.0:{plus}.{decimals}f} ± {half_width:.{decimals}f}"  # 0 rather than -0
    else:
        text = f"{mean:{plus}.3g} ± {half_width:.2g}"
    return text.replace("-", "−")
