"""The results in the paper's own regime as Markdown, and their pictures: scores against simulated time and against
what a part of the plan changes, and the tails of gradients, layer by layer."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

import altair as alt

import tardygrad as tg
from experiments import lib
from experiments.lib import Values, mean_time, table
from experiments.regime import Line, Regime, RegimePart, RegimePlan, costs, tuning_key
from experiments.regime_claims import judge, paper_numbers, small_experiment_numbers
from tardygrad import StoredResult
from tardygrad.results import theme

HEADINGS = ("stragglers", "mode", "method", "settings", "seeds", "score (%)", "paper (%)", "simulated time (s)")

_ON_ALL = ("A", "B", "C", "D")  # the claims that are judged on all tasks; the others are on SST-2


def verdicts(regime: Regime) -> str:
    """The section with the verdicts."""
    plan, paper, small = regime.plan, paper_numbers(regime.plan), small_experiment_numbers()
    rows = [
        (
            f"{letter}. {plan.claims[letter]['says']}",
            f"**{found.verdict}**",
            found.numbers,
            small.get(letter, ""),
            paper.get(letter, ""),
        )
        for letter, found in judge(regime).items()
    ]
    parts = [
        lib.all_done(costs(regime)),
        table(("claim", "verdict", "here", "small experiments", "the paper"), rows),
        plan.texts["verdicts"].strip(),
        _figure(plan.parts["cells"].workloads[0]),
    ]
    return "\n\n".join(parts)


def tables(regime: Regime, command: str) -> str:
    """The section with everything that was run."""
    plan = regime.plan
    workloads = [
        name for name, workload in plan.workloads.items() if any(name in part.workloads for part in plan.parts.values())
    ]
    parts = [
        "## What was run",
        f"Made by `{command}`. Clients train pretrained models, the text model whole.",
        table(("task", "data and model", "N", "T", "rounds of trials"), (_workload(plan, name) for name in workloads)),
        plan.texts["runs"].format(buffer=plan.buffer, seed=plan.tuning_seed, clips=_local_clips(plan)),
        lib.cost_table(costs(regime), "part"),
        "Parts: " + "; ".join(f"`{part.name}`, *{part.title}*" for part in plan.parts.values()) + ".",
        *_rules(regime),
        *map(_figure, plan.parts["cells"].workloads[1:]),
        *(_part(regime, part) for part in plan.parts.values()),
        *_trials(regime),
    ]
    return "\n\n".join(parts)


def _local_clips(plan: RegimePlan) -> str:
    """The thresholds of the clients' clips, with the workloads that have them."""
    names: dict[float, list[str]] = {}
    for line in plan.lines():
        if line.part in ("cells", "images"):
            clipped = names.setdefault(plan.method(line).settings["local_clip"], [])
            clipped += [line.workload] * (line.workload not in clipped)
    return ", and ".join(f"{clip:g} on {', '.join(workloads)}" for clip, workloads in names.items())


def _figure(workload: str) -> str:
    return f"![Test score against simulated time, {workload}]({curves_path(workload)})"


def _rules(regime: Regime) -> list[str]:
    """The rule of each claim, the numbers of each cell, and the verdicts of each workload alone."""
    plan, workloads = regime.plan, regime.plan.parts["cells"].workloads
    alone = {workload: judge(regime.with_plan(plan.only_workload(workload))) for workload in workloads}
    details = [
        "\n".join((f"Claim {letter}:\n", *(f"- {line}" for line in found.details)))
        for letter, found in judge(regime).items()
        if found.details
    ]
    rows = [
        (letter, *("<br>".join(filter(None, each[letter][:2])) for each in alone.values()))  # verdict and numbers
        for letter in plan.claims
        if letter in _ON_ALL
    ]
    return [
        "## The rules, and what decides them",
        "\n".join(f"- **{letter}**: {plan.claims[letter]['rule']}" for letter in plan.claims),
        *details,
        "The verdicts if a rule is applied to one task alone:",
        table(("claim", *alone), rows),
    ]


def _trials(regime: Regime) -> list[str]:
    """The finished trials; those of a method in the order of their rounds, the best first."""
    rows = []
    for name, line in {tuning_key(line): line for line in regime.plan.lines()}.items():
        done = [(run, result) for run in regime.trials(line) if (result := regime.store.result(run))]
        done.sort(key=lambda trial: lib.score_then_loss(trial[1]), reverse=True)
        for run, result in sorted(done, key=lambda trial: int(trial[0].spec["run"]["rounds"])):
            tried = ", ".join(f"{each} {run.spec['method'][each]:g}" for each in regime.plan.method(line).grid)
            score = "" if result.accuracy is None else f"{result.accuracy:.1f}"
            loss = "" if result.loss is None else f"{result.loss:.3f}"
            rows.append((name, tried, str(run.spec["run"]["rounds"]), score or result.status, loss))
    headings = ("task, mode, method", "settings", "rounds", "validation score (%)", "loss")
    return ["## Trials", table(headings, rows)] if rows else []


def _workload(plan: RegimePlan, name: str) -> tuple[str, ...]:
    workload = plan.workloads[name]
    rungs = ", ".join(map(str, workload.rungs or plan.rungs))
    return name, workload.title, str(workload.clients), str(workload.rounds), rungs


def _part(regime: Regime, part: RegimePart) -> str:
    found = [f"## {part.title}"]
    if part.name in AXES:
        found.append(f"![Test score of each method: {part.title.lower()}]({effects_path(part)})")
    for workload in part.workloads:
        rows = [row(regime, line) for line in part.with_unchanged() if line.workload == workload]
        found += [f"### {regime.plan.workloads[workload].title}", table((*HEADINGS, "coordinates clipped: Δ, g"), rows)]
        found += tails_section(regime, part, workload)
    if part.name == "curvature":
        found += _compensation(regime)
    return "\n\n".join(found)


def _compensation(regime: Regime) -> list[str]:
    """How much DC changes the scores of Clip², over all pairs of runs that differ in nothing else."""
    pairs = {}
    lines = [line for part in regime.plan.parts.values() for line in part.lines() if line.method == "DC-Clip²"]
    for line in lines:
        plain = line._replace(method="Clip²")
        ours, theirs = ([_without_compensation(run.spec) for run in regime.runs(each)] for each in (line, plain))
        if ours == theirs:
            name, scores = " ".join((line.workload, *line[2:4], line.change)).strip(), regime.results(plain)
            for seed, result in regime.results(line).items():
                if seed in scores:
                    pairs[name, seed] = (result.accuracy or 0.0) - (scores[seed].accuracy or 0.0)
    if not pairs:
        return []
    every = list(pairs.values())
    changed = [f"{name}, seed {seed}: {points:+.1f}" for (name, seed), points in pairs.items() if abs(points) >= 1]
    more = f"By a point or more: {'; '.join(changed)}." if changed else "It is a point or more in none of them."
    return [
        f"In {len(every)} pairs of runs, in all tables of this page, only the compensation differs. It changes the "
        f"score by {min(every):+.1f} to {max(every):+.1f} points ({mean(every):+.2f} on average, median "
        f"{median(every):+.2f}), and not at all in {every.count(0.0)}. {more}"
    ]


def _without_compensation(spec: Values) -> str:
    method = {name: value for name, value in spec["method"].items() if name != "compensate"}
    return json.dumps({**spec, "method": method}, sort_keys=True)


def row(regime: Regime, line: Line) -> tuple[str, ...]:
    """The row of a line."""
    method = f"{line.method}, {line.change}" if line.change else line.method
    theirs = "" if line.change else _published(line)
    fleet = _fleet(regime, line)
    results = list(regime.results(line).values())
    used = regime.runs(line)[0].spec["method"]
    settings = ", ".join(f"{name} {used[name]:g}" for name in regime.plan.method(line).grid)
    failed = sum(result.accuracy is None for result in results)
    scores = [result.accuracy or 0.0 for result in results]
    found = tg.confidence_interval(scores)
    spread = f" ± {found.half_width:.1f}" if found.half_width is not None else ""
    if len(scores) == 2:  # whose interval would reach six times their distance to both sides
        spread = f" ({scores[0]:.1f}, {scores[1]:.1f})"
    spread = f"{spread} ({failed} did not finish)" if failed else spread
    outer, local = (mean(getattr(result, name) for result in results) for name in ("clipped", "local_clipped"))
    return (
        fleet,
        line.mode,
        method,
        settings,
        str(len(results)),
        f"{found.mean:.1f}{spread}",
        theirs,
        f"{mean_time(results):,.0f}",
        f"{_percent(outer)}, {_percent(local)}",
    )


def _fleet(regime: Regime, line: Line) -> str:
    """The stragglers of a line: the name of a fleet of the paper, or how many clients are in the slowest group."""
    change = regime.plan.parts[line.part].changes.get(line.change, {})
    if "fleet" not in change:
        return line.stragglers
    groups = change["fleet"]["groups"]
    slowest = max(groups, key=lambda group: group["runtime"]["low"])
    return f"{slowest['clients']} of {sum(group['clients'] for group in groups)}"


def _published(line: Line) -> str:
    """The paper's accuracy of the same cell."""
    score = lib.published_scores().get((line.workload, line.stragglers, line.mode, line.method))
    return "" if score is None else f"{score:.1f}"


def _percent(value: float) -> str:
    """A share in per cent, with a decimal if it is small."""
    return f"{value:.1%}" if 0 < value < 0.01 else f"{value:.0%}"


# Pictures -----------------------------------------------------------------------------------------------------------

CURVES = ("SGDClip", "Clip²")
"""The methods in pictures of scores against time, synchronous and client-centric."""
_SCORE = "test score (%), mean over seeds"


class Axis(NamedTuple):
    """What a part of the plan changes: the title of an axis, and its value in a spec; None: not on this axis."""

    title: str
    value: Callable[[dict[str, Any]], float | None]


def _slowness(spec: dict[str, Any]) -> float | None:
    if spec["fleet"]["kind"] != "groups":
        return None
    fast, slow = (group["runtime"]["low"] for group in spec["fleet"]["groups"])
    return float(slow / fast)


AXES = {
    "buffers": Axis("M, updates per round", lambda spec: float(spec["method"]["buffer"])),
    "slowness": Axis("how many times as slow the stragglers are", _slowness),
    "rates": Axis("local rate η_ℓ", lambda spec: float(spec["method"]["local_lr"])),
}


def curves_path(workload: str) -> str:
    """The path of a workload's picture, from the page."""
    return f"images/regime-{workload}.svg"


def effects_path(part: RegimePart) -> str:
    """The path of a part's picture, from the page."""
    return f"images/regime-{part.name}.svg"


def draw(regime: Regime, folder: Path) -> None:
    """Draw the workloads whose lines are done with every seed, what parts change, and the tails of gradients."""
    for workload in regime.plan.parts["cells"].workloads:
        theme.write(_curves(regime, workload), folder / curves_path(workload))
    for part in regime.plan.parts.values():
        if part.name in AXES:
            theme.write(_effects_chart(part, effects(regime, part)), folder / effects_path(part))
        for workload in part.workloads:
            if points := tail_points(regime, part, workload):
                theme.write(tails_chart(points), folder / tails_path(workload))


def _shown(regime: Regime, workload: str) -> list[Line]:
    lines = regime.plan.parts["cells"].lines()
    return [line for line in lines if line.workload == workload and line.mode != "server" and line.method in CURVES]


def effects(regime: Regime, part: RegimePart) -> list[Values]:
    """The mean score of each line with what the part changes, for the seeds of the part."""
    rows = []
    for line in part.with_unchanged():
        value = AXES[part.name].value(regime.runs(line)[0].spec)
        scores = [result.accuracy or 0.0 for seed, result in regime.results(line).items() if seed in part.seeds]
        if value is not None and scores:
            rows.append({"method": line.method, "value": value, "score": mean(scores)})
    return rows


def _effects_chart(part: RegimePart, found: list[Values]) -> Any:
    values = sorted({row["value"] for row in found})
    axis = alt.Axis(values=values, format="~g")
    chart = theme.method_lines(found, part.methods).encode(
        x=alt.X("value:Q", title=AXES[part.name].title, axis=axis, scale=alt.Scale(type="log", nice=False, padding=12)),
        y=alt.Y("score:Q", title=_SCORE, scale=alt.Scale(zero=False)),
    )
    return theme.image_style(chart.properties(title=f"{part.title} ({', '.join(part.workloads)})"))


def _mean_curve(results: Iterable[StoredResult]) -> list[tuple[float, float]]:
    """Simulated time and score after each evaluated round, means over the seeds that reached it."""
    rounds: dict[int, list[tuple[float, float]]] = {}
    for result in results:
        for number, time, _, score in result.curve:
            if score is not None:
                rounds.setdefault(number, []).append((time, score))
    return [(mean(time for time, _ in seeds), mean(score for _, score in seeds)) for _, seeds in sorted(rounds.items())]


def _early(regime: Regime, line: Line) -> list[tuple[float, float]]:
    """Time and score of runs of the part `early` that end sooner and are else the same, means over their seeds."""
    part = regime.plan.parts.get("early")
    found = []
    for short in part.lines() if part else ():
        results = list(regime.results(short).values())
        if short._replace(part=line.part, change="") == line and results:
            found.append((mean_time(results), mean(each.accuracy or 0.0 for each in results)))
    return found


def _curves(regime: Regime, workload: str) -> Any:
    points = [
        {"method": line.method, "mode": line.mode, "fleet": line.stragglers, "time": time, "score": score}
        for line in _shown(regime, workload)
        for time, score in sorted(_early(regime, line) + _mean_curve(regime.results(line).values()))
    ]
    titles = {
        fleet: f"{workload}, {fleet} stragglers, client-centric (dashed: synchronous)"
        for fleet in regime.plan.parts["cells"].fleets
    }
    return theme.image_style(lib.score_panels(points, CURVES, _SCORE, titles).resolve_scale(y="shared"))


_HIGHEST = 6.0  # larger tail indices are drawn here: all of them mean a light tail


def tails_path(workload: str) -> str:
    """The path of a workload's picture, from the page."""
    return f"images/regime-tails-{workload}.svg"


def tail_points(regime: Regime, part: RegimePart, workload: str) -> list[Values]:
    """The measured tails of a part and a workload: a row for each run, round and layer."""
    return [
        {"mode": lib.MODE_TEXTS[line.mode], **tail._asdict()}
        for line in part.lines()
        if part.tails and line.workload == workload
        for result in regime.results(line).values()
        for tail in result.tails
    ]


def tails_section(regime: Regime, part: RegimePart, workload: str) -> list[str]:
    """The picture and the table of a part and a workload; nothing before they are measured."""
    found = tail_points(regime, part, workload)
    if not found:
        return []
    rows = []
    for mode, round in dict.fromkeys((row["mode"], row["round"]) for row in found):
        here = [row for row in found if (row["mode"], row["round"]) == (mode, round)]
        whole = next((row for row in here if row["layer"] == "all"), None)
        if whole is None:
            continue
        counts = Counter(row["verdict"] for row in here if row["layer"] != "all")
        verdicts = "; ".join(f"{number} {verdict}" for verdict, number in counts.most_common())
        rows.append((mode, str(round), _index(whole), _scaled(whole), verdicts))
    return [
        "![Tail index of each layer's gradient noise at the start, in the middle and at the end]"
        f"({tails_path(workload)})",
        regime.plan.texts["tails"],
        table(("mode", "round", "whole model", "each coordinate divided by its scale", "layers"), rows),
    ]


def _index(row: Values) -> str:
    if row["alpha"] is None:
        return str(row["verdict"])
    return f"{row['alpha']:.2f} ± {(row['high'] - row['low']) / 2:.2f}, {row['verdict']}"


def _scaled(row: Values) -> str:
    return "none: most gradients are 0" if row["scaled"] is None else f"{row['scaled']:.2f}, {row['scaled_verdict']}"


def tails_chart(found: list[Values]) -> Any:
    """The tail index of every layer, from input to output: a panel for each mode, a colour for each round."""
    rounds = sorted({row["round"] for row in found})
    shown = [{**row, "layer": row["layer"].removeprefix("model.")} for row in found if row["layer"] != "all"]
    layers = list(dict.fromkeys(row["layer"] for row in shown))
    rows = [
        {**row, "alpha": min(row["alpha"], _HIGHEST), "after": f"round {row['round']}"}
        for row in shown
        if row["alpha"] is not None
    ]
    names = [f"round {number}" for number in rounds]
    shapes = alt.Scale(domain=names, range=["circle", "square", "triangle-up"][: len(names)])
    colours = alt.Scale(domain=names, range=[theme.ORANGE, theme.BLUE, theme.BLACK][: len(names)])
    legend = alt.Legend(title=None, orient="top", labelFontSize=12)
    dots = (
        alt.Chart({"values": rows})
        .mark_point(size=45, filled=True, opacity=0.9)
        .encode(
            x=alt.X(
                "alpha:Q", title="tail index α of the noise (6: 6 or more)", scale=alt.Scale(domain=[0.0, _HIGHEST])
            ),
            y=alt.Y(
                "layer:N",
                sort=layers,
                title="layer, from input to output",
                axis=alt.Axis(labelLimit=330, maxExtent=400),
            ),
            color=alt.Color("after:N", scale=colours, legend=legend),
            shape=alt.Shape("after:N", scale=shapes, legend=legend),
        )
    )
    limit = alt.Chart({"values": [{"alpha": 2.0}]}).mark_rule(color=theme.RED, strokeDash=[4, 3]).encode(x="alpha:Q")
    modes = list(dict.fromkeys(row["mode"] for row in found))
    others = dots.encode(y=alt.Y("layer:N", sort=layers, title=None, axis=alt.Axis(labels=False, ticks=False)))
    panels = [
        ((others if number else dots).transform_filter(alt.datum.mode == mode) + limit).properties(
            title=f"{mode} (dashed: infinite variance to its left)", width=330, height=alt.Step(12)
        )
        for number, mode in enumerate(modes)
    ]
    return theme.image_style(alt.hconcat(*panels))
