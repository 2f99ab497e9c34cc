"""The verdicts on the claims as Markdown, with their tables and pictures of the kind that the paper shows."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any

import altair as alt

from experiments import claims, lib
from experiments.claims import Claim, ClaimLine, ClaimResult, ClaimTrial, Scale
from experiments.lib import FLEETS, LABELS, ResultOf
from tardygrad.results import theme

_COLUMNS = ("method", "mode", "stragglers", "M", "settings", "accuracy (%)", "paper's best (%)", "time (s)")


@cache
def _published() -> dict[tuple[str, str, str, int], float]:
    """The paper's accuracies on CIFAR-10, by method, mode, stragglers and M."""
    found = {
        (LABELS[row["method"]], row["mode"], row["stragglers"], int(row["M"])): float(row["accuracy"])
        for row in lib.published_rows("buffers")
    }
    for (data, fleet, mode, method), score in lib.published_scores().items():
        if data == "cifar10":
            found[method, mode, fleet, 4] = score
    return found


def published(trial: ClaimTrial) -> float | None:
    """The paper's accuracy in per cent with the same method, mode, fleet and M; None if it has none."""
    return _published().get((trial.method, trial.mode, trial.stragglers, trial.buffer))


def row(line: ClaimLine) -> tuple[str, ...]:
    """The row of a line."""
    trial = line.trial
    theirs = published(trial)
    return (
        trial.method,
        trial.mode,
        trial.stragglers,
        str(trial.buffer),
        ", ".join(f"{key} {value:g}" for key, value in trial.settings.items()),
        str(line),
        "" if theirs is None else f"{theirs:.1f}",
        f"{line.time:,.0f}",
        f"{line.clipped:.0%}" if "clip" in trial.settings else "",
        line.note,
    )


def text(findings: dict[Claim, ClaimResult], scale: Scale, command: str) -> str:
    """The section of a page."""
    task, noise, seeds = claims.TASK, claims.TASK["noise"], scale.seeds
    parts = [
        f"Made by `{command}`. Task: {task['kind']}, {task['model']} of width {task['dim']}, with {noise['kind']} "
        f"noise of tail {noise['tail']} and scale {noise['scale']} on every gradient; N = {task['clients']}, "
        f"M = {claims.BUFFER}, K = {claims.LOCAL_STEPS}, T = {claims.ROUNDS}, η_ℓ = {claims.LOCAL_LR}, "
        f"u = {claims.LOCAL_CLIP} unless a table says otherwise. Accuracies are those after the last round, mean ± "
        "standard deviation over the "
        f"seeds {seeds[0]} to {seeds[-1]}; settings were tuned on seed {claims.TUNING}. Chance is 10 %.",
        lib.table(
            ("claim", "verdict", "conditions that do not hold"),
            (
                (
                    f"[{claim.number}](#claim-{claim.number}). {claims.TEXTS[str(claim.number)]['says']}",
                    f"**{found.verdict}**",
                    "; ".join(check.says for check in found.checks if not check.holds) or "none",
                )
                for claim, found in findings.items()
            ),
        ),
    ]
    for claim, found in findings.items():
        claim_words = claims.TEXTS[str(claim.number)]
        parts += [
            f"### Claim {claim.number}",
            claim_words["says"],
            f"*Run:* {claim_words['setup']}",
            f"*Rule:* {claim_words['rule']}",
            f"*Verdict:* **{found.verdict}**.",
            "\n".join(f"- {'holds' if check.holds else '**fails**'}: {check.says}" for check in found.checks),
            *([f"Also observed: {found.remarks}."] if found.remarks else []),
            f"![Claim {claim.number}: {claim_words['says']}](images/claim-{claim.number}.svg)",
            lib.table((*_COLUMNS, "Δ clipped", ""), map(row, found.lines)),
        ]
    return "\n\n".join(parts)


def draw(folder: Path, findings: dict[Claim, ClaimResult], result_of: ResultOf, scale: Scale) -> None:
    """Write every claim's picture."""
    for claim, found in findings.items():
        theme.write(picture(claim, found, result_of, scale), folder / f"claim-{claim.number}.svg")


# Pictures -----------------------------------------------------------------------------------------------------------

_TIME = alt.X("time:Q", title="simulated time (seconds)", scale=alt.Scale(type="log", nice=False))
_ROUND = alt.X("round:Q", title="rounds")
_LOSS = alt.Y("loss:Q", title="test loss", scale=alt.Scale(type="log"))
_ACCURACY = alt.Y("accuracy:Q", title="test accuracy (%)", scale=alt.Scale(domain=[0, 100]))


def picture(claim: Claim, finding: ClaimResult, result_of: ResultOf, scale: Scale) -> Any:
    """The picture of a claim."""
    draw = {1: _chart_1, 2: _chart_2, 3: _chart_3, 4: _dots, 5: _buffers, 6: _dots, 7: _dots}[claim.number]
    return theme.image_style(draw(finding.lines, result_of, scale))


def curve(result_of: ResultOf, trial: ClaimTrial, scale: Scale) -> list[dict[str, Any]]:
    """A trial's evaluations, mean over the seeds; no loss where that of a seed is not finite."""
    points = []
    for evaluated in zip(
        *(result.curve for seed in scale.seeds if (result := result_of(trial.run(seed)))), strict=False
    ):
        rounds, times, losses, scores = zip(*evaluated, strict=True)
        known = [loss for loss in losses if loss is not None]
        points.append(
            {
                "method": trial.label,
                "mode": trial.mode,
                "round": rounds[0],
                "time": mean(times),
                "loss": mean(known) if len(known) == len(losses) else None,
                "accuracy": mean(score or 0.0 for score in scores),
            }
        )
    return points


def _curves(trials: list[ClaimTrial], result_of: ResultOf, scale: Scale) -> Any:
    points = [point for trial in trials for point in curve(result_of, trial, scale)]
    return _lines(points, [trial.label for trial in trials])


def _lines(points: list[dict[str, Any]], labels: Iterable[str]) -> Any:
    """Curves in the methods' colours; server-centric ones dashed."""
    legend = theme.line_legend(title=None, columns=4)
    dashes = alt.Scale(domain=["client", "sync", "server"], range=[[1, 0], [1, 0], [5, 3]])
    return (
        alt.Chart({"values": points})
        .mark_line(strokeWidth=2.5, clip=True)
        .encode(
            color=alt.Color("method:N", scale=theme.method_colours(list(dict.fromkeys(labels))), legend=legend),
            strokeDash=alt.StrokeDash("mode:N", scale=dashes, legend=None),
        )
        .properties(width=360, height=260)
    )


def _chart_1(lines: list[ClaimLine], result_of: ResultOf, scale: Scale) -> Any:
    sides = []
    for fleet in FLEETS:
        of_fleet = [line.trial for line in lines if line.trial.stragglers == fleet]
        here = [trial for trial in of_fleet if trial.rounds == lines[0].trial.rounds]
        chart = _curves(here, result_of, scale).encode(x=_TIME, y=_ACCURACY)
        sides.append(chart.properties(title=f"{fleet} stragglers"))
    return alt.hconcat(*sides)


def _chart_2(lines: list[ClaimLine], result_of: ResultOf, scale: Scale) -> Any:
    rows = []
    for i, setting in enumerate(claims.HIGH_RATES):
        trials = [line.trial for line in lines[4 * i : 4 * i + 4]]
        chart = _curves(trials, result_of, scale).encode(y=_LOSS).properties(height=200)
        title = f"η = {setting['lr']:g} (dashed: server-centric)"
        rows.append(alt.hconcat(chart.encode(x=_ROUND).properties(title=title), chart.encode(x=_TIME)))
    return alt.vconcat(*rows)


def _chart_3(lines: list[ClaimLine], result_of: ResultOf, scale: Scale) -> Any:
    """Three settings, and the grid."""
    sides = []
    for i, place in enumerate(claims.RATE_PAIRS):
        trials = [line.trial for line in lines[2 * i : 2 * i + 2]]
        chart = _curves(trials, result_of, scale).encode(x=_ROUND, y=_LOSS)
        sides.append(chart.properties(width=230, height=200, title=f"η = {place['lr']:g}, η_ℓ = {place['local_lr']:g}"))
    return alt.vconcat(
        alt.hconcat(*sides), alt.hconcat(*(_grid(result_of, scale, method) for method in claims.SGDCLIP_METHODS))
    )


def _grid(result_of: ResultOf, scale: Scale, method: str) -> Any:
    cells: list[dict[str, Any]] = []
    for trial in claims.WIDE_TRIALS:
        row = result_of(trial.run(scale.seeds[0]))
        if trial.method == method and row:
            score = row.accuracy or 0.0
            cells.append({**trial.settings, "accuracy": score, "text": f"{score:.0f}", "works": score >= claims.WORKS})
    base = alt.Chart({"values": cells}).encode(
        x=alt.X("lr:O", title="η", axis=alt.Axis(labelAngle=0)), y=alt.Y("local_lr:O", title="η_ℓ", sort="descending")
    )
    shade = alt.Scale(domain=[0, 100], scheme="viridis")
    heat = base.mark_rect().encode(color=alt.Color("accuracy:Q", title="accuracy (%)", scale=shade))
    light = alt.condition(alt.datum.accuracy > 60, alt.value("black"), alt.value("white"))
    text = base.mark_text(fontSize=12).encode(text="text:N", color=light)
    share = mean(cell["works"] for cell in cells)
    title = f"{method}: {share:.0%} of the grid works ({claims.WORKS:.0f} % or more)"
    return (heat + text).properties(width=300, height=160, title=title)


def _dots(lines: list[ClaimLine], result_of: ResultOf, scale: Scale) -> Any:
    """Accuracies with their spread, and the paper's."""
    fleets = list(dict.fromkeys(line.trial.stragglers for line in lines))
    return alt.hconcat(*(_side([line for line in lines if line.trial.stragglers == fleet], fleet) for fleet in fleets))


def _side(lines: list[ClaimLine], title: str) -> Any:
    rows = [
        lib.accuracy_row(name(line.trial, lines), line.trial.label, line.accuracy, line.spread)
        | {"paper": published(line.trial)}
        for line in lines
    ]
    plot = lib.AccuracyPlot(rows, "test accuracy (%); hollow: the paper's on CIFAR-10")
    dots = plot.base.mark_point(filled=True, size=90, opacity=1).encode(x=plot.x("accuracy"), color=plot.colour)
    theirs = plot.base.mark_point(shape="diamond", size=80, color="#777777").encode(x=plot.x("paper"))
    return (theirs + plot.bars + dots).properties(width=330, height=24 * len(rows), title=f"{title} stragglers")


def name(trial: ClaimTrial, among: list[ClaimLine]) -> str:
    """The name of a trial, with what distinguishes it from others of its method."""
    same = [line.trial for line in among if line.trial.label == trial.label]
    parts = [trial.label]
    if len({line.mode for line in same}) > 1:
        parts.append({"server": "SC", "client": "CC", "sync": "sync"}[trial.mode])
    if len({line.settings.get("lr") for line in same}) > 1:
        parts.append(f"η = {trial.settings['lr']:g}")
    return ", ".join(parts)


def _buffers(lines: list[ClaimLine], result_of: ResultOf, scale: Scale) -> Any:
    sides = []
    for fleet in dict.fromkeys(line.trial.stragglers for line in lines):
        here = [line for line in lines if line.trial.stragglers == fleet]
        rows = [
            {"method": trial.label, "mode": trial.mode, "M": trial.buffer, "accuracy": accuracy, "time": time}
            for trial, accuracy, _, time, *_ in here
        ]
        chart = _lines(rows, [line.trial.label for line in lines]).mark_line(
            point=alt.OverlayMarkDef(size=50), strokeWidth=2.5
        )
        chart = chart.encode(x=alt.X("M:Q", title="M"), strokeDash=alt.value([1, 0]))
        time = alt.Y("time:Q", title="simulated time (seconds)", scale=alt.Scale(type="log"))
        score = chart.encode(y=_ACCURACY).properties(title=f"{fleet} stragglers, server-centric")
        sides.append(alt.hconcat(score, chart.encode(y=time)))
    return alt.vconcat(*sides)
