"""`run` and `resume`."""

from __future__ import annotations

import math
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from tardygrad.cli import commands
from tardygrad.cli.output import say
from tardygrad.cli.session import print_summary, run_to_end, started_engine, worker_shortage
from tardygrad.core.messages import ModuleBuffers, Vector
from tardygrad.core.task import Task
from tardygrad.errors import Invalid, RecordError
from tardygrad.own_code import check_cluster, check_trust
from tardygrad.runs import run as runs
from tardygrad.runs.checks import quoted
from tardygrad.runs.kinds import resume_command
from tardygrad.runs.record import (
    EVENTS,
    Row,
    lock_run,
    new_run_dir,
    read_spec,
    reading_record,
    require_new,
    verify_lines,
)
from tardygrad.runs.resume import resume as resume_run
from tardygrad.runs.settings import RunTable
from tardygrad.runs.summary import MODEL, read_model, read_summary
from tardygrad.runs.tables import why_no_spec
from tardygrad.runs.track import check
from tardygrad.spec import spec


def run(options: commands.Run) -> None:
    """Run a spec and record it."""
    here = Path.cwd()  # own code may change it
    if options.out:
        require_new(Path(options.out))
    loaded = spec.load(options.source, options.overrides, trust=options.trust, starts=True)
    check(loaded.run.track)
    with started_engine(loaded, options.max_memory) as (built, pool, memory):
        new = runs.begin(built.method, built.task, pool, spec=loaded.resolved(), **loaded.run.settings())
        # only now is everything valid
        new.path = require_new(here / options.out) if options.out else new_run_dir(loaded.name, here / "runs")
        path = options.out or f"runs/{new.path.name}"
        say(f"{new.server.method} on {loaded.task.kind}, recording in {path}\n{memory}{worker_shortage(new, loaded)}")
        run_to_end(new, loaded, path, json=options.json)


def resume(options: commands.Resume) -> None:
    """Continue a recorded run."""
    folder = options.folder
    recorded = read_spec(run_dir(folder))
    loaded = recorded_spec(folder, recorded, options.overrides, trust=options.trust)
    if not options.trust and not any(text.startswith("engine.address") for text in options.overrides):
        check_cluster(recorded["spec"], folder)
    check(loaded.run.track)
    retrack = any(text.startswith("run.track") for text in options.overrides)
    if not retrack and (summary := finished_summary(Path(folder), recorded["run"].get("until"), loaded.run)):
        all_rounds = summary.rounds == loaded.run.rounds
        what = runs.plural(summary.rounds, "round") if all_rounds else f"{loaded.run.until:g} s"
        more = "run.rounds=N" if all_rounds else "run.until=SECONDS"
        say(f"the run in {folder} has finished its {what}; add {more} for more")
        print_summary(summary, folder, json=options.json)
        return
    lock_run(Path(folder)).close()  # before anything is announced
    with started_engine(loaded, options.max_memory) as (built, pool, memory):
        rounds, until = loaded.run.rounds, loaded.run.until
        resumed = resume_run(folder, built.method, built.task, pool, rounds=rounds, until=until or math.inf)
        done = resumed.server.round
        if options.overrides:
            resumed.spec_json = (resumed.spec_json or recorded) | {"spec": loaded.resolved()}
        start = f"from round {done}, recording in {folder}"
        say(f"{resumed.server.method} on {loaded.task.kind}, {start}\n{memory}{worker_shortage(resumed, loaded)}")
        run_to_end(resumed, loaded, folder, json=options.json)


def run_dir(folder: str) -> Path:
    """The directory of a run; if it is not one, suggest runs/`folder`, or the runs inside the folder."""
    path, inside = Path(folder), Path("runs") / folder
    if path.is_file():
        fix = f"If it is a spec, first start a run: tardygrad run {quoted(path)}"
        raise Invalid(f"a run must be named by its directory, got the file {folder!r}. {fix}")
    if not (path / "spec.json").exists():
        if (inside / "spec.json").exists():
            raise Invalid(f"a run must be named by its directory, got {folder!r}. Did you mean {str(inside)!r}?")
        if runs := sorted(str(spec.parent) for spec in path.glob("*/spec.json")):
            more = f" and {len(runs) - 5} more" if len(runs) > 5 else ""
            raise Invalid(f"{folder!r} is a folder of runs. Choose one of them: {', '.join(runs[:5])}{more}.")
    return path


def ended_run(folder: str, what: str) -> tuple[Path, Row]:
    """The directory and the spec.json of a run that has ended, as `what` needs it."""
    path = run_dir(folder)
    recorded = read_spec(path)
    if not (path / MODEL).exists() or not (path / "summary.json").exists():
        fix = f"Continue it with: {resume_command(folder, recorded.get('spec'))}"
        raise Invalid(f"{what} needs a run that has ended, got {folder!r}. {fix}")
    return path, recorded


def finished_summary(path: Path, until: float | None, wanted: RunTable) -> runs.Summary | None:
    """The summary of a run that has nothing more to do; None if it has, or if it is damaged.

    Args:
        until: when the recorded run's time was up.
        wanted: the length that the run should have.
    """
    try:
        with reading_record(path):
            summary = read_summary(path)
            str(summary)
            read_model(path)
            verify_lines(path / EVENTS)
    except (Invalid, RecordError, OSError):
        return None
    is_complete = summary.rounds == wanted.rounds or (until is not None and wanted.until == until)
    return summary if summary.status == "finished" and is_complete else None


def recorded_spec(folder: str, recorded: Row, overrides: list[str], *, trust: bool) -> spec.Spec:
    """The spec of a recorded run; overrides may change what `spec.resume_keys` lists."""
    if not all(isinstance(recorded.get(name), dict) for name in ("run", "versions")) or "spec" not in recorded:
        raise RecordError(f"the record in {folder!r} is damaged: its spec.json is incomplete.")
    tables = recorded["spec"]
    if tables is None:
        raise Invalid(f"the run in {folder!r} {why_no_spec(recorded)}")
    with reading_record(Path(folder)):
        allowed = spec.resume_keys(tables)
        for text in overrides:
            key = text.partition("=")[0].strip()
            if not any(f"{key}.".startswith(f"{allowed_key}.") for allowed_key in allowed):
                keys = f"{', '.join(allowed[:-1])} or {allowed[-1]}"
                raise Invalid(f"resuming a run may only change {keys}, got {text!r}. Start a new run instead.")
            spec.override(tables, text)
        if not trust:
            check_trust(tables, folder)
        return spec.parse(tables, Path(folder).name, trust=True)


def final_model(folder: Path) -> tuple[dict[str, Tensor], int]:
    """The tensors of a finished run's model, and its number of rounds."""
    with reading_record(folder):
        rounds = read_summary(folder).rounds
        try:
            return load(read_model(folder)), int(rounds)
        except SafetensorError as error:
            raise RecordError(f"{str(folder / MODEL)!r} cannot be read: {error}.") from error


def final_vectors(folder: Path, task: Task) -> tuple[Vector, ModuleBuffers | None, int]:
    """The final model of a run and its buffers, as the task takes them, and its number of rounds."""
    tensors, rounds = final_model(folder)
    x, module_buffers = task.init(0), task.init_module_buffers()
    wanted = {"x": x} | (module_buffers._asdict() if module_buffers else {})
    if {n: (t.shape, t.dtype) for n, t in tensors.items()} != {n: (t.shape, t.dtype) for n, t in wanted.items()}:
        raise Invalid(f"the model in {str(folder)!r} must have the shape of the task's model. Do not change [task].")
    own = {name: tensor.to(x.device) for name, tensor in tensors.items()}
    return own["x"], ModuleBuffers(own["floats"], own["ints"]) if module_buffers else None, rounds
