"""`report` and `watch`: write the report of runs, or serve it."""

from __future__ import annotations

import signal
import threading
from contextlib import suppress
from pathlib import Path

import typer

from tardygrad.cli.output import counted, say, show, show_json, waiting
from tardygrad.errors import Invalid
from tardygrad_command import commands


def report(options: commands.Report) -> None:
    """Write the report of runs."""
    from tardygrad.report.build import build
    from tardygrad.report.page import figures as all_figures
    from tardygrad.report.page import put, write_images

    page, figures = Path(options.out), options.figures
    if page.suffix != ".html" or page.is_dir():
        raise Invalid(f"--out must be a file that ends in .html, got {options.out!r}.")
    with waiting("reading the record"):
        content = build(options.runs, title=options.title, baseline=options.baseline, target=options.target)
        page.parent.mkdir(parents=True, exist_ok=True)
        put(page, content.html().encode())
    written: list[Path] = []
    if figures is not None:
        Path(figures).mkdir(parents=True, exist_ok=True)
        drawn = list(all_figures(content.sections))
        for figure in counted(drawn, total=len(drawn), what="figures"):
            written += write_images(figure, Path(figures))
    if options.json:
        paths = [str(path) for path in written]
        show_json({"report": str(page), "title": content.title, "runs": len(content.runs), "figures": paths})
        return
    show(f"report  {page}" + (f"\nfigures  {figures}: {len(written)} files" if figures else ""))


def watch(options: commands.Watch) -> None:
    """Serve the report of a run until Ctrl-C."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)  # shells start background jobs with SIGINT ignored
    with suppress(KeyboardInterrupt):
        from tardygrad.report.live import serve

        with serve([options.folder], options.port) as server:
            address = f"http://127.0.0.1:{server.server_address[1]}/"
            if options.json:
                show_json({"address": address})
            else:
                show(address)
            say("Ctrl-C stops this server, not the run")
            if options.open:
                typer.launch(address)
            server.serve_forever()
