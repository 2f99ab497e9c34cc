"""`report` and `watch`: what came of runs, as a page."""

from __future__ import annotations

import signal
import threading
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from tardygrad.cli.output import Folder, Json, counted, say, show, show_json, waiting
from tardygrad.errors import Invalid


def report(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...")],
    out: Annotated[
        str, typer.Option("--out", "-o", metavar="FILE", help="The page, which ends in .html.")
    ] = "report.html",
    figures: Annotated[
        str | None, typer.Option(metavar="DIR", help="Where to write every figure as PNG and SVG, too.")
    ] = None,
    title: Annotated[str | None, typer.Option(help="The page's heading.")] = None,
    baseline: Annotated[
        str | None, typer.Option(metavar="LABEL", help="What speed-ups are over; by default the first synchronous run.")
    ] = None,
    target: Annotated[
        float | None, typer.Option(help="The test accuracy to reach, or the test loss where there is no accuracy.")
    ] = None,
    json: Json = False,
) -> None:
    """Tell of runs on one page that needs no network: curves, clients, delays, clipping, settings.

    RUN is the directory of a run or of a sweep, or a folder with some somewhere below it. Several runs are laid over
    each other.
    """
    from tardygrad.report.build import tell
    from tardygrad.report.page import figures as all_figures
    from tardygrad.report.page import pictures, put

    page = Path(out)
    if page.suffix != ".html" or page.is_dir():
        raise Invalid(f"--out must be a file that ends in .html, got {out!r}.")
    with waiting("reading the record"):
        told = tell(runs, title=title, baseline=baseline, target=target)
        page.parent.mkdir(parents=True, exist_ok=True)
        put(page, told.html().encode())
    written: list[Path] = []
    if figures is not None:
        Path(figures).mkdir(parents=True, exist_ok=True)
        drawn = list(all_figures(told.parts))
        for one in counted(drawn, total=len(drawn), what="figures"):
            written += pictures(one, Path(figures))
    if json:
        paths = [str(path) for path in written]
        show_json({"report": str(page), "title": told.title, "runs": len(told.stories), "figures": paths})
        return
    show(f"report  {page}" + (f"\nfigures  {figures}: {len(written)} files" if figures else ""))


def watch(
    folder: Folder,
    port: Annotated[int, typer.Option(help="Of 127.0.0.1; 0 is any that is free.")] = 0,
    open: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    json: Json = False,
) -> None:
    """Serve the report of a run on this machine, and renew it while the run goes on; Ctrl-C ends it.

    It only reads: the run is not touched, and goes on when this ends.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job begins without it
    with suppress(KeyboardInterrupt):
        from tardygrad.report.live import serve

        with serve([folder], port) as server:
            address = f"http://127.0.0.1:{server.server_address[1]}/"
            if json:
                show_json({"address": address})
            else:
                show(address)
            say("Ctrl-C ends this, not the run")
            if open:
                typer.launch(address)
            server.serve_forever()
