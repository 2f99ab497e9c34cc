"""The paper's accuracy tables at a small scale, tuned as in the paper: 24 cells of each of several experiments.

The paper sweeps synchronous Clip² fully (rates and thresholds); all other methods take its thresholds and sweep the
rates. So do we, on smaller grids that are the same for every method.
"""

from __future__ import annotations

import re
import sys
import tomllib
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple, cast

import tardygrad as tg
from experiments import lib
from experiments.lib import FLEETS, KINDS, LABELS, Mode, PaperLine, Stragglers
from experiments.tasks import runnable
from tardygrad import PlannedRun, StoredResult
from tardygrad.results import theme

MODES: dict[Mode, tuple[str, ...]] = {"sync": ("sgdclip", "clip2"), "server": tuple(LABELS), "client": tuple(LABELS)}
HEADINGS = ("stragglers", "mode", "method", "ours", "paper", "ours (s)", "paper (s)", "η", "η_ℓ", "clipped: Δ, g")


class TableCell(NamedTuple):
    """A cell of the paper's tables."""

    stragglers: Stragglers
    mode: Mode
    method: str


CELLS = tuple(TableCell(stragglers, mode, method) for stragglers in FLEETS for mode in MODES for method in MODES[mode])


class TableRun(NamedTuple):
    """One run: a cell, its rates and thresholds, a seed."""

    cell: TableCell
    lr: float  # η
    local_lr: float  # η_ℓ
    local_clip: float  # u
    clip: float | None  # ũ; SGDClip has none
    seed: int = 0


@dataclass(frozen=True)
class Experiment:
    """A task on the paper's fleet."""

    title: str
    published: str  # which of the paper's results to compare with
    task: str  # its kind
    settings: dict[str, Any]  # of the task
    folders: dict[str, str] = field(default_factory=dict)  # settings of the task that are folders below --data
    optional: bool = False  # the task finds its files without them
    score: str = "accuracy"
    clients: int = 40  # N
    rounds: int = 140  # T
    method_settings: dict[str, int] = field(default_factory=lambda: {"buffer": 4, "local_steps": 5})  # M, K
    lrs: tuple[float, ...] = (0.3, 1.0, 3.0)
    local_lrs: tuple[float, ...] = (0.1, 1.0)
    cells: tuple[TableCell, ...] = CELLS
    clips: tuple[tuple[float, float], ...] = ((0.003, 0.001), (0.01, 0.003), (0.03, 0.01))  # (u, ũ)

    def data_folders(self, data: Path | None) -> dict[str, str]:
        """The folders of the task's files below `data`; `Invalid` names those that are missing."""
        found = {key: data / name for key, name in self.folders.items() if data and (data / name).is_dir()}
        if not self.optional and len(found) < len(self.folders):
            names = " and ".join(f"{name}/" for name in self.folders.values())
            raise tg.Invalid(f"it needs a folder with {names}, got {str(data) if data else 'none'}. Use --data FOLDER.")
        return {key: str(path.resolve()) for key, path in found.items()}

    def run(self, trial: TableRun, folders: dict[str, str]) -> PlannedRun:
        """The run of a trial."""
        cell, lr, local_lr, local_clip, clip, _ = trial
        method = {**KINDS[LABELS[cell.method]], "mode": cell.mode, **self.method_settings}
        method |= {"lr": lr, "local_lr": local_lr, "local_clip": local_clip} | ({} if clip is None else {"clip": clip})
        tables = {
            "task": runnable({"kind": self.task, "clients": self.clients, **self.settings, **folders}),
            "fleet": {"kind": "paper", "stragglers": cell.stragglers},
            "method": method,
            "engine": {"kind": "sim"},
            "run": {"rounds": self.rounds, "evaluate_every": max(self.rounds // 7, 1), "seed": trial.seed},
        }
        return PlannedRun("-".join(cell), tables, self.score)

    @property
    def rates(self) -> list[tuple[float, float]]:
        """Every (η, η_ℓ)."""
        return list(product(self.lrs, self.local_lrs))

    def sweep(self) -> list[TableRun]:
        """Synchronous Clip² with all thresholds and rates; on one fleet, since stragglers change only its clock."""
        return [trial for clips in self.clips for trial in self.grid(TableCell("large", "sync", "clip2"), clips)]

    def grid(self, cell: TableCell, clips: tuple[float, float]) -> list[TableRun]:
        """A cell with every pair of rates and the given thresholds."""
        u, outer = clips
        return [TableRun(cell, *rates, u, outer if cell.method.endswith("clip2") else None) for rates in self.rates]


@cache
def experiments() -> dict[str, Experiment]:
    """Those of tables.toml, by name."""
    tables = tomllib.loads((lib.FOLDER / "tables.toml").read_text(encoding="utf-8"))
    return {name: Experiment(**table) for name, table in tables.items()}


class CellLine(NamedTuple):
    """A cell of a table: the paper's score in per cent and simulated seconds, our best trial, and its results."""

    cell: TableCell
    paper: tuple[float, float]
    best: TableRun
    results: list[StoredResult]

    @property
    def score(self) -> float | None:
        """The score in per cent, mean over seeds; None: diverged."""
        scores = [result.accuracy for result in self.results if result.accuracy is not None]
        return mean(scores) if len(scores) == len(self.results) else None

    def row(self) -> tuple[str, ...]:
        """The row of a table."""
        stragglers, mode, method = self.cell
        outer, local = (mean(getattr(each, name) for each in self.results) for name in ("clipped", "local_clipped"))
        ours, best = _score(self.score), self.best
        if self.score is not None and len(self.results) > 1:
            ours += f" ± {stdev(result.accuracy or 0.0 for result in self.results):.1f}"
        scores, times = (ours, f"{self.paper[0]:.1f}"), (lib.mean_time(self.results), self.paper[1])
        clipped = f"{'–' if best.clip is None else f'{outer:.0%}'}, {local:.0%}"
        rates = f"{best.lr:g}", f"{best.local_lr:g}"
        return (stragglers, mode, LABELS[method], *scores, *(f"{time:.0f}" for time in times), *rates, clipped)


def published(data: str) -> dict[TableCell, tuple[float, float]]:
    """The paper's scores in per cent and runtimes."""
    methods = {label: name for name, label in LABELS.items()}
    return {
        TableCell(cast(Stragglers, line.stragglers), cast(Mode, line.mode), methods[line.method]): line[-2:]
        for line in lib.published_lines()
        if line.data == data
    }


class Table:
    """An experiment and the store of its runs."""

    def __init__(self, name: str, experiment: Experiment, out: Path, seeds: int) -> None:
        self.name, self.experiment, self.seeds = name, experiment, seeds
        self.store = tg.Store(out / name)

    def folders(self, data: Path | None) -> dict[str, str]:
        """The folders of the task's files; raises `Invalid` unless the task can be built."""
        folders = self.experiment.data_folders(data)
        tg.load_spec(self.experiment.run(self.experiment.sweep()[0], folders).spec).build()
        return folders

    def wanted(self, folders: dict[str, str]) -> list[PlannedRun]:
        """The runs known so far; when all of them are done, there may be more."""
        trials = self.experiment.sweep()
        if clips := self.clips():
            grids = [self.experiment.grid(cell, clips) for cell in self.experiment.cells]
            best = [trial for grid in grids if (trial := self._best(grid))]
            trials += [trial for grid in grids for trial in grid]
            trials += [trial._replace(seed=seed) for trial in best for seed in range(1, self.seeds)]
        return [self.experiment.run(trial, folders) for trial in trials]

    def result(self, trial: TableRun) -> StoredResult | None:
        """The result of a trial, if it is done."""
        return self.store.result(self.experiment.run(trial, {}))

    def clips(self) -> tuple[float, float] | None:
        """The thresholds of the best synchronous Clip²; None while the sweep is not done."""
        best = self._best(self.experiment.sweep())
        return (best.local_clip, cast(float, best.clip)) if best else None

    @property
    def is_done(self) -> bool:
        """Whether all its runs are done."""
        return not self.store.missing(self.wanted({}))

    def lines(self) -> list[CellLine]:
        """Every cell; all runs must be done."""
        paper, clips, lines = published(self.experiment.published), self.clips(), list[CellLine]()
        if clips is None:
            return lines
        for cell in self.experiment.cells:
            if best := self._best(self.experiment.grid(cell, clips)):
                found = (self.result(best._replace(seed=seed)) for seed in range(self.seeds))
                lines.append(CellLine(cell, paper[cell], best, [result for result in found if result]))
        return lines

    def _best(self, trials: list[TableRun]) -> TableRun | None:
        """The trial with the highest score, then the lowest loss; diverged ones rank last. None: some are not done."""
        runs = [lambda trial: self.experiment.run(trial, {})]
        return lib.halve(trials, runs, self.store.result)[1]


def costs_of_not_waiting(lines: list[CellLine]) -> list[str]:
    """The best asynchronous against the best synchronous cell, in points and in time, ours and the paper's."""
    found = []
    for fleet in FLEETS:
        here = [line for line in lines if line.cell.stragglers == fleet]
        if all(line.score is not None for line in here):
            times = [lib.mean_time(line.results) for line in here]
            ours = zip(here, [line.score or 0.0 for line in here], times, strict=True)
            points, speedup = lib.not_waiting(PaperLine("", *line.cell, score, time) for line, score, time in ours)
            paper_points, paper_speedup = lib.not_waiting(PaperLine("", *line.cell, *line.paper) for line in here)
            found.append(
                f"{fleet}: best asynchronous − best synchronous = {points:+.1f} points (paper {paper_points:+.1f}), "
                f"in {speedup:.0f} times less time (paper {paper_speedup:.0f})"
            )
    return found


def text(tables: list[Table], before: str) -> str:
    """The section of a page; the text of an experiment that is not done here is that of the page before."""
    old = {part.split("`")[1]: part.rstrip() + "\n" for part in re.split(r"(?m)^(?=## `)", before)[1:]}
    return "\n".join(_section(each, old.get(each.name)) for each in tables)


def draw(tables: list[Table], folder: Path) -> None:
    """Draw the experiments that are done."""
    for each in tables:
        if each.is_done:
            theme.write(_curves(each), folder / _picture(each))


def _section(runs: Table, old: str | None) -> str:
    experiment, clips = runs.experiment, runs.clips()
    if not runs.is_done or clips is None:
        return old or f"## `{runs.name}`\n\n{experiment.title}.\n\nNot run.\n"
    lines = runs.lines()
    seeds = f", mean ± standard deviation of {runs.seeds} seeds" if runs.seeds > 1 else ""
    pairs = ", ".join(f"({u:g}, {outer:g})" for u, outer in experiment.clips)
    settings = ", ".join(f"{key}={value!r}" for key, value in experiment.settings.items())
    steps = ", ".join(f"{key}={value}" for key, value in experiment.method_settings.items())
    text = [
        f"## `{runs.name}`",
        f"{experiment.title}.",
        f"N = {experiment.clients}, T = {experiment.rounds}, {steps}; the task: {settings}. "
        f"Shown: test {experiment.score} in per cent after the last round{seeds}. "
        f"Grid: η in {_set(experiment.lrs)}, η_ℓ in {_set(experiment.local_lrs)}, (u, ũ) in {{{pairs}}}; "
        f"chosen by the best synchronous Clip²: u = {clips[0]:g} and ũ = {clips[1]:g}.",
        lib.table(HEADINGS, (line.row() for line in lines)),
        "\n".join(f"- {cost}" for cost in costs_of_not_waiting(lines)),
        f"![Test {experiment.score} against simulated time]({_picture(runs)})",
        "The picture shows the first seed of the synchronous and the client-centric cells, with their best settings.",
        f"Every trial with large stragglers, by (η, η_ℓ), first seed:\n\n{_trials(runs, clips)}",
    ]
    return "\n\n".join(part for part in text if part) + "\n"


def _trials(runs: Table, clips: tuple[float, float]) -> str:
    """The scores with every pair of rates, which show how wide the range is in which a method works."""
    rows = []
    for cell in runs.experiment.cells:
        if cell.stragglers == "large":
            results = [runs.result(trial) for trial in runs.experiment.grid(cell, clips)]
            scores = (_score(result.accuracy) for result in results if result)
            rows.append((cell.mode, LABELS[cell.method], *scores))
    return lib.table(("mode", "method", *(f"{lr:g}, {local_lr:g}" for lr, local_lr in runs.experiment.rates)), rows)


def _score(score: float | None) -> str:
    return "diverged" if score is None else f"{score:.1f}"


def _picture(runs: Table) -> str:
    return f"images/tables-{runs.name}.svg"


def _set(values: tuple[float, ...]) -> str:
    return "{" + ", ".join(f"{value:g}" for value in values) + "}"


def _curves(runs: Table) -> Any:
    """The synchronous and client-centric cells with their best settings, first seed; the fleets side by side."""
    points = [
        {
            "method": LABELS[line.cell.method],
            "mode": line.cell.mode,
            "fleet": line.cell.stragglers,
            "time": time,
            "score": score,
        }
        for line in runs.lines()
        if line.cell.mode != "server"
        for _, time, _, score in line.results[0].curve
        if score is not None
    ]
    titles: dict[str, str] = {fleet: f"{fleet} stragglers, client-centric (dashed: synchronous)" for fleet in FLEETS}
    return theme.image_style(
        lib.score_panels(points, list(LABELS.values()), f"test {runs.experiment.score} (%)", titles)
    )


def main(argv: list[str] | None = None) -> None:
    """Run the missing experiments and write their tables; those whose data are missing are skipped."""
    seeds = {"type": int, "default": 1, "help": "runs of each cell's best setting; 1"}
    own = {"seeds": seeds, "out": lib.out("runs/tables")}
    given = lib.options(__doc__, argv, "--page", "--data", "--only", "--jobs", "--read", **own)
    lib.check_page(given.page, "tables")
    tables = [Table(name, experiment, given.out, given.seeds) for name, experiment in experiments().items()]
    for table in [] if given.read else tables:
        if given.only and not any(text in table.name for text in given.only):
            continue
        try:
            folders = table.folders(given.data)
        except tg.Invalid as error:
            print(f"{table.name} is skipped: {error}", file=sys.stderr)
            continue
        lib.do_missing(table.store, partial(table.wanted, folders), given)
    before = lib.split_page(given.page, "tables")[1] if given.page else ""
    lib.publish(given.page, {"tables": text(tables, before)}, lambda folder: draw(tables, folder))


if __name__ == "__main__":
    lib.run_script(main)
