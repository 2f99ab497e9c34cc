"""`reproduce`: reproduce the paper's results."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tardygrad.cli.output import counted, say, show, show_json, show_table
from tardygrad.errors import Invalid, nearest
from tardygrad.runs.run import plural

if TYPE_CHECKING:
    from tardygrad.reproduce.claims import Claim, Finding
    from tardygrad.reproduce.tables import Table


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
    rows = [
        (cell.mode, cell.stragglers, str(cell.buffer), f"{cell.ours:.1f}", f"{cell.paper:.1f}", f"{cell.ratio:.3f}")
        for cell in cells
    ]
    _show("", ("mode", "stragglers", "M>", "ours (s)>", "paper (s)>", "ratio>"), rows)


def timeline(out: str, page: str | None, json: bool) -> None:
    """Draw Figure 1 and print the updates of each round."""
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
        show_json({"figure": str(where), "modes": [line.plain() for line in lines]})
        return
    rows = []
    for line in lines:
        for moment in line.moments:
            clients, delays = (", ".join(map(str, numbers)) for numbers in (moment.named(), moment.delays))
            rows.append((MODES[line.mode], str(moment.round), f"{moment.time:g}", clients, delays))
    _show("", ("mode", "round>", "at (s)>", "clients", "delays"), rows, f"figure  {where}")


def claims(fast: bool, only: list[int] | None, out: str, page: str | None, jobs: int, read: bool, json: bool) -> None:
    """Run the experiments of the claims and judge them."""
    from tardygrad.reproduce.claims import CLAIMS, FAST, FULL
    from tardygrad.reproduce.claims_page import draw, text
    from tardygrad.reproduce.page import fresh, parts, put
    from tardygrad.reproduce.trials import looking
    from tardygrad.sweep.store import Run, Store

    _check_only(only, [claim.number for claim in CLAIMS], page, "claims")
    wanted = [claim for claim in CLAIMS if not only or claim.number in only]
    if page:
        parts(Path(page), "claims", fresh())  # fail before hours of work
    scale, store = FAST if fast else FULL, Store(Path(out))
    look = looking(store)

    def missing(claim: Claim) -> list[Run]:
        return store.missing(trial.run(seed) for trial, seed in claim.needs(look, scale))

    if not read:
        with _resumable(out):
            while runs := [run for claim in wanted for run in missing(claim)]:  # more once the tuning is done
                _drain(store.make(runs, jobs or _cores()), len(store.missing(runs)), "runs")
    elif left := ", ".join(f"{len(runs)} of claim {claim.number}" for claim in wanted if (runs := missing(claim))):
        raise Invalid(f"--read needs every run to be stored, got {out!r} without {left}. Leave out --read to run them.")
    found: dict[Claim, Finding] = {claim: claim.judge(look, scale) for claim in wanted}
    if page:
        command = f"tardygrad reproduce claims{' --fast' * fast}"
        draw(Path(page).parent / "images", found, look, scale)
        put(Path(page), "claims", lambda _: text(found, scale, command), new=fresh())
    if json:
        show_json({"claims": [{"claim": claim.number, **finding.plain()} for claim, finding in found.items()]})
        return
    _show_verdicts(found)


def _show_verdicts(found: dict[Claim, Finding]) -> None:
    from tardygrad.reproduce.claims import texts

    for claim, finding in found.items():
        words = texts()[str(claim.number)]
        show(f"{claim.number}. {words['says']}\n   rule: {words['rule']}\n   {finding.word}")
        for check in finding.checks:
            show(f"     {'holds' if check.holds else 'fails'}: {check.says}")
        show(f"     also observed: {finding.beside}\n" if finding.beside else "")


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
    """Run the missing experiments and write their tables."""
    from tardygrad.reproduce.experiments import EXPERIMENTS
    from tardygrad.reproduce.tables import Table
    from tardygrad.reproduce.tables_page import HEADINGS, row, verdicts, write

    _check_only(only, list(EXPERIMENTS), None, "experiments")
    every = [Table(name, experiment, Path(out), seeds) for name, experiment in EXPERIMENTS.items()]
    chosen = [table for table in every if table.name in (only or EXPERIMENTS)]
    skipped = {} if read else _run_tables(chosen, Path(data) if data else None, workers, named=bool(only))
    where = Path(page) if page else Path(out) / "results.md"
    write(where, every)
    if json:
        cells = {table.name: [line._asdict() for line in table.lines()] for table in chosen}
        show_json({"page": str(where), "skipped": skipped, "experiments": cells})
        return
    for table in chosen:
        lines, grid = table.lines(), len(table.experiment.rates)
        if any(line.trials for line in lines):
            headings = (*HEADINGS[:3], *(f"{heading}>" for heading in HEADINGS[3:]))
            _show(table.name, headings, [row(line, grid) for line in lines], *verdicts(lines), "")
    show(f"page  {where}")


def _run_tables(tables: list[Table], data: Path | None, workers: int, *, named: bool) -> dict[str, str]:
    """Run the missing trials; return the experiments that cannot run, and why."""
    from tardygrad.cli.session import torch_threads

    skipped = {}
    with torch_threads(1):
        for table in tables:
            try:
                places = table.prepare(data)
            except Invalid as error:
                if named:
                    raise Invalid(f"{table.name} cannot be run: {error}") from error
                skipped[table.name] = str(error)
                say(f"{table.name} is skipped: {error}")
                continue
            with _resumable(table.store.folder):
                _drain(table.run(places, workers), len(table), table.name)
    return skipped


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
    """Tune and run the missing methods and print the tables."""
    from tardygrad.report.theme import write
    from tardygrad.reproduce.baseline_page import PICTURE, fresh, headings, name, picture, row, text, verdicts
    from tardygrad.reproduce.baseline_specs import BASELINES
    from tardygrad.reproduce.baselines import Comparison
    from tardygrad.reproduce.page import parts, put

    _check_only(only, list(BASELINES), page, "methods")
    if page:
        parts(Path(page), "baselines", fresh())  # fail before hours of work
    names = [name for name in BASELINES if name in (only or BASELINES)]
    skipped, where = ("", None) if read else _fashion(data)
    comparison = Comparison(Path(out), names, trials, seeds, fashion=not skipped, data=where)
    if not read:
        if left := comparison.left():
            say(f"{plural(left, 'run')} to do, stored in {out}")
        with _resumable(out):
            _drain(comparison.go(jobs or _cores()), len(comparison), "runs")
    if missing := comparison.missing():
        found = "; ".join(f"{some} and {few} of {', '.join(whose)}" for (some, few), whose in missing.items())
        wanted = f"wanted {plural(trials, 'trial')} and {plural(seeds, 'seed')}, found {found}"
        raise Invalid(f"--read needs every run to be stored in {out!r}: {wanted}. Leave out --read to run them.")
    tables = comparison.tables()
    if page:
        write(picture(tables), Path(page).parent / PICTURE)
        command = f"tardygrad reproduce baselines --trials {trials} --seeds {seeds}"
        put(Path(page), "baselines", lambda _: text(comparison, tables, command, skipped), new=fresh())
    if json:
        rows = [line.plain() for lines in tables for line in lines]
        show_json({"trials": trials, "seeds": seeds, "skipped": skipped or None, "lines": rows})
        return
    for lines in filter(None, tables):
        method, accuracy, mark, time, reach, settings, _ = headings(lines[0])
        columns = (method, f"{accuracy}>", mark, f"{time}>", f"{reach}>", settings)
        _show(name(lines[0]), columns, [row(line, seeds)[:6] for line in lines], *verdicts(lines), "")


def _fashion(data: str | None) -> tuple[str, str | None]:
    """Why Fashion-MNIST cannot be run (empty if it can), and the folder of its images; None: the task finds them."""
    from tardygrad.cli.session import torch_threads
    from tardygrad.reproduce.baseline_specs import BaselineTrial
    from tardygrad.spec import spec

    folder = Path(data) / "fashion" if data else None
    where = str(folder.resolve()) if folder and folder.is_dir() else None
    try:
        with torch_threads(1):
            spec.parse(BaselineTrial("clip2", "large", lesson="fashion", data=where).lowest().run(0).spec).build()
    except Invalid as error:
        say(f"fashion is skipped: {error}")
        return str(error), None
    return "", where


def _check_only(only: Sequence[int | str] | None, known: Sequence[int | str], page: str | None, what: str) -> None:
    for value in only or ():
        if value not in known:
            fix = nearest(str(value), map(str, known))
            raise Invalid(f"--only must be one of {', '.join(map(str, known))}, got {value!r}.{fix}")
    if page and only:
        raise Invalid(f"--page needs all {what}, got --only. Leave out one of the two options.")


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _drain(items: Iterator[object], total: int, what: str) -> None:
    for _ in counted(items, total=total, what=what):
        pass


@contextmanager
def _resumable(folder: str | Path) -> Iterator[None]:
    """On Ctrl-C, say how to continue."""
    try:
        yield
    except KeyboardInterrupt:
        say(f"stopped; finished runs are stored in {folder}: continue with the same command")
        raise typer.Exit(130) from None


def _show(title: str, columns: Iterable[str], rows: Iterable[tuple[str, ...]], *lines: str) -> None:
    """Print a table and lines below it; a column whose name ends in > is aligned right."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, title=title or None, title_justify="left")
    for column in columns:
        table.add_column(column.removesuffix(">"), justify="right" if column.endswith(">") else "left")
    for row in rows:
        table.add_row(*row)
    show_table(table)
    if lines:
        show("\n".join(lines))
