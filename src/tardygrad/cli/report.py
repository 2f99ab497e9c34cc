"""`report` and `watch`: write the report of runs, or serve it."""

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
    from tardygrad.report.build import build
    from tardygrad.report.page import figures as all_figures
    from tardygrad.report.page import put, write_images

    page = Path(out)
    if page.suffix != ".html" or page.is_dir():
        raise Invalid(f"--out must be a file that ends in .html, got {out!r}.")
    with waiting("reading the record"):
        content = build(runs, title=title, baseline=baseline, target=target)
        page.parent.mkdir(parents=True, exist_ok=True)
        put(page, content.html().encode())
    written: list[Path] = []
    if figures is not None:
        Path(figures).mkdir(parents=True, exist_ok=True)
        drawn = list(all_figures(content.sections))
        for figure in counted(drawn, total=len(drawn), what="figures"):
            written += write_images(figure, Path(figures))
    if json:
        paths = [str(path) for path in written]
        show_json({"report": str(page), "title": content.title, "runs": len(content.runs), "figures": paths})
        return
    show(f"report  {page}" + (f"\nfigures  {figures}: {len(written)} files" if figures else ""))


def watch(folder: str, port: int, open: bool, json: bool) -> None:
    """Serve the report of a run until Ctrl-C."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)  # shells start background jobs with SIGINT ignored
    with suppress(KeyboardInterrupt):
        from tardygrad.report.live import serve

        with serve([folder], port) as server:
            address = f"http://127.0.0.1:{server.server_address[1]}/"
            if json:
                show_json({"address": address})
            else:
                show(address)
            say("Ctrl-C stops this server, not the run")
            if open:
                typer.launch(address)
            server.serve_forever()
