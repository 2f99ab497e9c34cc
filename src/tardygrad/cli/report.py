"""`report` and `watch`: write the report of runs, or serve it."""

from __future__ import annotations

import signal
import threading
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile

import typer

from tardygrad.cli import commands
from tardygrad.cli.output import counted, say, show, show_json, waiting
from tardygrad.errors import Invalid
from tardygrad.runs.record import make_directory


def report(options: commands.Report) -> None:
    """Write the report of runs."""
    from tardygrad.report.build import build
    from tardygrad.report.page import put
    from tardygrad.report.paper_figures import write_images

    page, figures, latex = Path(options.out), options.figures, options.latex
    if page.suffix != ".html" or page.is_dir():
        raise Invalid(f"--out must be a file that ends in .html, got {options.out!r}.")
    if latex is not None and (Path(latex).suffix != ".tex" or Path(latex).is_dir()):
        raise Invalid(f"--latex must be a file that ends in .tex, got {latex!r}.")
    if figures is not None and Path(figures).resolve() in (page.resolve(), Path(latex or ".").resolve()):
        raise Invalid(f"--figures must be a folder, got {figures!r}, which another option writes as a file.")
    with waiting("reading the record"):
        content = build(options.runs, title=options.title, baseline=options.baseline, target=options.target)
        _make_folder("--out", page.parent)
        if latex is not None:
            _make_folder("--latex", Path(latex).parent)
        if figures is not None:
            _make_folder("--figures", Path(figures))
        put(page, content.html().encode())
    lines, written = [*content.results, f"report  {page}"], list[Path]()
    if latex is not None:
        put(Path(latex), "\n".join(content.tables).encode())
        lines.append(f"latex  {latex}")
    if figures is not None:
        with waiting("laying out the figures"):
            drawn = list(content.paper_figures())
        for figure in counted(drawn, total=len(drawn), what="figures"):
            written += write_images(figure, Path(figures))
        lines.append(f"figures  {figures}: {len(written)} files")
    if options.json:
        facts = {"report": str(page), "title": content.title, "result": content.results, "runs": len(content.runs)}
        show_json(facts | {"figures": [str(path) for path in written], "latex": latex})
        return
    show("\n".join(lines))


def _make_folder(option: str, folder: Path) -> None:
    """Create a folder if it does not exist; raise `Invalid` if it cannot be written."""
    try:
        make_directory(folder)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        why = "not a folder" if isinstance(error, FileExistsError) else error.strerror or error
        rule = f"{option} needs a folder that can be written, got {str(folder)!r} ({why})"
        raise Invalid(f"{rule}. Choose another one.") from error


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
