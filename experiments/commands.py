"""The code of the commands of `experiments.options`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from experiments import options as commands
from tardygrad.cli.output import as_objects, counted, say, show, show_json, show_table, writable
from tardygrad.engines.threads import torch_threads
from tardygrad.errors import Invalid, nearest

if TYPE_CHECKING:
    from experiments.progress import Progress
    from experiments.regime_claims import Judgement
    from experiments.regime_repeat import Repetition
    from tardygrad.sweeps.store import PlannedRun, Store


def clock(options: commands.Clock) -> None:
    """Compare simulated runtimes with the paper's."""
    from experiments.clock import HEADINGS, clock, markdown, published, row
    from experiments.page import write_section

    _check_outputs(options.page, ["clock"])
    cells = list(counted(clock(options.seeds), total=len(published()), what="cells"))
    if options.page:
        write_section(Path(options.page), "clock", markdown(cells, options.seeds))
    if options.json:
        show_json({"seeds": options.seeds, "cells": as_objects(cells)})
        return
    show_table((*HEADINGS[:2], *_right(HEADINGS[2:])), map(row, cells))


def figure1(options: commands.Figure1) -> None:
    """Draw Figure 1 and print the updates of each round."""
    from experiments.figure1 import MODES, figure, markdown
    from experiments.figure1 import timeline as simulated
    from experiments.page import write_section
    from tardygrad.results.theme import write

    _check_outputs(options.page, ["figure1"])
    where = Path(options.page).parent / "images/timeline.svg" if options.page else Path(options.out)
    write(figure(), where)
    if options.page:
        write_section(Path(options.page), "figure1", markdown())
    lines = [simulated(mode) for mode in MODES]
    if options.json:
        show_json({"figure": str(where), "modes": as_objects(lines)})
        return
    rows = []
    for line in lines:
        for moment in line.models:
            clients, delays = (", ".join(map(str, numbers)) for numbers in (moment.named(), moment.delays))
            rows.append((MODES[line.mode], str(moment.round), f"{moment.time:g}", clients, delays))
    show_table(("mode", "round>", "at (s)>", "clients", "delays"), rows)
    show(f"figure  {where}")


def claims(options: commands.Claims) -> None:
    """Run the experiments of the claims and judge them."""
    from experiments.claims import CLAIMS, FAST, FULL, Claim, texts
    from experiments.claims_page import draw, text
    from experiments.page import write_section
    from experiments.trials import ClaimTrial
    from tardygrad.sweeps.store import Store, StoredResult

    only, page, out = options.only, options.page, options.out
    _check_only(only, [claim.number for claim in CLAIMS], page, "claims")
    chosen = [claim for claim in CLAIMS if not only or claim.number in only]
    _check_outputs(page, ["claims"])
    scale, store = FAST if options.fast else FULL, Store(Path(out))

    def result_of(trial: ClaimTrial, seed: int) -> StoredResult | None:
        return store.result(trial.run(seed))

    def wanted(claim: Claim) -> list[PlannedRun]:
        return [trial.run(seed) for trial, seed in claim.needs(result_of, scale)]

    if not options.read:
        _run(store, lambda: [run for claim in chosen for run in wanted(claim)], options.jobs)
    elif left := ", ".join(
        f"{len(runs)} of claim {claim.number}" for claim in chosen if (runs := store.missing(wanted(claim)))
    ):
        raise Invalid(f"--read needs every run to be stored, got {out!r} without {left}. Leave out --read to run them.")
    found = {claim: claim.judge(result_of, scale) for claim in chosen}
    if page:
        command = f"python -m experiments.claims{' --fast' * options.fast}"
        draw(Path(page).parent / "images", found, result_of, scale)
        write_section(Path(page), "claims", text(found, scale, command))
    if options.json:
        show_json({"claims": [{"claim": claim.number, **finding.plain()} for claim, finding in found.items()]})
        return
    for claim, finding in found.items():
        words = texts()[str(claim.number)]
        show(f"{claim.number}. {words['says']}\n   rule: {words['rule']}\n   {finding.verdict}")
        for check in finding.checks:
            show(f"     {'holds' if check.holds else 'fails'}: {check.says}")
        show(f"     also observed: {finding.remarks}\n" if finding.remarks else "")


def tables(options: commands.Tables) -> None:
    """Run the missing experiments and write their tables."""
    from experiments.table_experiments import EXPERIMENTS
    from experiments.tables import Table
    from experiments.tables_page import HEADINGS, costs_of_not_waiting, row, write

    _check_only(options.only, list(EXPERIMENTS), None, "experiments")
    out, data = Path(options.out), _data_folder(options.data)
    where = Path(options.page) if options.page else out / "results.md"
    _check_outputs(str(where), ["tables"])
    every = [Table(name, experiment, out, options.seeds) for name, experiment in EXPERIMENTS.items()]
    chosen = [table for table in every if table.name in (options.only or EXPERIMENTS)]
    skipped = {}
    for table in [] if options.read else chosen:
        with torch_threads(1):
            try:
                folders = table.prepare(data)
            except Invalid as error:
                if options.only:
                    raise Invalid(f"{table.name} cannot be run: {error}") from error
                skipped[table.name] = str(error)
                say(f"{table.name} is skipped: {error}")
                continue
            _run(table.store, partial(table.wanted, folders, options.workers), 1, table.name)
    write(where, every)
    if options.json:
        cells = {table.name: [line._asdict() for line in table.lines()] for table in chosen}
        show_json({"page": str(where), "skipped": skipped, "experiments": cells})
        return
    for table in chosen:
        lines, grid = table.lines(), len(table.experiment.rates)
        if any(line.trials for line in lines):
            show_table((*HEADINGS[:3], *_right(HEADINGS[3:])), (row(line, grid) for line in lines), table.name)
            show("\n".join([*costs_of_not_waiting(lines), ""]))
    show(f"page  {where}")


def regime(options: commands.Regime) -> None:
    """Run what is missing of the paper's regime, and print the verdicts and tables."""
    from experiments import regime_charts, regime_page
    from experiments.page import write_section
    from experiments.regime import Regime, plan
    from experiments.regime_claims import judge
    from experiments.regime_progress import progress
    from experiments.regime_repeat import Repetition
    from experiments.summaries import shipped_runs, write_summaries
    from tardygrad.sweeps.store import Store

    whole, page = plan(), options.page
    _check_only(options.only, list(whole.parts), page, "parts")
    if options.quick:
        for name, value in {"only": options.only, "page": page, "save": options.save}.items():
            if value:
                raise Invalid(f"--quick has its own runs and no page, got --{name}. Leave out one of the two options.")
    _check_outputs(page, ["regime verdicts", "regime tables"], options.save)
    selected = whole.quick() if options.quick else whole.only(options.only or list(whole.parts))
    data, folders = _data_folder(options.data), selected.folders()
    if folders and data is None and not (options.read or options.plan):
        rule = "`experiments.regime` needs --data FOLDER to run, or --read or --plan"
        raise Invalid(f"{rule}, got none of them. Use a folder with {', '.join(f'{name}/' for name in folders)}.")
    shipped = shipped_runs("results/regime.jsonl")
    if options.quick:
        _repeat_regime(options, Repetition(whole, shipped, Path(options.out) / "quick", data))
        return
    store = Store(Path(options.out), records=True, known=shipped)
    chosen = Regime(selected, store, data)
    if options.plan:
        _show_progress(progress(chosen), "part", json=options.json)
        return
    if not options.read:
        _run_plan(store, chosen.wanted, lambda: progress(chosen), options.jobs)
    everything = Regime(whole, store)  # reads results, so it needs no data
    if options.save:
        write_summaries(Path(options.save), everything.summaries())
    if page:
        folder, command = Path(page).parent, "python -m experiments.regime"
        regime_charts.write_pictures(everything, folder)
        texts = regime_page.verdicts(everything, folder), regime_page.tables(everything, command)
        for section, text in zip(("regime verdicts", "regime tables"), texts, strict=True):
            write_section(Path(page), section, text)
    verdicts = judge(everything)
    if options.json:
        show_json({letter: found._asdict() for letter, found in verdicts.items()})
        return
    for part in chosen.plan.parts.values():
        for workload in part.workloads:
            lines = [line for line in part.with_unchanged() if line.workload == workload]
            columns = (*regime_page.HEADINGS[:4], *_right(regime_page.HEADINGS[4:]))
            show_table(columns, (regime_page.row(everything, line) for line in lines), f"{part.name}, {workload}")
    for letter, found in verdicts.items():
        show(f"{letter}. {whole.claims[letter]['says']}\n   {found.verdict}")
        _show_numbers(found)


def _repeat_regime(options: commands.Regime, repetition: Repetition) -> None:
    """Repeat stored runs, compare them with the stored ones, and judge their workload."""
    from experiments.regime_progress import progress

    runs = repetition.runs
    if options.plan:
        _show_progress(progress(runs), "part", json=options.json)
        return
    if not options.read:
        _run_plan(repetition.store, runs.wanted, lambda: progress(runs), options.jobs)
    scores, verdicts = repetition.scores(), repetition.verdicts()
    if options.json:
        claims = {letter: after._asdict() | {"stored": before.verdict} for letter, (before, after) in verdicts.items()}
        show_json({"workload": repetition.workload, "runs": as_objects(scores), "claims": claims})
        return
    columns = ("mode", "method", "seed>", "stored (%)>", "repeated (%)>")
    rows = (
        (
            run.mode,
            run.method,
            str(run.seed),
            _score(run.stored) if run.is_stored else "not stored",
            _score(run.repeated),
        )
        for run in scores
    )
    show_table(columns, rows, f"Repeated runs of {repetition.workload}, large stragglers")
    show(f"{sum(run.is_equal for run in scores)} of {len(scores)} have the stored score.\n")
    show(f"Verdicts for {repetition.workload} alone, with these runs in place of the stored ones:")
    for letter, (before, after) in verdicts.items():
        show(f"{letter}. {runs.plan.claims[letter]['says']}\n   {after.verdict} (stored runs: {before.verdict})")
        _show_numbers(after)


def _show_numbers(judgement: Judgement) -> None:
    for line in filter(None, (judgement.numbers, *judgement.details)):
        show(f"     {line}")


def _score(score: float | None) -> str:
    return "did not finish" if score is None else f"{score:.2f}"


def baselines(options: commands.Baselines) -> None:
    """Tune and run what is missing of the baselines, and print the tables."""
    from experiments import baseline_page
    from experiments.baseline_plan import plan
    from experiments.baselines import Baselines
    from experiments.page import write_section
    from experiments.summaries import shipped_runs, write_summaries
    from tardygrad.sweeps.store import Store

    whole, page = plan(), options.page
    _check_only(options.only, [*whole.workloads, *whole.methods], page, "workloads and methods")
    _check_outputs(page, ["baselines"], options.save)
    chosen = whole.only(options.only or []).resized(options.trials, options.seeds)
    store = Store(Path(options.out), known=shipped_runs("results/baselines.jsonl"))
    trains, data = "fashion" in chosen.workloads and not (options.read or options.plan), _data_folder(options.data)
    skipped, where = _fashion(data) if trains else ("", None)
    results = Baselines(chosen, store, {"fashion": where} if where else {}, ["fashion"] if skipped else [])
    if options.plan:
        _show_progress(results.progress(), "fleet", json=options.json)
        return
    if not options.read:
        _run_plan(store, results.wanted, results.progress, options.jobs)
    if options.save:
        rows = {row["name"]: row for some in (whole, chosen) for row in Baselines(some, store).summaries()}
        write_summaries(Path(options.save), list(rows.values()))
    if page:
        given = {"trials": options.trials, "seeds": options.seeds}
        command = "".join(f" --{name} {value}" for name, value in given.items() if value is not None)
        baseline_page.write_pictures(results, Path(page).parent)
        text = baseline_page.text(results, f"python -m experiments.baselines{command}", skipped)
        write_section(Path(page), "baselines", text)
    tables = results.tables()
    if options.json:
        show_json({"skipped": skipped or None, "lines": [line.plain() for lines in tables for line in lines]})
        return
    for lines in tables:
        table = baseline_page.BaselineTable(chosen, lines)
        method, *numbers, settings, _ = table.headings()
        show_table((method, *_right(numbers), settings), (table.row(line)[:-1] for line in lines), table.name)
        show("\n".join([*table.sentences(), ""]))
    if not tables:
        say("no method has all its runs yet; see --plan")


def _data_folder(data: str | None) -> Path | None:
    """The folder of --data, if it is given; raises `Invalid` unless there is one."""
    if data is not None and not (data and Path(data).is_dir()):
        raise Invalid(f"--data must be a folder, got {data!r}.")
    return None if data is None else Path(data)


def _fashion(data: Path | None) -> tuple[str, str | None]:
    """Why Fashion-MNIST cannot be run (empty if it can), and the folder of its images; None: the task finds them."""
    from experiments.baseline_plan import plan
    from tardygrad.spec.spec import parse

    folder = data / "fashion" if data else None
    where = str(folder.resolve()) if folder and folder.is_dir() else None
    whole = plan()
    cell = next(cell for cell in whole.cells() if cell.workload == "fashion")
    try:
        with torch_threads(1):
            parse(whole.run(cell, whole.lowest(cell), whole.seeds[0], data=where).spec).build()
    except Invalid as error:
        say(f"fashion is skipped: {error}")
        return str(error), None
    return "", where


def _show_progress(rows: Sequence[Progress], group: str, *, json: bool) -> None:
    """Print how much of a plan is done."""
    from experiments.progress import headings

    if json:
        show_json({"progress": [row._asdict() for row in rows]})
    else:
        columns = headings(group)
        show_table((*columns[:2], *_right(columns[2:])), (row.row() for row in rows))


def _run_plan(
    store: Store, wanted: Callable[[], list[PlannedRun]], progress: Callable[[], Sequence[Progress]], jobs: int
) -> None:
    """Do the missing runs of a plan, and print after each how much is left."""
    with _continuable(store):
        for path in store.run(wanted, jobs):
            everything = progress()[-1]
            left = f"{everything.left / 3600:.1f} CPU hours left"
            say(f"{path.stem}: {everything.done} of {everything.runs} runs done, about {left}")


def _check_outputs(page: str | None, sections: Sequence[str], save: str | None = None) -> None:
    """Raise `Invalid`, before hours of work, if a page or a file of summaries cannot be written."""
    from experiments.page import split_page
    from tardygrad.runs.record import make_directory, writing

    if page is not None and save is not None and Path(page).resolve() == Path(save).resolve():
        raise Invalid(f"--page and --save must be two files, got {save!r} for both.")
    if page is not None:
        for section in sections:
            split_page(Path(page), section)
        images = Path(page).parent / "images"
        with writing(images):
            make_directory(images)
        writable("--page", page)
    if save is not None:
        writable("--save", save)


def _check_only(only: Sequence[int | str] | None, known: Sequence[int | str], page: str | None, what: str) -> None:
    for value in only or ():
        if value not in known:
            fix = nearest(str(value), map(str, known))
            raise Invalid(f"--only must be one of {', '.join(map(str, known))}, got {value!r}.{fix}")
    if page and only:
        raise Invalid(f"--page needs all {what}, got --only. Leave out one of the two options.")


def _run(store: Store, wanted: Callable[[], list[PlannedRun]], jobs: int, what: str = "runs") -> None:
    """Do the missing runs, and those that become known by their results."""
    with _continuable(store):
        while runs := store.missing(wanted()):
            done = store.run(runs, jobs)
            for _ in counted(done, total=len(runs), what=what):
                pass


@contextmanager
def _continuable(store: Store) -> Iterator[None]:
    """On Ctrl-C, print how to continue."""
    try:
        yield
    except KeyboardInterrupt:
        say(f"stopped; finished runs are stored in {store.folder}: continue with the same command")
        raise typer.Exit(130) from None


def _right(headings: Sequence[str]) -> list[str]:
    """Headings of columns that are aligned right."""
    return [f"{heading}>" for heading in headings]
