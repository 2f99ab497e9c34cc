"""`demo`: compare five methods in a few minutes."""

from __future__ import annotations

from pathlib import Path

import typer

from tardygrad.cli import commands
from tardygrad.cli.compare import facts
from tardygrad.cli.output import show, show_json, waiting
from tardygrad.cli.parallel_runs import ParallelRuns, run_all
from tardygrad.errors import Invalid
from tardygrad.runs.record import new_run_dir, replace, require_new
from tardygrad.spec import spec

METHODS = {
    "sync-Clip²": ["method.mode=sync"],
    "Clip²": [],
    "SD-Clip²": ["method.downplay=true", "method.lr.peak=3.0", "method.lr.floor=0.3", "method.clip=0.001"],
    "DC-Clip²": ["method.compensate=true"],
    "SGDClip": ["method.kind=sgdclip", "method.clip="],
}
"""The overrides of the shipped spec `digits` for each method."""

EVERY = 10  # rounds between evaluations
GOAL = 0.9  # test accuracy to reach
TITLE = "Five methods train a vision transformer on 40 clients, some of them very slow."
NOTE = (
    f"Accuracy is measured every {EVERY} rounds. SD-Clip² divides updates by their delays, so it uses three times the "
    "lr and a third of the clip of the other methods."
)


def demo(options: commands.Demo) -> None:
    """Run the five methods side by side, print their comparison, and write a figure and a report."""
    from tardygrad.report.build import build
    from tardygrad.results.theme import rendered

    folder = require_new(Path(options.out)) if options.out else new_run_dir("demo")
    length = [f"run.rounds={options.rounds}", f"run.evaluate_every={EVERY}"]
    specs = {label: spec.load("digits", [*changes, *length]) for label, changes in METHODS.items()}
    runs = ParallelRuns(specs, folder, options.jobs)
    picture, page = folder / "test-loss.png", folder / "report.html"
    for file in (picture, page):
        if file.exists():
            raise Invalid(f"the demo would overwrite {str(file)!r}. Choose another directory for --out.")
    run_all(runs, options.rounds, TITLE)
    with waiting("writing the report"):
        found = build(runs.paths, title="Demo", baseline="sync-Clip²", target=GOAL)
        replace(page, found.html().encode())
        figure = next(each for each in found.paper_figures() if each.name == "test-loss-two-columns")
        replace(picture, rendered(figure.spec, ".png", scale=3.0))
    assert found.compared is not None
    times = {name: time and time.mean for name, time in found.compared.times.items()}
    result = sentence(times["Clip²"], times["sync-Clip²"])
    if options.json:
        show_json(facts(found, folder) | {"result": result, "figure": str(picture), "report": str(page)})
    else:
        show(str(found.compared))
        show(NOTE)
        show(typer.style(result, bold=True))
        show(f"figure  {picture}\nreport  {page}")
    if options.open:
        typer.launch(str(page))


def sentence(ours: float | None, sync: float | None) -> str:
    """The result in one sentence: the same method with the same settings, asynchronous and synchronous.

    Args:
        ours, sync: seconds to the goal; None: not reached.
    """
    if ours is None:
        return f"Asynchronous Clip² did not reach {GOAL:.0%} in so few rounds."
    reached = f"Asynchronous training (Clip²) reached {GOAL:.0%}"
    if sync is None:
        return f"{reached} after {ours:,.0f} simulated seconds; synchronous training with the same settings did not."
    return (
        f"{reached} {sync / ours:.0f} times sooner than synchronous training with the same settings: "
        f"after {ours:,.0f} simulated seconds instead of {sync:,.0f}."
    )
