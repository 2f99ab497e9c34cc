"""What the experiments share: scripts, pages, stored runs, how much of a plan is done, the paper's numbers, charts."""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from math import inf
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Literal, NamedTuple, NoReturn, TypeVar

import altair as alt

import tardygrad as tg
from experiments.tasks import runnable
from tardygrad import PlannedRun, Store, StoredResult
from tardygrad.results import theme

Mode = Literal["sync", "server", "client"]
Stragglers = Literal["mild", "large"]
Values = dict[str, Any]
"""Settings by name, or a row of a table."""

FOLDER = Path(__file__).parent
DOCS = FOLDER.parent / "docs"
FLEETS: tuple[Stragglers, ...] = ("mild", "large")
MODE_TEXTS: dict[Mode, str] = {"sync": "synchronous", "server": "server-centric", "client": "client-centric"}
ASYNCHRONOUS: tuple[Mode, ...] = ("server", "client")


# Scripts ------------------------------------------------------------------------------------------------------------

OPTIONS: dict[str, Values] = {
    "--page": {"metavar": "FILE", "help": "write the result into this Markdown page, and pictures beside it"},
    "--data": {"metavar": "DIR", "type": Path, "help": "folder with cifar10/, fashion/, glue/, tinyvit5m_mobilesam/"},
    "--only": {"metavar": "TEXT", "action": "append", "help": "do only the runs whose paths contain this; repeatable"},
    "--jobs": {"metavar": "N", "type": int, "default": 0, "help": "runs at once; 0 is one per core"},
    "--read": {"action": "store_true", "help": "run nothing; make the tables from stored runs"},
    "--save": {
        "metavar": "FILE",
        "type": Path,
        "help": "write a summary of every finished run to this file, one a line",
    },
}


def options(doc: str | None, argv: list[str] | None, *names: str, **own: Values) -> argparse.Namespace:
    """Parse a script's options: those of `OPTIONS` that it names, and its own."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in names:
        parser.add_argument(name, **OPTIONS[name])
    for name, rules in own.items():
        parser.add_argument(f"--{name}", **rules)
    given = parser.parse_args(argv)
    if getattr(given, "data", None) and not given.data.is_dir():
        raise tg.Invalid(f"--data must be a folder, got {str(given.data)!r}.")
    return given


def out(folder: str) -> Values:
    """The option --out."""
    return {"metavar": "DIR", "type": Path, "default": Path(folder), "help": f"where finished runs are; {folder}"}


def run_script(main: Callable[[list[str] | None], None], argv: list[str] | None = None) -> NoReturn:
    """Call the main function of a script; bad input is one line on stderr and exit code 2."""
    try:
        main(argv)
    except tg.TardygradError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2 if isinstance(error, tg.Invalid) else 1)
    except KeyboardInterrupt:
        print("stopped; finished runs are stored: continue with the same command", file=sys.stderr)
        sys.exit(130)
    sys.exit(0)


def do_missing(store: Store, wanted: Callable[[], list[PlannedRun]], given: argparse.Namespace) -> None:
    """Do the missing runs, unless the option --read is given."""

    def chosen() -> list[PlannedRun]:
        names = given.only or [""]
        return [run for run in wanted() if any(name in str(store.path(run)) for name in names)]

    for path in () if given.read else store.run(chosen, given.jobs):
        print(f"{path.stem} is done, {len(store.missing(wanted()))} known runs are left", file=sys.stderr)


def require_all(store: Store, wanted: Callable[[], list[PlannedRun]]) -> None:
    """Raise `Invalid` if a run is missing."""
    if missing := store.missing(wanted()):
        rule = f"tables need all runs, and {len(missing)} known ones are missing in {str(store.folder)!r}"
        raise tg.Invalid(f"{rule}. Leave out --read and --only to do them.")


# Pages --------------------------------------------------------------------------------------------------------------


def table(headings: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table.

    >>> print(table(("M", "time"), [("4", "39")]))
    | M | time |
    | --- | --- |
    | 4 | 39 |
    """
    head = list(headings)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))


def marks(section: str) -> tuple[str, str]:
    """The marks before and after a section of a page; its first word is the name of a script."""
    return f"<!-- {section}: made by `python -m experiments.{section.split()[0]}` -->", f"<!-- end of {section} -->"


def split_page(page: str, section: str) -> tuple[str, str, str]:
    """The text of a page before, between and after the marks of a section; `Invalid` if it has none."""
    begin, end = marks(section)
    try:
        text = Path(page).read_text(encoding="utf-8") if Path(page).exists() else begin + end
    except (OSError, UnicodeDecodeError) as error:
        raise tg.Invalid(f"--page must be a text file, got {page!r}: {error}.") from error
    before, begun, rest = text.partition(begin)
    between, ended, after = rest.partition(end)
    if not (begun and ended):
        rule = f"--page must be a new file or one with a place for the {section}"
        raise tg.Invalid(f"{rule}, got {page!r}. Put {begin} and {end} into it, each on a line of its own.")
    return before, between, after


def check_page(page: str | None, *sections: str) -> None:
    """Raise `Invalid`, before hours of work, if a page has no place for sections."""
    for section in sections if page else ():
        split_page(page or "", section)


def publish(
    page: str | None, sections: Mapping[str, str], draw: Callable[[Path], object] = lambda folder: None
) -> None:
    """Replace sections of a page, whose rest is left alone, and draw its pictures; without a page, print them."""
    if page is None:
        print("\n\n".join(sections.values()))
        return
    draw(Path(page).parent)
    text = None if Path(page).exists() else "\n\n".join("\n".join(marks(section)) for section in sections)
    Path(page).parent.mkdir(parents=True, exist_ok=True)
    if text is not None:
        Path(page).write_text(text + "\n", encoding="utf-8")
    for section, content in sections.items():
        before, _, after = split_page(page, section)
        begin, end = marks(section)
        Path(page).write_text(f"{before}{begin}\n\n{content.strip()}\n\n{end}{after}", encoding="utf-8")


# Stored runs --------------------------------------------------------------------------------------------------------


def stored_runs(name: str) -> list[Values]:
    """The finished runs in a file of `results`, as `Store.row` has them."""
    text = (FOLDER / f"results/{name}.jsonl").read_text(encoding="utf-8")
    rows: list[Values] = [json.loads(line) for line in text.splitlines()]
    return [{**row, "spec": {**row["spec"], "task": runnable(row["spec"]["task"])}} for row in rows]


def save_runs(path: Path, store: Store, runs: Iterable[PlannedRun]) -> None:
    """Write the finished ones of some runs to a file, one strict JSON object per line."""
    rows = [store.row(run) for run in runs if store.result(run)]
    lines = (json.dumps(row, ensure_ascii=False, allow_nan=False) for row in rows)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def mean_spread(scores: Sequence[float]) -> tuple[float, float | None]:
    """The mean over seeds and the standard deviation, None for a single seed."""
    return mean(scores), stdev(scores) if len(scores) > 1 else None


def mean_time(results: Sequence[StoredResult]) -> float:
    """The mean simulated time of the runs that finished; of all runs if none did."""
    finished = [result.time for result in results if result.status == "finished"]
    return mean(finished or [result.time for result in results])


class Cost(NamedTuple):
    """How many runs a group of a plan has, and their CPU seconds, by times that were measured for the plan."""

    workload: str
    group: str
    runs: int
    seconds: float


def cost_table(costs: Sequence[Cost], group: str) -> str:
    """What a plan takes whose runs are all done; `group` says what the groups are."""
    whole = Cost("all", "", sum(cost.runs for cost in costs), sum(cost.seconds for cost in costs))
    rows = [
        (cost.workload, cost.group, str(cost.runs), str(cost.runs), f"{cost.seconds / 3600:.1f}", "0.0")
        for cost in (*costs, whole)
    ]
    return table(("workload", group, "runs", "done", "CPU hours in all", "CPU hours left"), rows)


def all_done(costs: Sequence[Cost]) -> str:
    """The sentence that every run of a plan is done."""
    return f"All {sum(cost.runs for cost in costs)} runs of the plan are done."


# The paper's numbers ------------------------------------------------------------------------------------------------

LABELS = {
    "sgdclip": "SGDClip",
    "clip2": "Clip²",
    "sd-sgdclip": "SD-SGDClip",
    "sd-clip2": "SD-Clip²",
    "dc-clip2": "DC-Clip²",
}
"""The methods of the paper's tables: names in the files, and labels in ours."""

KINDS: dict[str, Values] = {
    "SGDClip": {"kind": "sgdclip"},
    "SD-SGDClip": {"kind": "sgdclip", "downplay": True},
    "Clip²": {"kind": "clip2"},
    "SD-Clip²": {"kind": "clip2", "downplay": True},
    "DC-Clip²": {"kind": "clip2", "compensate": True},
    "FADAS": {"kind": "fadas"},
    "DN+DyLU": {"kind": "dn_dylu"},
}
"""What the methods of the paper are in a spec."""


class PaperLine(NamedTuple):
    """A line of a table: a method on some data and a fleet, with its score in per cent and its simulated seconds."""

    data: str
    stragglers: str
    mode: str
    method: str
    score: float
    time: float


def not_waiting(lines: Iterable[PaperLine]) -> tuple[float, float]:
    """The best asynchronous score − the best synchronous one, and the mean synchronous time / asynchronous one."""
    sync, fast = list[PaperLine](), list[PaperLine]()
    for line in lines:
        (sync if line.mode == "sync" else fast).append(line)
    points = max(line.score for line in fast) - max(line.score for line in sync)
    return points, mean(line.time for line in sync) / mean(line.time for line in fast)


def published_rows(name: str) -> list[dict[str, str]]:
    """The rows of one of the files with the paper's numbers."""
    text = (FOLDER / f"paper/{name}.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


@cache
def published_lines() -> list[PaperLine]:
    """The lines of the paper's tables with M = 4."""
    return [
        PaperLine(
            row["data"],
            row["stragglers"],
            row["mode"],
            LABELS[row["method"]],
            float(row["score"]),
            float(row["runtime"]),
        )
        for row in published_rows("tables")
    ]


@cache
def published_baselines() -> dict[tuple[str, str, str], float]:
    """The paper's scores of FADAS and DN+DyLU in per cent, by data, method and stragglers."""
    rows = published_rows("baselines")
    return {(row["data"], row["method"], row["stragglers"]): float(row["accuracy"]) for row in rows}


@cache
def published_scores() -> dict[tuple[str, str, str, str], float]:
    """The paper's scores with M = 4, by data, stragglers, mode and method."""
    scores: dict[tuple[str, str, str, str], float] = {line[:4]: line.score for line in published_lines()}
    return scores | {
        (data, fleet, "client", name): score for (data, name, fleet), score in published_baselines().items()
    }


# Choosing settings --------------------------------------------------------------------------------------------------

Point = TypeVar("Point")
ResultOf = Callable[[PlannedRun], StoredResult | None]
"""The result of a run; None if it has not been done."""


def halve(
    points: Sequence[Point],
    rungs: Iterable[Callable[[Point], PlannedRun]],
    result_of: ResultOf,
    merit: Callable[[StoredResult], Any] | None = None,
) -> tuple[list[PlannedRun], Point | None]:
    """Choose a point by successive halving; with a single rung, that is a search of the whole grid.

    A rung runs the better half of the points of the one before, for longer; those that did not finish rank last.

    Returns:
        the runs known so far, those of the last rung at the end, and the best point; None while results are missing.
    """
    runs = list[PlannedRun]()
    for rung in rungs:
        trials = [rung(point) for point in points]
        runs += trials
        results = [result for run in trials if (result := result_of(run))]
        if len(results) < len(trials):
            return runs, None
        merits = list(map(merit or score_then_loss, results))
        order = sorted(range(len(points)), key=merits.__getitem__, reverse=True)
        points = [points[number] for number in order[: (len(points) + 1) // 2]]
    return runs, points[0] if points else None


def score_then_loss(result: StoredResult) -> tuple[float, float]:
    """The score, then the loss; runs that did not finish rank last.

    >>> score_then_loss(StoredResult("finished", 90.0, 0.3, 1.0, [], 0.0, 0.0))
    (90.0, -0.3)
    """
    return score_alone(result), -inf if result.accuracy is None or result.loss is None else -result.loss


def score_alone(result: StoredResult) -> float:
    """The score; runs that did not finish rank last."""
    return -inf if result.accuracy is None else result.accuracy


# Charts -------------------------------------------------------------------------------------------------------------


def accuracy_row(name: str, method: str, accuracy: float, spread: float | None) -> Values:
    """A row of an `AccuracyPlot`: its name, and the method whose colour it has."""
    low, high = max(accuracy - (spread or 0.0), 0.0), min(accuracy + (spread or 0.0), 100.0)
    return {"name": name, "method": method, "accuracy": accuracy, "low": low, "high": high}


class AccuracyPlot:
    """The parts of a plot: rows, colours, the axis of accuracies from `least` to 100 %, and bars of the spread."""

    def __init__(self, rows: list[Values], title: str, least: float = 0.0) -> None:
        self.title, self.scale = title, alt.Scale(domain=[least, 100])
        order = [row["name"] for row in rows]
        axis = alt.Axis(labelLimit=220)
        self.base: Any = alt.Chart({"values": rows}).encode(y=alt.Y("name:N", title=None, sort=order, axis=axis))
        labels = list(dict.fromkeys(row["method"] for row in rows))
        self.colour = alt.Color("method:N", scale=theme.method_colours(labels), legend=None)
        self.bars = self.base.mark_rule(strokeWidth=2).encode(x=self.x("low"), x2="high:Q", color=self.colour)

    def x(self, key: str) -> Any:
        """The axis of accuracies for a key of the rows."""
        return alt.X(f"{key}:Q", title=self.title, scale=self.scale)


def score_panels(points: Iterable[Values], methods: Sequence[str], score: str, titles: Mapping[str, str]) -> Any:
    """Scores against simulated time, with dashed lines for synchronous runs.

    Args:
        points: a row for each evaluation, with its method, mode, fleet, time and score.
        score: the title of the axis.
        titles: those of the panels, by fleet.
    """
    dashes = alt.Scale(domain=["client", "sync"], range=[[1, 0], [4, 2]])
    chart = theme.method_lines(points, methods).encode(
        x=alt.X("time:Q", title="simulated time (seconds)", scale=alt.Scale(type="log", nice=False)),
        y=alt.Y("score:Q", title=score, scale=alt.Scale(zero=False)),
        strokeDash=alt.StrokeDash("mode:N", scale=dashes, legend=None),
    )
    return alt.hconcat(
        *(chart.transform_filter(alt.datum.fleet == name).properties(title=titles[name]) for name in titles)
    )
