"""`report` and `watch`: what came of runs, as a page."""

from __future__ import annotations

import signal
import threading
from contextlib import suppress
from pathlib import Path

import typer

from tardygrad.cli.output import counted, say, show, show_json, waiting
from tardygrad.errors import Invalid


def report(
    runs: list[str],
    out: str,
    figures: str | None,
    title: str | None,
    baseline: str | None,
    target: float | None,
    json: bool,
) -> None:
    """Write the report of runs."""
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


def watch(folder: str, port: int, open: bool, json: bool) -> None:
    """Serve the report of a run until Ctrl-C."""
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
