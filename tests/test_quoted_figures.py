"""Figures that a text quotes are those of the tables that commands have made."""

from __future__ import annotations

import math
import re
from itertools import dropwhile, takewhile
from pathlib import Path
from statistics import mean

ROOT = Path(__file__).parent.parent


def page(name: str) -> str:
    """The text of a page, in one line."""
    return re.sub(r"\s+", " ", (ROOT / name).read_text(encoding="utf-8"))


def table(name: str, heading: str) -> list[dict[str, str]]:
    """The first table after a heading of a page."""
    below = (ROOT / name).read_text(encoding="utf-8").partition(f"\n{heading}")[2].splitlines()
    lines = takewhile(lambda line: line.startswith("|"), dropwhile(lambda line: not line.startswith("|"), below))
    names, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    return [dict(zip(names, row, strict=True)) for row in rows]


def number(text: str) -> float:
    """A number without its spread."""
    return float(text.partition(" ± ")[0].replace(",", ""))


def test_pairs_of_modes_that_are_alike() -> None:
    results = "docs/results.md"
    gaps: list[float] = []  # server-centric − client-centric
    for heading in re.findall(r"^## `.*`$", (ROOT / results).read_text(encoding="utf-8"), re.MULTILINE):
        rows = table(results, heading)
        cells = {(row["stragglers"], row["mode"], row["method"]): number(row["ours"]) for row in rows}
        server = {(fleet, method): value for (fleet, mode, method), value in cells.items() if mode == "server"}
        gaps += [round(value - cells[fleet, "client", method], 1) for (fleet, method), value in server.items()]
    alike, most, of_fashion = sum(abs(gap) <= 1 for gap in gaps), max(map(abs, gaps)), gaps[:10]
    assert f"within 1 point in {alike} of {len(gaps)} pairs, at most {most} apart" in page(results)
    assert f"on both fleets, by {min(of_fashion)} to {max(of_fashion)} points" in page(results)


def test_images_in_the_papers_regime() -> None:
    rows = table("docs/regime.md", "## Images")
    sync, free = ([row for row in rows if row["mode"] == mode] for mode in ("sync", "client"))
    with_waiting, without = (max(number(row["score (%)"]) for row in some) for some in (sync, free))
    quoted = re.search(r"is (\S+) points behind the best synchronous one .*? ends (\d+) times", page("docs/regime.md"))
    assert quoted
    assert float(quoted[1]) == round(with_waiting - without, 1)
    long, short = (number(some[0]["simulated time (s)"]) for some in (sync, free))
    assert long / (short + 0.5) < int(quoted[2]) < long / (short - 0.5)
    gap = f"{with_waiting - without:.0f} points behind ({without:.0f} against {with_waiting:.0f} %)"
    assert f"{gap}, {quoted[2]} times sooner" in page("docs/evidence.md")


def test_relatives_with_a_local_clip() -> None:
    rows = table("docs/regime.md", "## FedBuff, FADAS and DN+DyLU")
    score = {row["method"]: number(row["score (%)"]) for row in rows}
    cells = {tuple(row.values())[:3]: number(row["score (%)"]) for row in table("docs/regime.md", "## Every mode")}
    clip2 = cells["large", "client", "Clip²"]
    fadas, dylu, fedbuff = (math.ceil(clip2 - score[f"{name}, clipped"]) for name in ("FADAS", "DN+DyLU", "FedBuff"))
    assert f"within {fadas} and {dylu} points of Clip², and FedBuff within {fedbuff}" in page("docs/regime.md")
    assert f"within {fadas} and {dylu} points, and FedBuff within {fedbuff}" in page("docs/evidence.md")


def test_means_under_the_first_picture() -> None:
    rows = table("docs/first-run.md", "This is one task")
    scores = {row["method"]: [number(cell) for cell in [*row.values()][2:] if cell] for row in rows}
    free, sync = scores["SD-Clip²"], scores["sync-Clip²"]
    assert (len(free), len(sync)) == (6, 3)
    assert f"Over six seeds the asynchronous runs end at {mean(free):.1f} % on average" in page("README.md")
    assert f"over three the synchronous ones at {mean(sync):.1f} %" in page("README.md")


def test_baselines_in_short() -> None:
    name, headings = "docs/baselines.md", ("## Digits, mild", "## Digits, large", "## Fashion, large")
    clipping, relatives = ([0, 0, 0], [0, 0, 0])  # better, pairs, worse
    for heading in headings:
        section = (ROOT / name).read_text(encoding="utf-8").partition(f"\n{heading}\n")[2].partition("\n## ")[0]
        for title, total in (("local clipping", clipping), ("a clipped relative in place of Clip²", relatives)):
            found = re.search(rf"^- with {title}, (\d+) of (\d+) better and (\d+) worse", section, re.MULTILINE)
            assert found
            total[:] = [one + int(more) for one, more in zip(total, found.groups(), strict=True)]
    assert (clipping[2], relatives[0]) == (0, 0)
    assert f"it makes them better in {clipping[0]} of {clipping[1]} cases, and worse in none" in page(name)
    assert f"In {relatives[1]} comparisons with Clip²" in page(name)
    assert f"is better in none and worse in {relatives[2]}" in page(name)
    evidence = page("docs/evidence.md")
    assert f"better than Clip² in none of {relatives[1]} comparisons and worse in {relatives[2]}" in evidence
    assert f"makes six methods better in {clipping[0]} of {clipping[1]} cases" in evidence

    tables = [{row["method"]: row for row in table(name, heading)} for heading in headings]
    scores = [{method: number(row["test accuracy (%)"]) for method, row in rows.items()} for rows in tables]
    quoted = {"SD-Clip²": (-0.4, 0.1, 1.0), "DC-Clip²": (0.4, 1.6, 2.0)}
    for method, gaps in quoted.items():  # of means that are not rounded
        assert ", ".join(map(str, gaps[:2])) + f" and {gaps[2]}" in page(name)
        for here, gap in zip(scores, gaps, strict=True):
            assert abs(here[method] - here["Clip²"] - gap) < 0.15
    waits = [{method: score for method, score in here.items() if method.startswith("sync")} for here in scores]
    for here, sync, clip2_gap, best_gap in zip(scores[1:], waits[1:], (3.1, 3.8), (0.5, 0.9), strict=True):
        assert abs(here["sync-Clip²"] - here["Clip²"] - clip2_gap) < 0.15
        best = max(score for method, score in here.items() if method not in sync)
        assert abs(here["sync-Clip²"] - best - best_gap) < 0.15
    assert "is 3.1 points ahead of asynchronous Clip² on digits and 3.8 on Fashion-MNIST, 0.5 and 0.9 points" in page(
        name
    )
    factors = {
        round(number(here["sync-Clip²"]["to the end (s)"]) / number(here["Clip²"]["to the end (s)"]))
        for here in tables[1:]
    }
    assert factors == {89}
    for text in (page(name), evidence):
        assert "takes 89 times as long as Clip²" in text
    early = [
        next(value for key, value in here["sync-Clip², all clients"].items() if key.startswith("at "))
        for here in tables
    ]
    assert f"it has {early[1]} and {early[2]} % by then" in page(name)
    mild, large = (here["DN+DyLU, AdamW"]["test accuracy (%)"] for here in tables[:2])
    assert f"DN+DyLU with AdamW has {mild} % on the mild fleet and {large} % on the large one" in page(name)
