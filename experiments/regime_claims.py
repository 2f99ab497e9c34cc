"""The verdicts on the paper's claims in its own regime, by the rules of regime.toml, and what to compare them with.

The paper's numbers are in `paper`. Those of small experiments are read from pages of docs: results.md, made by
`experiments.tables`, and reproduction.md, made by `experiments.claims`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Literal, NamedTuple

import tardygrad as tg
from experiments import lib
from experiments.lib import ASYNCHRONOUS, PaperLine, not_waiting, published_lines
from experiments.regime import Line, Regime, RegimePart, RegimePlan

Verdict = Literal["reproduced", "in part", "not reproduced", "not run"]
Rows = list[dict[str, str]]


class Judgement(NamedTuple):
    """A verdict, and the numbers that decide it."""

    verdict: Verdict
    numbers: str = ""
    details: Sequence[str] = ()  # the numbers of each cell, where there are many


def judge(regime: Regime) -> dict[str, Judgement]:
    """The verdicts on all claims, by letter; `not run` if a rule needs a part that the plan has not."""
    found = {}
    for letter in regime.plan.claims:
        try:
            found[letter] = _RULES[letter](RegimeScores(regime))
        except KeyError:
            found[letter] = Judgement("not run")
    return found


class RegimeScores:
    """The accuracies and times of lines, in per cent and simulated seconds; a run that did not finish has 0 %."""

    def __init__(self, regime: Regime) -> None:
        self.regime = regime

    def part(self, name: str) -> RegimePart:
        """A part of the plan."""
        return self.regime.plan.parts[name]

    def by_seed(self, line: Line) -> dict[int, float]:
        """The accuracy with each seed; raises `KeyError` unless the plan has the line."""
        part = self.part(line.part)
        if line not in part.lines():
            raise KeyError(line)
        results = self.regime.results(line)
        return {seed: results[seed].accuracy or 0.0 for seed in part.seeds}

    def mean(self, line: Line) -> float:
        """The accuracy, mean over seeds."""
        return mean(self.by_seed(line).values())

    def time(self, line: Line) -> float:
        """The simulated length of a run, mean over seeds."""
        return lib.mean_time(list(self.regime.results(line).values()))

    def workloads_and_fleets(self) -> list[tuple[str, str]]:
        """The workloads and fleets of the part `cells`."""
        part = self.part("cells")
        return list(product(part.workloads, part.fleets))

    def best(self, workload: str, fleet: str, modes: Iterable[str]) -> Line:
        """The most accurate line of the part `cells` with one of these modes."""
        lines = [
            line
            for line in self.part("cells").lines()
            if (line.workload, line.stragglers) == (workload, fleet) and line.mode in modes
        ]
        return max(lines, key=self.mean)


def _no_waiting(scores: RegimeScores) -> Judgement:
    gaps, speedups, holds, details = [], [], [], []
    for workload, fleet in scores.workloads_and_fleets():
        sync, fast = (scores.best(workload, fleet, modes) for modes in (["sync"], ASYNCHRONOUS))
        gap, times = scores.mean(fast) - scores.mean(sync), scores.time(sync) / scores.time(fast)
        paper = not_waiting(line for line in published_lines() if line[:2] == (workload, fleet))[1]
        gaps.append(gap)
        speedups.append(times)
        holds.append(gap >= -1.0 and times >= paper / 2)
        details.append(
            f"{workload}, {fleet}: {fast.method} ({fast.mode}-centric) {gap:+.1f} points against {sync.method}, "
            f"{times:.0f} times sooner (paper: {paper:.0f})"
        )
    return Judgement(_by_share(holds, 5 / 6, 1 / 2), cost_of_not_waiting(gaps, speedups), details)


def cost_of_not_waiting(gaps: Sequence[float], speedups: Sequence[float]) -> str:
    """How far the best asynchronous method is from the best synchronous one, over workloads and fleets.

    >>> cost_of_not_waiting([0.5, -1.5], [4.0, 21.0])
    '...: -0.5 points on average, at most a point behind in 1 of 2; 4 to 21 times sooner'
    """
    close = sum(gap >= -1 for gap in gaps)
    return (
        f"best without waiting − best synchronous: {mean(gaps):+.1f} points on average, at most a point behind in "
        f"{close} of {len(gaps)}; {min(speedups):.0f} to {max(speedups):.0f} times sooner"
    )


def _ahead(better: str, worse: str) -> Callable[[RegimeScores], Judgement]:
    """The rule of claims that compare two methods in the asynchronous modes."""

    def rule(scores: RegimeScores) -> Judgement:
        differences, cells, details = list[float](), [], []
        for (workload, fleet), mode in product(scores.workloads_and_fleets(), ASYNCHRONOUS):
            ours, theirs = (scores.by_seed(Line("cells", workload, fleet, mode, method)) for method in (better, worse))
            pairs = [ours[seed] - theirs[seed] for seed in ours]
            differences += pairs
            cells.append(mean(pairs))
            details.append(f"{workload}, {fleet}, {mode}-centric: {round(mean(pairs), 1) + 0.0:+.1f} points")
        found = tg.confidence_interval(differences)
        width = "" if found.half_width is None else f" ± {found.half_width:.2f}"
        numbers = f"{better} − {worse}: {found.mean:+.2f}{width} points, {count_ahead(cells)}"
        if found.half_width is not None and found.mean > found.half_width:
            return Judgement("reproduced", numbers, details)
        ahead = sum(difference > 0 for difference in cells)
        return Judgement("in part" if ahead >= 2 / 3 * len(cells) else "not reproduced", numbers, details)

    return rule


def count_ahead(differences: Sequence[float]) -> str:
    """In how many cells a method is ahead of another.

    >>> count_ahead([0.3, 0.0, -0.1, 0.2])
    'ahead in 2 of 4 cells, equal in 1'
    """
    ahead = sum(difference > 0 for difference in differences)
    return f"ahead in {ahead} of {len(differences)} cells, equal in {sum(each == 0 for each in differences)}"


def _collapse_at_m_1(scores: RegimeScores) -> Judgement:
    drops, rates = {}, {}
    for method in ("SGDClip", "Clip²"):
        line = Line("cells", "sst2", "large", "client", method)
        at_four = scores.by_seed(line)
        rates[method] = scores.regime.runs(line)[0].spec["method"]["lr"]
        at_one = scores.by_seed(Line("buffers", "sst2", "large", "client", method, "M = 1"))
        drops[method] = mean(at_four[seed] - score for seed, score in at_one.items())
    plain, clipped = drops["SGDClip"], drops["Clip²"]
    changes = (f"{method} (lr {rates[method]:g}) {-points:+.1f} points" for method, points in drops.items())
    numbers = f"from M = 4 to M = 1, with the settings chosen at M = 4: {', '.join(changes)}"
    if plain >= 15 and clipped <= 5:
        return Judgement("reproduced", numbers)
    return Judgement("in part" if plain > 0 and clipped <= plain / 2 else "not reproduced", numbers)


def _relatives(scores: RegimeScores) -> Judgement:
    cells, relatives = (Line(part, "sst2", "large", "client", "") for part in ("cells", "relatives"))
    ours = {name: scores.mean(cells._replace(method=name)) for name in ("Clip²", "SD-Clip²", "DC-Clip²")}
    theirs = {name: scores.mean(relatives._replace(method=name)) for name in ("FADAS", "DN+DyLU")}
    clipped = {f"{name}, clipped": scores.mean(relatives._replace(method=f"{name}, clipped")) for name in theirs}
    numbers = ", ".join(f"{name} {score:.1f}" for name, score in (ours | theirs).items())
    more = "; ".join(f"{name} {score:.1f}" for name, score in clipped.items())
    best = max(theirs.values())
    verdict: Verdict = (
        "reproduced" if min(ours.values()) > best else "in part" if max(ours.values()) > best else "not reproduced"
    )
    return Judgement(verdict, f"{numbers} (with a local clip: {more})")


def _rates(scores: RegimeScores) -> Judgement:
    part = scores.part("rates")
    found = {
        method: [scores.mean(Line("rates", "sst2", "large", "client", method, change)) for change in part.changes]
        for method in part.methods
    }
    top = max(score for each in found.values() for score in each)
    works = {method: sum(score >= top - 5 for score in each) for method, each in found.items()}
    counts = ", ".join(f"{method} {count}" for method, count in works.items())
    numbers = f"local rates that work, of {len(part.changes)}: {counts}"
    if works["Clip²"] > works["SGDClip"]:
        return Judgement("reproduced", numbers)
    equal = works["Clip²"] == works["SGDClip"] and mean(found["Clip²"]) > mean(found["SGDClip"])
    return Judgement("in part" if equal else "not reproduced", numbers)


def _by_share(holds: list[bool], whole: float, part: float) -> Verdict:
    share = sum(holds) / len(holds)
    return "reproduced" if share >= whole else "in part" if share >= part else "not reproduced"


_RULES: dict[str, Callable[[RegimeScores], Judgement]] = {
    "A": _no_waiting,
    "B": _ahead("Clip²", "SGDClip"),
    "C": _ahead("SD-SGDClip", "SGDClip"),
    "D": _ahead("DC-Clip²", "Clip²"),
    "E": _collapse_at_m_1,
    "F": _relatives,
    "G": _rates,
}


def paper_numbers(plan: RegimePlan) -> dict[str, str]:
    """What the paper's tables show, by letter of the claim; A to D on the plan's tasks and on all of GLUE."""
    workloads, lines = plan.parts["cells"].workloads, published_lines()
    same = _on_cells([line for line in lines if line.data in workloads])
    whole = _on_cells([line for line in lines if line.data != "cifar10"])
    found = {letter: f"{text}<br>all of GLUE: {whole[letter]}" for letter, text in same.items()}
    return found | {letter: claim["paper"] for letter, claim in plan.claims.items() if "paper" in claim}


def small_experiment_numbers(folder: Path = lib.DOCS) -> dict[str, str]:
    """What small experiments show, by letter of the claim, on the pages of a folder."""
    ours, claims = (_tables(folder / name) for name in ("results.md", "reproduction.md"))
    found = _on_cells([cell for name, rows in ours.items() for cell in _own_cells(name, rows)])
    at_m_1 = [row for row in claims["Claim 4"] if row["M"] == "1" and row["method"] in ("SGDClip", "Clip²")]
    unclipped = [row for row in claims["Claim 7"] if "clipped" not in row["method"]]
    for letter, number, rows in (("E", 4, at_m_1), ("F", 7, unclipped)):
        found[letter] = f"{_methods(rows)} ([claim {number}](reproduction.md#claim-{number}) of digits)"
    return found


def _on_cells(cells: list[PaperLine]) -> dict[str, str]:
    """The numbers of claims A to D."""
    pairs = {"B": ("Clip²", "SGDClip"), "C": ("SD-SGDClip", "SGDClip"), "D": ("DC-Clip²", "Clip²")}
    places = dict.fromkeys(cell[:2] for cell in cells)  # data and fleet
    costs = [not_waiting(cell for cell in cells if cell[:2] == place) for place in places]
    found = {"A": cost_of_not_waiting(*zip(*costs, strict=True))}
    scores: dict[tuple[str, ...], float] = {cell[:4]: cell.score for cell in cells if cell.mode in ASYNCHRONOUS}
    for letter, (better, worse) in pairs.items():
        both = [(score, scores.get((*place, worse))) for (*place, method), score in scores.items() if method == better]
        gains = [ours - theirs for ours, theirs in both if theirs is not None]
        found[letter] = f"{better} − {worse}: {mean(gains):+.2f} points, {count_ahead(gains)}"
    return found


def _tables(page: Path) -> dict[str, Rows]:
    """The rows of the tables below each heading of a page, by column."""
    found: dict[str, Rows] = {}
    heading, columns = "", list[str]()
    for line in page.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if line.startswith("#"):
            heading = line.strip("#` ")
        elif not cells:
            columns = []
        elif not columns:
            columns = cells
        elif set(line) - set("|- "):
            found.setdefault(heading, []).append(dict(zip(columns, cells, strict=False)))
    return found


def _own_cells(name: str, rows: Rows) -> Iterator[PaperLine]:
    """The cells of a table that have a score; those that are not run or diverged have none."""
    for row in rows:
        score, time = _number(row.get("ours", "")), _number(row.get("ours (s)", ""))
        if score is not None and time is not None:
            yield PaperLine(name, row["stragglers"], row["mode"], row["method"], score, time)


def _methods(rows: Rows) -> str:
    """The accuracies of lines with large stragglers, with their settings if a method has several lines."""
    shown = [row for row in rows if row["stragglers"] == "large"]
    lines = Counter(row["method"] for row in shown)
    names = [f"{row['method']} ({row['settings']})" if lines[row["method"]] > 1 else row["method"] for row in shown]
    return ", ".join(f"{name} {_number(row['accuracy (%)']):.1f}" for name, row in zip(names, shown, strict=True))


def _number(cell: str) -> float | None:
    """The number of a cell, without its spread; None if there is none."""
    try:
        return float(cell.partition(" ±")[0].replace(",", ""))
    except ValueError:
        return None
