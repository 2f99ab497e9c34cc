"""Figures that a text quotes are those of the tables that commands have made."""

from __future__ import annotations

import math
import re
from itertools import dropwhile, takewhile
from pathlib import Path
from statistics import mean

from experiments.baselines import BaselineLine, Baselines, difference, plan
from experiments.baselines_page import BaselineTable
from experiments.lib import stored_runs
from tardygrad.sweeps.store import Store

ROOT = Path(__file__).parents[2]


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


def test_baselines_in_short(tmp_path: Path) -> None:
    name, evidence, whole = page("docs/baselines.md"), page("docs/evidence.md"), plan()
    digits, store = whole.workloads["digits"], Store(tmp_path, known=stored_runs("baselines"))
    mild, large, fashion, language = (
        {line.cell.method: line for line in lines} for lines in Baselines(whole, store).tables()
    )

    def found(title: str) -> list[str]:
        """The verdicts of a comparison in the three tables."""
        pairs = whole.comparisons[title]
        digits = whole.workloads["digits"]
        return [
            difference(digits, lines[a], lines[b]) for lines in (mild, large, fashion) for a, b in pairs if b in lines
        ]

    def gap(lines: dict[str, BaselineLine], first: str, second: str) -> str:
        return f"{lines[second].score - lines[first].score:.1f}"

    clipping = found("with local clipping")
    assert clipping.count("worse") == 0
    text = f"better in {clipping.count('better')} of {len(clipping)} cases, and worse in none"
    assert f"The clip makes them {text}" in name
    assert f"The clip makes six methods {text}" in evidence
    others = found("with another clipped method in place of Clip²")
    assert others.count("better") == 0
    text = f"better than Clip² in none and worse in {others.count('worse')}"
    assert f"In {len(others)} comparisons, a method that clips the coordinates of local gradients is {text}" in name
    assert f"better than Clip² in none of {len(others)} comparisons and worse in {others.count('worse')}" in evidence
    assert set(found("with downplaying or compensation")) == {"tied"}
    for method in ("sd-clip2", "dc-clip2"):
        gaps = sorted((gap(lines, "clip2", method) for lines in (mild, large, fashion)), key=float)
        assert f"{gaps[0]}, {gaps[1]} and {gaps[2]}" in name

    ahead = [gap(lines, "clip2", "sync-clip2") for lines in (large, fashion)]
    assert all(difference(digits, lines["clip2"], lines["sync-clip2"]) == "better" for lines in (large, fashion))
    (factor,) = {f"{lines['sync-clip2'].time / lines['clip2'].time:.0f}" for lines in (large, fashion)}
    assert f"by {ahead[0]} and {ahead[1]} points, and takes {factor} times as long" in name
    assert f"{ahead[0]} and {ahead[1]} points ahead of Clip², and takes {factor} times as long" in evidence
    for method in ("fadas-clipped", "fadas-clipped-client"):
        assert difference(digits, large["sync-clip2"], large[method]) == "tied"
    assert large["fadas-clipped-client"].time == large["clip2"].time
    free = {method: line for method, line in fashion.items() if not method.startswith("sync")}
    assert max(free, key=lambda method: free[method].score) == "fedbuff-adamw"
    assert f"it is {gap(fashion, 'fedbuff-adamw', 'sync-clip2')} points ahead of the best asynchronous method" in name
    assert f"takes {fashion['sync-clip2'].time / fashion['fedbuff-adamw'].time:.0f} times as long. If all" in name
    early = [BaselineTable(whole, [*lines.values()]).row(lines["sync-clip2-all"])[3] for lines in (large, fashion)]
    assert f"and has {early[0]} and {early[1]} % when the first asynchronous method ends" in name
    for lines in (large, fashion):
        assert difference(digits, lines["clip2"], lines["sync-clip2-all"]) == "tied"
    assert difference(digits, mild["clip2"], mild["sync-clip2"]) == "tied"
    scores = [BaselineTable(whole, [*lines.values()]).score(lines["dn-dylu-adamw"]) for lines in (mild, large)]
    assert f"DN+DyLU with AdamW has {scores[0]} % on the mild fleet and {scores[1]} % on the large one" in name

    lm = whole.workloads["lm"]
    verdicts = {method: difference(lm, language["clip2"], line) for method, line in language.items()}
    tied = ("clip2", "dn-dylu-adamw", "halos-adamw")
    assert {method for method, verdict in verdicts.items() if verdict == "tied"} == {*tied, "diloco"}
    assert set(verdicts.values()) == {"tied", "worse"}
    losses = {method: f"{line.score:.3f}" for method, line in language.items()}
    assert "cannot be told apart**: {}, {} and {}".format(*(losses[method] for method in tied)) in name
    clipped = ["fadas-clipped", "fedbuff-clipped", "dn-dylu-clipped"]
    quoted = "(FADAS {}, FedBuff {}, DN+DyLU {})".format(*(losses[method] for method in clipped))
    assert (
        f"{quoted}, than FedBuff with AdamW ({losses['fedbuff-adamw']}), and than SD-Clip² ({losses['sd-clip2']})"
        in name
    )
    assert language["diloco"].mark == "best"
    assert difference(lm, language["dn-dylu-adamw"], language["diloco"]) == "better"
    factor = f"{language['diloco'].time / language['clip2'].time:.1f} times as long"
    assert f"takes {factor}.** Synchronous DiLoCo has {losses['diloco']}" in name
    assert f"tied with synchronous DiLoCo, which takes {factor}" in evidence
    worse = others.count("worse") + len(clipped)
    assert f"better than Clip² in {len(others) + len(clipped)} comparisons, and {worse} were worse" in page("README.md")
