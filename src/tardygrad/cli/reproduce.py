"""`reproduce`: the paper's results, made again."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tardygrad.cli.output import counted, say, show, show_json, show_table
from tardygrad.errors import Invalid, nearest
from tardygrad.runs.run import plural

if TYPE_CHECKING:
    from tardygrad.reproduce.baselines import Contest, Line
    from tardygrad.reproduce.claims import Claim, Finding, Scale
    from tardygrad.reproduce.results import Results
    from tardygrad.reproduce.tables import Study
    from tardygrad.reproduce.trials import GradientRequest


def clock(seeds: int, page: str | None, json: bool) -> None:
    """Compare simulated runtimes with the paper's."""
    from tardygrad.reproduce.clock import clock, markdown, published
    from tardygrad.reproduce.page import fresh, put

    cells = list(counted(clock(seeds), total=len(published()), what="cells"))
    if page:
        put(Path(page), "clock", lambda _: markdown(cells, seeds), new=fresh())
    if json:
        show_json({"seeds": seeds, "cells": [cell._asdict() for cell in cells]})
        return
    from rich.table import Table

    table = Table("mode", "stragglers", box=None, pad_edge=False)
    for heading in ("M", "ours (s)", "paper (s)", "ratio"):
        table.add_column(heading, justify="right")
    for cell in cells:
        numbers = (str(cell.buffer), f"{cell.ours:.1f}", f"{cell.paper:.1f}", f"{cell.ratio:.3f}")
        table.add_row(cell.mode, cell.stragglers, *numbers)
    show_table(table)


def timeline(out: str, page: str | None, json: bool) -> None:
    """Draw Figure 1 and print who made each round."""
    from tardygrad.report.theme import write
    from tardygrad.reproduce.page import fresh, put
    from tardygrad.reproduce.timeline import MODES, figure, markdown
    from tardygrad.reproduce.timeline import timeline as simulated

    where = Path(page).parent / "images/timeline.svg" if page else Path(out)
    write(figure(), where)
    if page:
        put(Path(page), "timeline", lambda _: markdown(), new=fresh())
    lines = [simulated(mode) for mode in MODES]
    if json:
        show_json({"figure": str(where), "modes": [one.plain() for one in lines]})
        return
    from rich.table import Table

    table = Table("mode", box=None, pad_edge=False)
    for heading in ("x", "made at (s)"):
        table.add_column(heading, justify="right")
    for heading in ("of the clients", "with delays"):
        table.add_column(heading)
    for one in lines:
        for made in one.moments:
            clients, delays = (", ".join(map(str, numbers)) for numbers in (made.named(), made.delays))
            table.add_row(MODES[one.mode], str(made.round), f"{made.time:g}", clients, delays)
    show_table(table)
    show(f"figure  {where}")


def claims(fast: bool, only: list[int] | None, out: str, page: str | None, jobs: int, read: bool, json: bool) -> None:
    """Run what the claims need, and judge them."""
    from tardygrad.reproduce.claims import CLAIMS, FAST, FULL
    from tardygrad.reproduce.page import fresh, parts, put
    from tardygrad.reproduce.results import Results
    from tardygrad.reproduce.verdicts import draw, text

    for number in only or ():
        if number not in (known := [claim.number for claim in CLAIMS]):
            raise Invalid(f"--only must be one of {', '.join(map(str, known))}, got {number}.")
    wanted = [claim for claim in CLAIMS if not only or claim.number in only]
    if page and only:
        raise Invalid("--page takes all claims together, got --only. Leave one of them out.")
    if page:
        parts(Path(page), "claims", fresh())  # before hours of work
    scale, results = FAST if fast else FULL, Results(Path(out))
    missing = {claim: _unmade(claim, results, scale) for claim in wanted}
    if not read:
        _prove(wanted, results, scale, jobs or len(os.sched_getaffinity(0)))
    elif any(missing.values()):
        left = ", ".join(f"{len(asks)} of claim {claim.number}" for claim, asks in missing.items() if asks)
        raise Invalid(f"--read needs every run to be there, got {out!r} without {left}. Leave --read out to make them.")
    found: dict[Claim, Finding] = {claim: claim.judge(results.look, scale) for claim in wanted}
    if page:
        command = f"tardygrad reproduce claims{' --fast' * fast}"
        draw(Path(page).parent / "images", found, results.look, scale)
        put(Path(page), "claims", lambda _: text(found, scale, command), new=fresh())
    if json:
        show_json({"claims": [{"claim": claim.number, **one.plain()} for claim, one in found.items()]})
        return
    _verdicts(found)


def _unmade(claim: Claim, results: Results, scale: Scale) -> list[GradientRequest]:
    return [ask for ask in claim.needs(results.look, scale) if results.look(*ask) is None]


def _prove(claims: list[Claim], results: Results, scale: Scale, jobs: int) -> None:
    """Make every run; what is tuned has more to run when it has been tuned."""
    try:
        while missing := {ask: None for claim in claims for ask in _unmade(claim, results, scale)}:
            made = results.make(list(missing), jobs)
            for _ in counted(made, total=len(missing), what="runs"):
                pass
    except KeyboardInterrupt:
        say(f"stopped; finished runs are kept in {results.folder}: go on with the same command")
        raise typer.Exit(130) from None


def _verdicts(found: dict[Claim, Finding]) -> None:
    from tardygrad.reproduce.claims import texts

    for claim, one in found.items():
        said = texts()[str(claim.number)]
        show(f"{claim.number}. {said['says']}\n   rule: {said['rule']}\n   {one.word}")
        for check in one.checks:
            show(f"     {'holds' if check.holds else 'fails'}: {check.says}")
        show(f"     beside the rule: {one.beside}\n" if one.beside else "")


def tables(
    only: list[str] | None,
    data: str | None,
    out: str,
    page: str | None,
    seeds: int,
    workers: int,
    read: bool,
    json: bool,
) -> None:
    """Run the experiments that are missing, and write their tables."""
    from tardygrad.reproduce.experiments import EXPERIMENTS
    from tardygrad.reproduce.report import write
    from tardygrad.reproduce.tables import Study

    for name in only or ():
        if name not in EXPERIMENTS:
            rule = f"--only must be one of {', '.join(EXPERIMENTS)}"
            raise Invalid(f"{rule}, got {name!r}.{nearest(name, EXPERIMENTS)}")
    every = [Study(name, one, Path(out), seeds) for name, one in EXPERIMENTS.items()]
    studies = [study for study in every if study.name in (only or EXPERIMENTS)]
    skipped = {} if read else _make(studies, Path(data) if data else None, workers, named=bool(only))
    where = Path(page) if page else Path(out) / "results.md"
    write(where, every)
    if json:
        cells = {study.name: [line._asdict() for line in study.lines()] for study in studies}
        show_json({"page": str(where), "skipped": skipped, "experiments": cells})
        return
    for study in studies:
        _print(study)
    show(f"page  {where}")


def _make(studies: list[Study], data: Path | None, workers: int, *, named: bool) -> dict[str, str]:
    """Run what is not there yet; the experiments that cannot be run, and why."""
    from tardygrad.cli.session import torch_threads

    skipped = {}
    with torch_threads(1):
        for study in studies:
            try:
                task = study.experiment.make(data)
            except Invalid as error:
                if named:
                    raise Invalid(f"{study.name} cannot be run: {error}") from error
                skipped[study.name] = str(error)
                say(f"{study.name} is skipped: {error}")
                continue
            try:
                for _ in counted(study.run(task, workers), total=len(study), what=study.name):
                    pass
            except KeyboardInterrupt:
                say(f"stopped; finished runs are kept in {study.folder}: go on with the same command")
                raise typer.Exit(130) from None
    return skipped


def _print(study: Study) -> None:
    from rich.table import Table

    from tardygrad.reproduce.report import HEADINGS, row, verdicts

    lines, grid = study.lines(), len(study.experiment.rates)
    if not any(line.trials for line in lines):
        return
    table = Table(*HEADINGS[:3], box=None, pad_edge=False, title=study.name, title_justify="left")
    for heading in HEADINGS[3:]:
        table.add_column(heading, justify="right")
    for line in lines:
        table.add_row(*row(line, grid))
    show_table(table)
    show("\n".join((*verdicts(lines), "")))


def baselines(
    only: list[str] | None,
    trials: int,
    seeds: int,
    data: str | None,
    out: str,
    page: str | None,
    jobs: int,
    read: bool,
    json: bool,
) -> None:
    """Tune and run the methods that are missing, and print the tables."""
    from tardygrad.report.theme import write
    from tardygrad.reproduce.baseline_page import PICTURE, fresh, picture, text
    from tardygrad.reproduce.baseline_specs import CONTENDERS
    from tardygrad.reproduce.baselines import Contest
    from tardygrad.reproduce.page import parts, put

    for name in only or ():
        if name not in CONTENDERS:
            rule = f"--only must be one of {', '.join(CONTENDERS)}"
            raise Invalid(f"{rule}, got {name!r}.{nearest(name, CONTENDERS)}")
    if page and only:
        raise Invalid("--page takes all methods together, got --only. Leave one of them out.")
    if page:
        parts(Path(page), "baselines", fresh())  # before hours of work
    names = [name for name in CONTENDERS if name in (only or CONTENDERS)]
    skipped, where = ("", None) if read else _fashion(data)
    contest = Contest(Path(out), names, trials, seeds, fashion=not skipped, data=where)
    if not read:
        _compete(contest, jobs or len(os.sched_getaffinity(0)))
    if missing := contest.missing():
        found = "; ".join(f"{some} and {few} of {', '.join(whose)}" for (some, few), whose in missing.items())
        wanted = f"wanted {plural(trials, 'trial')} and {plural(seeds, 'seed')}, found {found}"
        raise Invalid(f"--read needs every run to be in {out!r}: {wanted}. Leave --read out to make them.")
    tables = contest.tables()
    if page:
        write(picture(tables), Path(page).parent / PICTURE)
        command = f"tardygrad reproduce baselines --trials {trials} --seeds {seeds}"
        put(Path(page), "baselines", lambda _: text(contest, tables, command, skipped), new=fresh())
    if json:
        lines = [line.plain() for table in tables for line in table]
        show_json({"trials": trials, "seeds": seeds, "skipped": skipped or None, "lines": lines})
        return
    for table in filter(None, tables):
        _standings(table, seeds)


def _fashion(data: str | None) -> tuple[str, str | None]:
    """Why Fashion-MNIST cannot be learnt, and where its images are; None: where the task looks by itself."""
    from tardygrad.cli.session import torch_threads
    from tardygrad.reproduce.baseline_specs import Entry
    from tardygrad.spec import spec

    folder = Path(data) / "fashion" if data else None
    where = str(folder.resolve()) if folder and folder.is_dir() else None
    try:
        with torch_threads(1):
            spec.parse(Entry("clip2", "large", lesson="fashion", data=where).lowest().spec(0)).build()
    except Invalid as error:
        say(f"fashion is skipped: {error}")
        return str(error), None
    return "", where


def _compete(contest: Contest, jobs: int) -> None:
    if left := contest.left():
        say(f"{plural(left, 'run')} to make, kept in {contest.folder}")
    try:
        for _ in counted(contest.go(jobs), total=len(contest), what="runs"):
            pass
    except KeyboardInterrupt:
        say(f"stopped; finished runs are kept in {contest.folder}: go on with the same command")
        raise typer.Exit(130) from None


def _standings(lines: list[Line], seeds: int) -> None:
    from rich.table import Table

    from tardygrad.reproduce.baseline_page import headings, name, row, said

    head = headings(lines[0])
    table = Table(head[0], box=None, pad_edge=False, title=name(lines[0]), title_justify="left")
    table.add_column(head[1], justify="right")
    table.add_column(head[2])
    for heading in head[3:5]:
        table.add_column(heading, justify="right")
    table.add_column(head[5])
    for line in lines:
        table.add_row(*row(line, seeds)[:6])
    show_table(table)
    show("\n".join((*said(lines), "")))
