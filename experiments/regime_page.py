"""The results in the paper's own regime as Markdown."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean, median

from experiments import regime_charts as charts
from experiments import regime_tails as tails
from experiments.page import table
from experiments.paper import published_baselines, published_cells
from experiments.progress import progress_table, progress_text
from experiments.regime import Line, Regime, RegimePart, RegimePlan, Values, tuning_key
from experiments.regime_claims import judge
from experiments.regime_progress import progress
from experiments.regime_references import paper_numbers, small_experiment_numbers
from experiments.trials import mean_time
from tardygrad.results.statistics import estimate

HEADINGS = (
    "stragglers",
    "mode",
    "method",
    "settings",
    "seeds",
    "score (%)",
    "paper (%)",
    "simulated time (s)",
    "coordinates clipped: Δ, g",
)

_ON_ALL = ("A", "B", "C", "D")  # the claims that are judged on all tasks; the others are on SST-2


def verdicts(regime: Regime, folder: Path) -> str:
    """The section with the verdicts; what small experiments show is read from other pages in its folder."""
    plan = regime.plan
    paper, small = paper_numbers(plan.parts["cells"].workloads), small_experiment_numbers(folder)
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
        progress_text(progress(regime), "A verdict needs all runs that its rule names."),
        table(("claim", "verdict", "here", "small experiments", "the paper"), rows),
        "\n".join(
            (
                "- *verdict*: by its [rule](#the-rules-and-what-decides-them); *here*: the numbers that decide it.",
                "- *small experiments*: similar comparisons in networks from scratch, heads on frozen features and the "
                "last stage of TinyViT, with settings chosen on test rows ([tables](results.md), "
                "[claims](reproduction.md)).",
                "- *the paper*: the same comparisons in its own tables.",
                "- *times sooner* in claim A: here the time of the best synchronous method divided by that of the best "
                "asynchronous one; in the other two columns the mean time of all synchronous methods divided by that "
                "of all asynchronous ones.",
            )
        ),
        *(_figure(workload) for workload in charts.pictured(regime)[:1]),
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
        f"M = {plan.buffer}. Each method has six settings to choose from, tried with seed {plan.tuning_seed} on "
        "validation rows that no client trains on. The better half of the first trials is run again for more rounds, "
        "and the best of these is taken, by its score and then by its loss. Settings are chosen on the fleet with "
        "large stragglers, once for synchronous rounds and once for both asynchronous modes (in client-centric runs). "
        "The tables show the score on test rows after the last round: mean ± 95 % confidence interval (Student's t) "
        "over the seeds, or both scores where there are two. It is the accuracy; for STS-B, Pearson's correlation. "
        "*Coordinates clipped* are shares of those of Δ and of gradients; clips of the norm change all coordinates of "
        f"a vector or none. Gradients are clipped at u = {_local_clips(plan)}, unless a line says otherwise.",
        progress_table(progress(regime), "part"),
        "Parts: " + "; ".join(f"`{part.name}`, *{part.title}*" for part in plan.parts.values()) + ".",
        *_rules(regime),
        *(_figure(workload) for workload in charts.pictured(regime)[1:]),
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
    return f"![Test score against simulated time, {workload}]({charts.curves_path(workload)})"


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
        done.sort(key=lambda trial: trial[1].merit, reverse=True)
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
    if part.name in charts.AXES and charts.effects(regime, part):
        found.append(f"![Test score of each method: {part.title.lower()}]({charts.effects_path(part)})")
    for workload in part.workloads:
        rows = [row(regime, line) for line in part.with_unchanged() if line.workload == workload]
        found += [f"### {regime.plan.workloads[workload].title}", table(HEADINGS, rows)]
        found += tails.section(regime, part, workload)
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
    if not results:
        return fleet, line.mode, method, "", "", "not run", theirs, "", ""
    used = regime.runs(line)[0].spec["method"]
    settings = ", ".join(f"{name} {used[name]:g}" for name in regime.plan.method(line).grid)
    failed = sum(result.accuracy is None for result in results)
    scores = [result.accuracy or 0.0 for result in results]
    found = estimate(scores)
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
    scores = {cell[:4]: cell.score for cell in published_cells()}
    scores |= {(data, fleet, "client", method): score for (data, method, fleet), score in published_baselines().items()}
    score = scores.get((line.workload, line.stragglers, line.mode, line.method))
    return "" if score is None else f"{score:.1f}"


def _percent(value: float) -> str:
    """A share in per cent, with a decimal if it is small."""
    return f"{value:.1%}" if 0 < value < 0.01 else f"{value:.0%}"
