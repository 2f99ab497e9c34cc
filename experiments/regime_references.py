"""What the paper and small experiments show for each claim of the paper's regime, to compare with the verdicts.

The paper's numbers come with the package. Those of small experiments are read from pages in the folder of the one
that is written: results.md, made by `reproduce tables`, and reproduction.md, made by `reproduce claims`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import mean

from experiments.paper import (
    LABELS,
    PaperLine,
    not_waiting,
    published_baselines,
    published_cells,
    published_rows,
)
from experiments.regime_claims import ASYNCHRONOUS, cost_of_not_waiting, count_ahead

Rows = list[dict[str, str]]


def paper_numbers(workloads: Sequence[str]) -> dict[str, str]:
    """What the paper's tables show, by letter of the claim; for claims A to D on these workloads and on all of GLUE."""
    every = published_cells()
    same = _on_cells([cell for cell in every if cell.data in workloads])
    whole = _on_cells([cell for cell in every if cell.data != "cifar10"])
    found = {letter: f"{text}<br>all of GLUE: {whole[letter]}" for letter, text in same.items()}
    return found | {"E": _published_at_m_1(every), "F": _published_relatives(every)}


def small_experiment_numbers(folder: Path) -> dict[str, str]:
    """What small experiments show, by letter of the claim, on the pages of a folder."""
    ours, claims = (_tables(folder / name) for name in ("results.md", "reproduction.md"))
    found = _on_cells([cell for name, rows in ours.items() for cell in _own_cells(name, rows)])
    for letter, heading, wanted in (("E", "Claim 4", _at_m_1), ("F", "Claim 7", _without_local_clip)):
        if methods := _methods(claims.get(heading, []), wanted):
            place = f"[{heading.lower()}](reproduction.md#{heading.lower().replace(' ', '-')}) of digits"
            found[letter] = f"{methods} ({place})"
    return found


def _on_cells(cells: list[PaperLine]) -> dict[str, str]:
    """The numbers of claims A to D, as far as the cells that they compare exist."""
    pairs = {"B": ("Clip²", "SGDClip"), "C": ("SD-SGDClip", "SGDClip"), "D": ("DC-Clip²", "Clip²")}
    found = {"A": _no_waiting(cells), **{letter: _ahead(cells, *pair) for letter, pair in pairs.items()}}
    return {letter: text for letter, text in found.items() if text}


def _no_waiting(cells: list[PaperLine]) -> str:
    found = []
    for place in dict.fromkeys(cell[:2] for cell in cells):  # data and fleet
        here = [cell for cell in cells if cell[:2] == place]
        if len({cell.mode == "sync" for cell in here}) == 2:
            found.append(not_waiting(here))
    return cost_of_not_waiting(*zip(*found, strict=True)) if found else ""


def _ahead(cells: list[PaperLine], better: str, worse: str) -> str:
    scores: dict[tuple[str, ...], float] = {cell[:4]: cell.score for cell in cells if cell.mode in ASYNCHRONOUS}
    pairs = [
        score - scores[*place, worse]
        for (*place, method), score in scores.items()
        if method == better and (*place, worse) in scores
    ]
    return f"{better} − {worse}: {mean(pairs):+.2f} points, {count_ahead(pairs)}" if pairs else ""


def _published_at_m_1(cells: Sequence[PaperLine]) -> str:
    alone = {
        LABELS[row["method"]]: float(row["accuracy"])
        for row in published_rows("paper/buffers.csv")
        if (row["mode"], row["stragglers"], row["M"]) == ("server", "large", "1")
    }
    four = {cell.method: cell.score for cell in cells if cell[:3] == ("cifar10", "large", "server")}
    changes = [f"{method} {four[method]:.1f} → {alone[method]:.1f}" for method in ("SGDClip", "Clip²")]
    return f"from M = 4 to M = 1: {', '.join(changes)} (CIFAR-10)"


def _published_relatives(cells: Sequence[PaperLine]) -> str:
    found = []
    for data, title in (("sst2", "SST-2"), ("cifar10", "CIFAR-10")):
        ours = {cell.method: cell.score for cell in cells if cell[:3] == (data, "large", "client")}
        clips = {method: ours[method] for method in ("Clip²", "SD-Clip²", "DC-Clip²")}
        given = published_baselines().items()
        others = {method: score for (place, method, fleet), score in given if (place, fleet) == (data, "large")}
        found.append(f"{title}: " + ", ".join(f"{method} {score:.1f}" for method, score in (clips | others).items()))
    return "<br>".join(found)


def _tables(page: Path) -> dict[str, Rows]:
    """The rows of the tables below each heading of a page, by column; none if there is no page."""
    if not page.exists():
        return {}
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


def _at_m_1(row: dict[str, str]) -> bool:
    return row["M"] == "1" and row["method"] in ("SGDClip", "Clip²")


def _without_local_clip(row: dict[str, str]) -> bool:
    return "clipped" not in row["method"]


def _methods(rows: Rows, wanted: Callable[[dict[str, str]], bool]) -> str:
    """The accuracies of wanted lines with large stragglers, with their settings if a method has several lines."""
    shown = [row for row in rows if row["stragglers"] == "large" and wanted(row)]
    lines = Counter(row["method"] for row in shown)
    names = [f"{row['method']} ({row['settings']})" if lines[row["method"]] > 1 else row["method"] for row in shown]
    scores = [_number(row["accuracy (%)"]) for row in shown]
    return ", ".join(f"{name} {score:.1f}" for name, score in zip(names, scores, strict=True) if score is not None)


def _number(cell: str) -> float | None:
    """The number of a cell, without its spread; None if there is none."""
    try:
        return float(cell.partition(" ±")[0].replace(",", ""))
    except ValueError:
        return None
